"""`%transient_plan` in a shell: what it returns, shows, binds and completes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell

from tests.notebooks import runner_of
from tests.runtime import programs
from transient_magics import panels
from transient_magics.client import commands
from transient_magics.errors import DeclarationError
from transient_magics.magics.completion import candidates
from transient_magics.planner.plan import Plan
from transient_magics.planner.search import Search, shown

LINE = "--workload icac19/resnet-32 --train-steps 64000"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    yield shell
    shell.run_cell("%unload_ext transient_magics")
    assert "transient_plan" not in shell.magics_manager.magics["line"]


def test_a_plan_is_returned_bound_and_shown(shell: InteractiveShell) -> None:
    found = shell.run_cell(f"%transient_plan k80x4 {LINE} --revocations none -o p").result
    assert isinstance(found, Plan)
    assert shell.user_ns["p"] is found
    data, _ = shell.display_formatter.format(found)
    assert "<code>%transient_cluster k80x4</code>" in data["text/html"]
    assert data["text/plain"] == str(found)
    assert "On demand" in data["text/html"]


def test_a_bags_plan_is_a_table_that_is_as_narrow_as_a_notebook(shell: InteractiveShell) -> None:
    line = "%transient_plan cpux4+k80x2 --bag --jobs 30 --job-time cpu=2h,k80=20m"
    found = shell.run_cell(line).result
    data, _ = shell.display_formatter.format(found)
    assert data["text/plain"] == str(found)
    drawn = ElementTree.fromstring(data["text/html"])
    rows = [["".join(cell.itertext()) for cell in each] for each in drawn.iter("tr")]
    assert rows[0] == ["", "Type", "Policy", "Hours", "Cost", "Failed jobs", "On demand"]
    assert [(each[1], each[2]) for each in rows[1:]] == [(row.kind, row.policy) for row in found.rows]
    assert [bool(each[0]) for each in rows[1:]] == [row is found.best for row in found.rows]
    (means, *_) = (list(each.iter("td")) for each in list(drawn.iter("tr"))[1:])
    assert [bool(cell.findall("br")) for cell in means] == [False, False, False, True, True, True, False]
    said = "".join(drawn.itertext())
    assert "Below each mean: where 90% of 200 simulated bags lie." in said
    assert all(note in said for note in found.notes)
    assert "● costs least" in said


@pytest.mark.slow
def test_a_search_is_a_chart_and_a_table_of_lines(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    found = shell.run_cell(f"%transient_plan {LINE} --objective cost").result
    assert isinstance(found, Search)
    text, html = capsys.readouterr().out, panels.search_html(found)
    assert "<svg" in html
    assert "<script" not in html
    for plan in shown(found):
        assert plan.line in text
        assert plan.line in html
    assert html.count("<title>") == len(found.front)
    words_of_signs = re.sub(r"<[^>]*>", "", html)
    for sign in ("● the cheapest", "◎ the knee", "● no other is faster and cheaper", "○ another is faster and cheaper"):
        assert sign in words_of_signs
    assert ">Workers lost</th>" in html
    best = next(line for line in text.splitlines() if line.startswith(">"))
    assert best.endswith(found.front[-1].line)


CELL = """
import keras
import numpy as np

model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
model.compile("sgd", "mse")
batch_size = 16

def input_fn(mode):
    return np.zeros((64, 8), "float32"), np.zeros((64, 1), "float32")
"""


@pytest.mark.training
def test_a_cells_model_that_never_ran_is_planned_from_its_graph(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The programs that count find TensorFlow imported.
    monkeypatch.setattr(commands, "subprocess", SimpleNamespace(run=programs.serve, TimeoutExpired=TimeoutError))
    found = shell.run_cell(f"%%transient_plan t4x2 --train-steps 500 --param units=32 -o p\n{CELL}").result
    assert isinstance(found, Plan)
    assert (found.workload.parameters, found.workload.batch_size) == (8 * 32 + 32 + 32 + 1, 16)
    assert "The cell's model was never measured on Compute Engine" in str(found)
    again = shell.run_cell(f"%%transient_plan --train-steps 500 --param units=32 --gpus t4\n{CELL}").result
    assert isinstance(again, Search), "and what was counted is not counted again"
    broken = CELL.replace("keras.layers.Dense(1)", "keras.layers.Dens(1)")
    error = shell.run_cell(f"%%transient_plan t4x2 --train-steps 500 --param units=32\n{broken}").error_in_exec
    assert "Dens" in str(error)


def test_a_plan_of_a_cell_needs_what_trains_it(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = shell.run_cell(f"%%transient_plan t4x2 --train-steps 500 --param depth=2\n{CELL}").error_in_exec
    assert "'units' is not defined" in str(unread)
    both = shell.run_cell(f"%%transient_plan t4x2 {LINE}\n{CELL}").error_in_exec
    assert "needs --workload, or --model and --problem, or code" in str(both)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    bare = shell.run_cell(f"%%transient_plan t4x2 --train-steps 500 --param units=33\n{CELL}").error_in_exec
    assert "needs TensorFlow and Tensor2Tensor, but tensorflow is not installed here" in str(bare)
    assert "train it for a minute on a cluster, then plan with that run" in str(bare)


def test_a_mistake_fails_the_cell_with_one_line(shell: InteractiveShell) -> None:
    error = shell.run_cell("%transient_plan k80x4 --workload icac19/resnet-32").error_in_exec
    assert isinstance(error, DeclarationError)
    assert len(error._render_traceback_()) == 1


def test_what_tab_offers(shell: InteractiveShell) -> None:
    assert "icac19/resnet-32" in candidates("transient_plan", "k80x4 --workload ", "")
    assert candidates("transient_plan", "--objective ", "") == ["knee", "time", "cost"]
    assert "k80" in candidates("transient_plan", "", "")
    assert {"--target", "--no-replace"} <= set(candidates("transient_plan", "k80x4 ", "--"))


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import nbformat

    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    notebook = nbformat.read(Path(__file__).parents[2] / "notebooks" / "planning.ipynb", as_version=4)
    runner_of(notebook).execute()
    said = "".join(str(output) for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "k80x4  0 lost: 0.97 h" in said
    assert "<svg" in said
