"""Helps list options in groups, the core before research, and notebooks show their defaults in a column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell

from transient_magics.cli import arguments, options
from transient_magics.cli.help import Overview
from transient_magics.cli.options import declared, grouped
from transient_magics.cli.program import main
from transient_magics.client.cluster_handle import Cluster
from transient_magics.client.recorded_run import Metrics, Result
from transient_magics.errors import TransientError
from transient_magics.journal import Bill
from transient_magics.version import VERSION
from transient_magics.works.runs.handle import Run
from transient_magics.works.studies.handle import Trial


def cells(markup: str) -> list[list[str]]:
    """The texts of a table's cells, row by row. Raises where the HTML is not well-formed."""
    root = ElementTree.fromstring(f"<body>{markup}</body>")
    return [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")]


def test_the_help_of_a_run_lists_every_option_once_in_titled_groups_and_research_last() -> None:
    text = str(arguments.explain(["train"], notebook=True))
    titles = [title for title, _ in grouped(declared("train"))]
    assert titles == ["Arguments", "Cluster", "Data and model", "Steps and batches", "Evaluation", "Checkpoints",
                      "Deadlines and cost", "Research"]  # fmt: skip
    places = [text.index(f"\n{title}:\n") for title in titles]
    assert places == sorted(places)
    for option in declared("train"):
        shown = option.flags[0] if option.flags[0].startswith("-") else option.metavar
        assert len(re.findall(rf"\n  {re.escape(shown)}(?![\w-])", text)) == 1, option.flags
    assert "--damping" not in text[: places[-1]]
    assert "number of latest checkpoints to keep (default: 5)" in text
    assert "number of steps of all workers together (default: as the cell's model.fit declares)" in " ".join(
        text.split()
    )


@pytest.mark.parametrize("verb", ["declare", "train", "study", "job", "bag", "stalls", "plan", "weather", "doctor"])
def test_no_long_help_has_an_option_outside_of_a_titled_group(verb: str) -> None:
    assert "Options" not in [title for title, _ in grouped(declared(verb))]


def test_a_notebook_shows_names_meanings_and_defaults_in_columns() -> None:
    html = arguments.explain(["train"], notebook=True)._repr_html_()
    rows = cells(html)
    assert rows[0] == ["option", "what it does", "default"]
    assert ["--keep N", "number of latest checkpoints to keep", "5"] in rows
    assert ["--train-steps N", "number of steps of all workers together", "as the cell's model.fit declares"] in rows
    assert ["Research"] in rows
    shown = [row[0] for row in rows if len(row) == 3]
    assert len(shown) == 1 + len(declared("train"))
    assert "var(--jp-" in html


def test_what_a_help_shows_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(options.EPILOGS, "list", "<script>")
    html = arguments.explain(["cluster", "list"])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize("notebook", [False, True])
def test_the_overview_has_the_core_first_and_then_research(notebook: bool) -> None:
    text = str(Overview(notebook))
    core, research = text.partition("Research:")[::2]
    for command in ("cluster", "train", "sweep", "job", "bag", "plan", "doctor", "cluster cost"):
        assert f"  {command} " in core.replace("%%", "").replace("%transient_", "").replace("%", "")
    for command in ("weather", "deflate", "stalls", "measure", "lifetimes"):
        assert f"{command} " in research
    assert ["Research"] in cells(Overview(notebook)._repr_html_())
    shown = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    if not notebook:
        assert {*options.program_verbs()} - {*options.aliases().values()} <= shown


def test_help_and_version_answer_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*words: str) -> str:
        assert main(words) == 0
        return capsys.readouterr().out

    assert printed("version") == printed("--version") == f"transient {VERSION}\n"
    assert printed("help") == printed() == printed("-h")
    assert printed("help", "train") == printed("train", "-h")
    assert printed("help", "cluster", "resize") == printed("cluster", "help", "resize")
    assert printed("sweep", "-h").startswith("usage: transient sweep FILE [options]")
    assert printed("help", "version") == printed("help", "help") == printed("help")
    assert main(["help", "tarin"]) == 2
    assert "Unknown command 'tarin'. Did you mean train?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("%%train -h", "usage: %%train [SPEC] [options]"),
        ("\n  %%train -h", "usage: %%train [SPEC] [options]"),
        ("%%transient_plan -h", "usage: %%transient_plan [SPEC] [options]"),
        ("%transient_help", "Magics of transient_magics"),
        ("%transient_help cluster resize", "usage: %transient_cluster resize NAME SPEC [options]"),
        ("%transient_help study", "usage: %%sweep [options]"),
        ("%transient_help catalog", "usage: transient catalog [GPU] [options]"),
    ],
)
def test_a_cell_with_one_line_shows_a_help(cell: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    before = list(shell.input_transformers_cleanup)
    shell.run_cell("%reload_ext transient_magics")
    assert shell.input_transformers_cleanup == before
    shell.run_cell(cell).raise_error()
    assert capsys.readouterr().out.startswith(shown)
    shell.run_cell("%unload_ext transient_magics")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%train --train-steps 5", "The cell has no body"),
        ("%%job", "A job needs a command"),
        ("%transient_help emulator", "emulator works only in a terminal.*Type there: transient emulator -h"),
    ],
)
def test_a_cell_that_cannot_be_followed_is_refused_in_one_sentence(cell: str, message: str) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    with pytest.raises(TransientError, match=message):
        shell.run_cell(cell).raise_error()
    shell.run_cell("%unload_ext transient_magics")


FACTS: Mapping[str, tuple[object, list[str], list[str]]] = {
    "result": (
        Result(300, 0.12345, 482.3, 0.0512, "gs://<b>/c", Metrics({"accuracy": 0.951}, "the first 10"), "<i>"),
        ["Ended at step 300: <i>", "evaluation: accuracy  0.951", "8 min", "$0.051", "gs://<b>/c"],
        ["evaluation: accuracy", "0.951", "8 min", "$0.051", "gs://<b>/c"],
    ),
    "trial": (
        Trial(2, {"lr": 0.0273066, "kind": "<b>"}, "complete", 0.95, (Run("study-1-2", Cluster("tour")),)),
        ["Trial 2, complete: 0.95", "lr    0.02731", "study-1-2"],
        ["lr", "0.02731", "study-1-2"],
    ),
    "bill": (
        Bill(subject="<b>", total=0.02, lines={"run-<1>": 0.0153}, hourly=0.65, on_demand=0.08),
        ["<b>: $0.020 so far", "run-<1>", "$0.015", "per hour now", "$0.650", "at on-demand prices"],
        ["run-<1>", "$0.015", "per hour now", "$0.650", "at on-demand prices", "$0.080"],
    ),
}


@pytest.mark.parametrize("name", FACTS)
def test_results_trials_and_bills_show_their_facts(name: str) -> None:
    value, texts, parts = FACTS[name]
    html = value._repr_html_()  # type: ignore[attr-defined]
    for text in texts:
        assert text in str(value)
    shown = [cell for row in cells(html) for cell in row]
    assert set(parts) <= set(shown)
    assert "var(--jp-" in html
    for raw in ("<b>:", "<b>/c", "<i>", "run-<1>"):
        assert raw not in html


def test_a_parameter_with_the_name_of_a_fact_of_a_trial_is_shown_beside_it() -> None:
    params = {"runs": 7, "reason": "warm", "lr": 0.1}
    trial = Trial(2, params, "failed", None, (Run("study-1-2", Cluster("tour")),), "out of memory")
    rows = [["runs (parameter)", "7"], ["reason (parameter)", "warm"], ["lr", "0.1"],
            ["runs", "study-1-2"], ["reason", "out of memory"]]  # fmt: skip
    assert cells(trial._repr_html_()) == rows
    assert [re.split(" {2,}", line.strip()) for line in str(trial).splitlines()[1:]] == rows
