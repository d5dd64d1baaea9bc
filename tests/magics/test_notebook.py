"""Whole notebooks run headless, as papermill and `make demo` run them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks import notebook_of, runner_of

HEAVY = (
    "google.cloud", "google.auth", "tensorflow", "asyncssh", "aiohttp", "anywidget", "ipywidgets", "pandas", "numpy",
    "scipy", "sklearn", "distributed", "dask",
)  # fmt: skip
VIEW = "application/vnd.jupyter.widget-view+json"
ENDED = "deleted: asked by the user"
PATIENCE = 240


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_stored_notebook_ends_with_one_true_panel_per_cell(home: Path) -> None:
    from nbconvert import HTMLExporter

    cells = (
        "%load_ext transient_magics",
        "%transient_cluster cpux1 --name demo --wait",
        "import transient_magics as tm\ntm.cluster('demo')",
        "%transient_cluster list",
        "%transient_cluster delete demo",
        "import time; time.sleep(0.5)",  # panels are drawn a while after what they show
    )
    notebook = notebook_of(*cells)
    _, declared, shown, listed, deleted, _ = notebook.cells
    runner = runner_of(notebook)
    with runner.setup_kernel():
        for number, each in enumerate(notebook.cells):
            runner.execute_cell(each, number)
        deadline = time.monotonic() + PATIENCE
        while not all(
            VIEW not in output.data and ENDED in output.data["text/html"]
            for each in (declared, shown)
            for output in each.outputs
        ):
            assert time.monotonic() < deadline, "a panel does not show the end"
            runner.execute_cell(notebook.cells[-1], len(cells) - 1)
    declared, shown, listed, deleted = (each.outputs for each in (declared, shown, listed, deleted))
    assert [output.output_type for output in declared] == ["display_data"]
    assert [output.output_type for output in shown] == ["display_data"]
    for (output,) in (declared, shown):
        assert set(output.data) == {"text/html", "text/plain"}
        assert ENDED in output.data["text/html"]
    assert "demo" in listed[0].data["text/html"]
    assert "nothing was billed: $0" in deleted[0].text
    page, _ = HTMLExporter(template_name="lab").from_notebook_node(notebook)
    assert ENDED in page


@pytest.mark.slow
def test_a_picture_that_comes_between_two_cells_is_stored() -> None:
    first = (
        "import threading; from transient_magics.panels.show import publisher\n"
        "say = publisher(get_ipython(), 'panel', between_cells=False)\n"
        "say({'text/plain': 'old'}, update=False); asked = threading.Event(); said = threading.Event()\n"
        "def late(): asked.wait(); say({'text/plain': 'new'}, update=True); said.set()\n"
        "threading.Thread(target=late).start(); threading.Timer(1, asked.set).start()"
    )
    notebook = notebook_of(first, "said.wait()")
    runner = runner_of(notebook)
    with runner.setup_kernel():
        runner.execute_cell(notebook.cells[0], 0)
        time.sleep(2)  # nobody listens to the kernel meanwhile
        runner.execute_cell(notebook.cells[1], 1)
    (shown,) = notebook.cells[0].outputs
    assert shown.data["text/plain"] == "new"


@pytest.mark.slow
def test_a_mistake_fails_the_cell_with_one_line(home: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    mistakes = {
        "%transient_cluster k80x": "column 5",
        "%%train --model resnet --train-steps 5\nx = 1": "needs --hparams-set",
        "%transient_cluster delete nope": "Unknown cluster 'nope'",
    }
    notebook = notebook_of("%load_ext transient_magics", *mistakes)
    runner = runner_of(notebook)
    with runner.setup_kernel():
        runner.execute_cell(notebook.cells[0], 0)
        for number, said in enumerate(mistakes.values(), 1):
            with pytest.raises(CellExecutionError) as error:
                runner.execute_cell(notebook.cells[number], number)
            assert said in str(error.value)
            assert "Traceback" not in str(error.value)


def test_loading_brings_the_words_alone_and_the_first_cell_brings_the_rest_and_nothing_heavy() -> None:
    code = (
        "import sys; from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell()\n"
        "loaded = lambda: ' '.join(name for name in sys.modules if name.startswith('transient_magics.'))\n"
        "shell.run_line_magic('load_ext', 'transient_magics'); print(loaded())\n"
        "shell.run_line_magic('transient_cluster', 'k80x4 --dry-run'); print(loaded())\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    *loaded, heavy = said.stdout.splitlines()
    assert not heavy
    first, then = ({name.partition(".")[2] for name in line.split()} for line in loaded)
    rooms = {name.partition(".")[0] for name in first if "." in name}
    assert rooms <= {"magics", "cli", "client", "spec", "catalog", "protocol"}
    assert {name for name in first if name.startswith("client.")} == {"client.display_hook"}
    assert {"journal", "panels", "client.declaring.dry_run"} <= then
    assert not {"client.diagnosis", "client.planning.plans", "client.project.images", "works.runs.declare"} & then


def test_the_package_offers_its_handles_and_imports_nothing_before() -> None:
    code = (
        "import sys, transient_magics as tm; light = 'transient_magics.client' not in sys.modules\n"
        "print(light, all(hasattr(tm, name) for name in tm.__all__), set(tm.__all__) <= set(dir(tm)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert said.stdout.strip() == "True True True"
