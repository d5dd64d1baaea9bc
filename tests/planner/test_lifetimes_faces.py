"""What people see of lifetimes: in a terminal, in a notebook, from Python; and what is refused, in one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from transient_magics.cli import arguments
from transient_magics.cli.program import main
from transient_magics.errors import DeclarationError, TransientError
from transient_magics.magics.completion import candidates
from transient_magics.panels import lifetimes_html


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    yield shell
    shell.run_cell("%unload_ext transient_magics")
    assert "transient_lifetimes" not in shell.magics_manager.magics["line"]


def written(folder: Path, rows: list[str], header: str = "lifetime_hours,revoked,gpu,zone") -> Path:
    path = folder / "lives.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return path


@pytest.mark.slow
def test_the_magic_and_the_program_say_the_same(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    result = shell.run_cell("%transient_lifetimes --gpu K80 --source published --job 4h --age 3h  # how long?")
    result.raise_error()
    capsys.readouterr()
    assert main(["lifetimes", "--gpu", "K80", "--source", "published", "--job", "4h", "--age", "3h"]) == 0
    said = capsys.readouterr().out
    assert said == f"{result.result}\n"
    assert "156 VMs, 72 revoked, 84 not; observed up to 24 h." in said
    assert "Preemptible VMs of 2018 and 2019" in said
    assert "Spot VMs have no time limit" in said
    assert "use the old VM" in said
    assert "Checkpoints after" in said
    assert "Of fresh VMs 79% live 1 h or longer, 54% live 24 h or longer. VMs of" in said
    assert max(map(len, said.splitlines())) < 100
    data, _ = shell.display_formatter.format(result.result)
    assert "<svg" in data["text/html"]


def test_numbers_for_python() -> None:
    answer = tm.lifetimes("v100", source="published", fit=["early", "weibull"])
    assert [row["age"] for row in answer.rows] == [0, 1, 2, 4, 8, 12, 18, 24]
    last = answer.rows[-1]
    assert last["alive"] == pytest.approx(1 - 69 / 120)
    assert last["low"] < last["alive"] < last["high"]
    assert {each["name"] for each in answer.fits} == {"early, then steady", "Weibull"}
    assert answer.fits[0]["aic"] <= answer.fits[1]["aic"]


def test_the_figure_draws_what_was_found_and_escapes_what_was_typed(home: Path) -> None:
    path = written(home, [f"{1 + i / 3},{int(i % 4 > 0)}" for i in range(60)], "lifetime_hours,revoked")
    odd = path.rename(home / "<i>&.csv")
    html = lifetimes_html(tm.lifetimes(source=str(odd)))
    assert "<i>&" not in html
    assert "&lt;i&gt;&amp;.csv" in html
    svg = ElementTree.fromstring(re.search(r"<svg.*?</svg>", html)[0])  # type: ignore[index]
    curves = [each for each in svg.iter("path") if each.get("fill") == "none"]
    assert len(curves) == 4, "what was observed, and three formulas"
    places = re.findall(r"([\d.]+) ([\d.]+)", curves[-1].get("d") or "")
    heights = [float(y) for _, y in places]
    assert heights == sorted(heights), "survival only falls"


@pytest.mark.slow
def test_spot_has_no_wall_and_preemptible_has_one() -> None:
    spot = tm.lifetimes("cpu", source="published")
    capped = tm.lifetimes("cpu", source="published", provisioning_model="preemptible", fit=("bathtub5",))
    import numpy as np

    assert spot.model.survival(np.array([26.0])) > 0.8
    assert capped.model.survival(np.array([26.0])) == 0
    assert capped.counted == spot.counted, "an end at the limit is no revocation"
    with pytest.raises(DeclarationError, match="Spot VMs have no such limit"):
        tm.lifetimes("cpu", source="published", fit=("bathtub4",))
    assert (
        "Beyond 24 h, the hazard of the later hours is assumed, from 9 revocations."
        in tm.lifetimes("cpu", source="published", job=30 * 3600).notes
    )


def test_a_file_of_preemptible_vms_gives_spot_no_wall(home: Path) -> None:
    rows = [f"{0.5 + i / 4:.2f},1,k80,us-west1-b" for i in range(40)] + ["24.1,1,k80,us-west1-b"] * 60
    answer = tm.lifetimes("k80", "us-west1", source=str(written(home, rows)))
    assert "100 VMs, 40 revoked" in answer.counted
    assert "an end at that age does not count" in " ".join(answer.notes)
    assert answer.rows[-1]["alive"] == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        (["1,1"], "hours,revoked", "has no column lifetime_hours"),
        (["1,1,k80", "x,1,k80"], "lifetime_hours,revoked,gpu", "line 3: lifetime_hours must be a number"),
        (["1,maybe,k80"], "lifetime_hours,revoked,gpu", "line 2: revoked must be 1 or 0"),
        (["1,k80", "", "# old", "x,k80"], "lifetime_hours,gpu", "line 5: lifetime_hours must be a number"),
        (["1"], "lifetime_hours", "no column gpu, by which the plan selects rows"),
        (["1,v100"], "lifetime_hours,gpu", "has no rows of K80"),
        (["1,k80"] * 29, "lifetime_hours,gpu", "29 revocations of 29 VMs are not enough"),
    ],
)
def test_a_file_s_mistakes_are_told(home: Path, rows: list[str], header: str, said: str) -> None:
    with pytest.raises(TransientError, match=re.escape(said)):
        tm.lifetimes("k80", source=str(written(home, rows, header)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--source", "publishd"], "Did you mean published?"),
        (["--source", "nothere.csv"], "nothere.csv cannot be read"),
        (["--gpu", "k8"], "k80"),
        (["--region", "us-west"], "Did you mean us-west"),
        (["--gpu", "t4", "--source", "published"], "Lifetimes of T4 were never published"),
        (["--gpu", "k80", "--region", "us-west1", "--source", "published"], "11 revocations of 48 VMs are not enough"),
        (["--age", "3h"], "--age needs --job"),
        (["--fit", "gamma"], "--fit"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lifetimes", *words]) in (1, 2)
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_help_and_completion() -> None:
    text = str(arguments.parse("lifetimes", ["-h"]).values["help"])
    assert "--checkpoint-cost" in text
    assert "us-west1" in candidates("transient_lifetimes", "--region ", "")
    assert "t4" in candidates("transient_lifetimes", "--gpu ", "")
    assert "published" in candidates("transient_lifetimes", "--source ", "")
    assert "--provisioning-model" in candidates("transient_lifetimes", "", "--")


@pytest.mark.slow
def test_numpy_and_scipy_come_with_the_first_question_and_their_lack_is_told() -> None:
    program = (
        "import sys, transient_magics as tm, transient_magics.errors, transient_magics.magics\n"
        "assert not {'numpy', 'scipy'} & set(sys.modules), 'loaded too early'\n"
        "sys.modules['scipy'] = None\n"
        "try: tm.lifetimes('k80')\n"
        "except tm.errors.PlanError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert ended.stdout.strip() == 'Planning needs scipy. Run in the checkout: pip install ".[planning]"'
