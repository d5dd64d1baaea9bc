"""The pages are true: the tour runs as a notebook, commands exist, links lead somewhere, and Sphinx finds no fault."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import homes
from tests.notebooks import notebook_of, runner_of
from transient_emulator.weather.settings import Settings
from transient_magics import client
from transient_magics.catalog.prices import worker_price
from transient_magics.cli import arguments, program
from transient_magics.cli.options import aliases, declared
from transient_magics.client.project.weather import replayed_traces

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README, TOUR, PLANNING, EMULATOR, DEFLATION = (
    path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *(DOCS / f"{page}.md" for page in ("tour", "planning", "emulator", "deflation")))
)
GOOGLE = DOCS / "google-cloud.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
PROGRAM = [sys.executable, "-m", "transient_magics.cli.program"]


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def own_home() -> Iterator[Path]:
    with homes.own_home() as home:
        yield home


@pytest.mark.nightly
@pytest.mark.training
def test_the_tour_runs_from_its_first_cell_to_its_last(own_home: Path) -> None:
    from nbformat import validate

    cells = [block.rstrip() for text in (TOUR, PLANNING) for block in blocks("python", text)]
    notebook = notebook_of(*cells)
    runner_of(notebook, own_home).execute()
    said = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.outputs if output.output_type == "stream"
    )
    assert re.search(r"^2\d\d 0\.\d+ .*model\.ckpt-2\d\d$", said, re.MULTILINE), said
    assert re.search(r"\$0\.\d{4}, on demand \$0\.\d{4}", said)
    assert client.cluster("tour").state.over
    assert [event.vm for event in client.cluster("tour").events("vm.preemption_notice")] == ["worker-1"]  # type: ignore[attr-defined]
    assert validate(notebook) is None


def test_the_first_cells_are_those_of_the_tour_in_its_order() -> None:
    rest = iter(blocks("python", TOUR))
    assert all(cell in rest for cell in blocks("python", README))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_make_target_that_is_named_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(encoding="utf-8"), re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_file_that_is_named_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rooms = [each.name for each in (*ROOT.iterdir(), *(ROOT / "transient_magics").iterdir()) if each.is_dir()]
    for name in re.findall(rf"`((?:{'|'.join(rooms)})/[\w./-]+\.[a-z]+)[`:]", text):
        assert (ROOT / name).exists() or (ROOT / "transient_magics" / name).exists(), name


@functools.cache
def defined(path: Path) -> set[str]:
    """The names that a file defines: functions, classes, what is assigned, and in classes the same behind a dot."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        return set(re.findall(r"^(?:export )?(?:async )?(?:function|const|class) (\w+)", text, re.MULTILINE))
    return set(names_in(ast.parse(text).body))


def names_in(body: list[ast.stmt], before: str = "") -> Iterator[str]:
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield before + each.name
        if isinstance(each, ast.ClassDef):
            yield from names_in(each.body, f"{before}{each.name}.")
        if isinstance(each, ast.Assign | ast.AnnAssign):
            assigned = each.targets if isinstance(each, ast.Assign) else [each.target]
            inner = [node for target in assigned for node in ast.walk(target)]
            yield from (before + node.id for node in inner if isinstance(node, ast.Name))


PLACES = [
    found
    for path in DOCUMENTS
    for found in re.findall(r"`([\w./-]+\.(?:py|js)): ([\w.]+)`", path.read_text(encoding="utf-8"))
]


def test_every_name_that_a_page_places_in_a_file_is_defined_there() -> None:
    assert len(PLACES) > 100, "in docs/where.md"
    lost = []
    for place, name in PLACES:
        file = next((each for each in (ROOT / "transient_magics" / place, ROOT / place) if each.is_file()), None)
        if file is None or name not in defined(file):
            lost.append(f"{place}: {name}")
    assert not lost


def test_the_code_map_names_one_place_in_each_of_its_rows() -> None:
    text = (DOCS / "where.md").read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (.*) \|$", text, re.MULTILINE) if not row.startswith("behaviour")]
    assert all(re.search(r" \| `[^`]+\.(py|js): [\w.]+`$", row) for row in rows), rows
    behaviours = [row.rpartition(" | ")[0] for row in rows]
    assert 100 < len(set(behaviours)) == len(behaviours) <= 150


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    for place in re.findall(r"\]\((?!https:)(.*?)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = place.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), place
        assert not anchor or anchor in anchors(target), place


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_page_that_is_named_as_written_from_the_code_is_written(path: Path) -> None:
    named = re.findall(r"`((?:reference|gallery)/\w+)`", path.read_text(encoding="utf-8"))
    assert [place for place in named if not written(place)] == []


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def written(place: str) -> bool:
    """Whether a page is one of those that are written from the code."""
    folder, _, page = place.partition("/")
    if place == "gallery/index":
        return True
    return folder == "reference" and page.removesuffix(".md") in reference_pages()


@functools.cache
def reference_pages() -> set[str]:
    """The names of the pages that `docs/generated.py` writes."""
    return set(runpy.run_path(str(DOCS / "generated.py"))["pages"]())


@pytest.mark.slow  # `make docs` does so, too
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "docs", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300, encoding="utf-8"
    )
    assert built.returncode == 0, built.stderr
    options = (tmp_path / "reference" / "train.html").read_text(encoding="utf-8")
    index = (tmp_path / "genindex.html").read_text(encoding="utf-8")
    for option in declared("train"):
        if option.is_position:
            continue  # Sphinx gives positional arguments another anchor
        assert all(f'id="cmdoption-transient-train-{spelling.lstrip("-")}"' in options for spelling in option.spellings)
        assert all(f">{spelling}" in index for spelling in option.spellings)
    assert "vm.preemption_notice" in (tmp_path / "reference" / "events.html").read_text(encoding="utf-8")


def shown(path: Path) -> set[str]:
    """The lines of ours that a document shows, in blocks and between words, as typed behind `transient` or a magic."""
    text = path.read_text(encoding="utf-8")
    typed = "\n".join(blocks("text", text) + blocks("python", text) + blocks("sh", text))
    found = re.findall(r"^(?:%%?transient_|%%(?=train|bag)|transient )(.*)$", typed, re.MULTILINE)
    return {*found, *re.findall(r"`(?:%%?transient_|%%(?=train |bag )|transient )([^`]+)`", text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_line_that_is_shown_is_understood(path: Path) -> None:
    for line in shown(path):
        verb, *words = arguments.split(line)
        if verb in ("help", "version"):
            assert verb == "version" or arguments.explain([word for word in words if word != "COMMAND"]), line
            continue
        verb = aliases().get(verb, verb)
        if "-h" in words:
            assert arguments.parse(verb, words).verb == "help", line
            continue
        if verb == "emulator":
            with pytest.raises(SystemExit) as ended:
                program.main([*line.split("#")[0].split(), "-h"])
            assert ended.value.code == 0, line
            continue
        if verb == "train":  # a body or a file brings what lacks
            from_file = words[0] == "cell.py"
            words = [word for word in words if word != "..."] + ["--train-steps", "1"]
            assert arguments.parse(verb, words, file=from_file).verb == "train", line
        elif verb == "study":
            assert arguments.parse(verb, [*words, "--train-steps", "1"], file=True).verb == "study", line
        elif verb == "bag":
            from_file = words[0] == "FILE.py"
            words += [] if "--over" in words else ["--over", "x=0:1", "--jobs", "1"]
            assert arguments.parse(verb, words, file=from_file).verb == "bag", line
        elif verb == "plan" and words and not {*words} & {"--workload", "--model", "--cell", "--bag"}:
            assert arguments.parse(verb, [*words, "--cell", "-"]).verb == "plan", line  # a body brings it
        elif line not in ("cluster", "plan"):  # those open a panel, and are what the text speaks of
            assert arguments.parse(verb, words).verb != "help" or verb == "image", line


def test_the_documents_show_lines_of_every_kind() -> None:
    typed = {line.split()[0] for path in DOCUMENTS for line in shown(path)}
    verbs = {aliases().get(verb, verb) for verb in typed}
    assert {*arguments.verbs("transient")} - verbs == {"tensorboard"}, "whose line there is Jupyter's own"


def test_every_weather_that_it_shows_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("market.csv").write_text(
        "zone,gpu,gpus_per_vm,seconds,available\nus-east-1f,v100,1,0,3\nus-east-1f,v100,1,900,\n", encoding="utf-8"
    )
    lines = re.findall(r"^%transient_weather (.*)$", "\n".join(blocks("text", EMULATOR + DEFLATION)), re.MULTILINE)
    assert lines
    for line in lines:
        values = dict(arguments.parse("weather", arguments.split(line)).values)
        assert values.pop("name") == "tour"
        values.pop("reset", None)
        if said := values.get("availability"):
            values["availability"] = replayed_traces(str(said), [("us-west1-b", "k80")])
        if said := values.get("reclaim"):
            values["reclaim"] = {"said": said, "vms": ["1", "2"], "cluster": "tour"}
        Settings().changed(values)


def typed(text: str) -> list[str]:
    """The lines with our own program that a document's shell blocks have."""
    return [line for block in blocks("sh", text) for line in block.splitlines() if line.startswith("transient ")]


@pytest.mark.slow
def test_what_is_rehearsed_on_the_emulator_can_be_typed_as_it_stands(own_home: Path) -> None:
    rehearsed = [line for line in typed(GOOGLE.read_text(encoding="utf-8")) if "my-project" not in line]
    assert len(rehearsed) == 3
    for line in rehearsed:
        ended = subprocess.run(
            [*PROGRAM, *line.split()[1:]], capture_output=True, text=True, check=False, timeout=300, encoding="utf-8"
        )
        assert ended.returncode == 0, ended
        assert ended.stdout


def test_what_the_cluster_on_google_costs_an_hour_is_what_the_catalog_says() -> None:
    (line,) = re.findall(r"^%transient_cluster (l4x4 .*)$", README, re.MULTILINE)
    spec = client.specify(client.Declaration(**arguments.parse("cluster", arguments.split(line)).values))
    promise = r"Four L4 on Spot and one parameter server come to about \$([\d.]+) an hour"
    assert re.findall(promise, " ".join(README.split())) == [f"{spec.hourly:.1f}"]


def test_the_h100_costs_on_google_what_the_catalog_says() -> None:
    price = worker_price("h100", "us-central1-a")
    assert f"${price.transient:.2f} on Spot in us-central1 at Google" in " ".join(README.split())


def test_every_benchmark_of_the_evidence_exists() -> None:
    programs = re.findall(r"`(bench_\w+\.py)", (DOCS / "evidence.md").read_text(encoding="utf-8"))
    assert len(programs) > 10
    assert [program for program in programs if not (ROOT / "benchmarks" / program).is_file()] == []


def test_the_picture_is_there() -> None:
    (picture,) = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert (ROOT / picture).stat().st_size > 10_000
