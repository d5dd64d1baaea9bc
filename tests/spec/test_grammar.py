"""The grammar of a SPEC: what it accepts, and how it says no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import ACCELERATORS, ZONES
from transient_magics.errors import DeclarationError, unknown
from transient_magics.spec import WorkerGroup, parse_groups, render_groups

groups = st.lists(
    st.builds(
        WorkerGroup,
        accelerator=st.sampled_from(sorted(ACCELERATORS)),
        count=st.integers(1, 60),
        zone=st.none() | st.sampled_from(ZONES),
    ),
    min_size=1,
    max_size=8,
).map(tuple)


def parse(text: str) -> tuple[WorkerGroup, ...]:
    return parse_groups(text, ACCELERATORS, ZONES)


def parse_or_explain(text: str) -> tuple[WorkerGroup, ...] | str:
    try:
        return parse(text)
    except DeclarationError as error:
        return str(error)


@given(groups)
def test_every_declaration_reads_back_as_itself(declared: tuple[WorkerGroup, ...]) -> None:
    assert parse(render_groups(declared)) == declared


@given(groups, st.data())
def test_case_and_blanks_do_not_matter(declared: tuple[WorkerGroup, ...], data: st.DataObject) -> None:
    text = render_groups(declared)
    spaced = "".join(
        (letter.upper() if data.draw(st.booleans()) else letter) + " " * data.draw(st.integers(0, 1)) for letter in text
    )
    assert parse(spaced) == declared


@given(st.text(max_size=30))
def test_any_other_text_ends_in_one_sentence(text: str) -> None:
    outcome = parse_or_explain(text)
    assert outcome
    assert "Traceback" not in str(outcome)


@pytest.mark.parametrize(
    ("text", "column", "hint"),
    [
        ("k8x4", 1, "k80"),
        ("k80x4+v10x2", 7, "v100"),
        ("k80x4@us-west1-q", 7, "us-west1-c"),
        ("k80x", 5, "count"),
        ("k80x0", 5, "from 1"),
        ("k80*4", 4, "'*'"),
        ("k80x4+", 7, "GPU"),
        ("k80x4@", 7, "zone"),
    ],
)
def test_a_mistake_names_its_column_and_a_fix(text: str, column: int, hint: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        parse(text)
    assert f"column {column}:" in str(raised.value)
    assert hint in str(raised.value)


def test_a_bare_gpu_is_one_worker() -> None:
    assert parse("v100") == (WorkerGroup("v100"),)


def test_nothing_is_no_cluster() -> None:
    with pytest.raises(DeclarationError, match="at least one group"):
        parse("  ")


@pytest.mark.parametrize(
    ("name", "names", "told"),
    [
        ("tuor", ["lake", "tour"], "Did you mean tour?"),
        ("run1", ["run-1", "run-2"], "Did you mean run-1?"),
        ("run-9", ["run-1", "run-2"], "Known: run-2, run-1."),
        ("sea", ["lake", "tour"], "Known: tour, lake."),
        ("sea", [f"run-{number}" for number in range(9)], "Known: run-8, run-7, run-6, run-5, run-4, run-3, ..."),
        ("sea", [], ""),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_the_nearest_or_the_latest(
    name: str, names: list[str], told: str
) -> None:
    assert (
        str(unknown("run", name, names, where="lab", numbered=True)) == f"Unknown run '{name}' (lab). {told}".rstrip()
    )


def test_an_unknown_word_is_refused_with_the_closest_or_the_first_of_all() -> None:
    letters = [*"ponmlkjihgfedcba"]
    assert str(unknown("GPU", "k8", ["t4", "k80"])) == "Unknown GPU 'k8'. Did you mean k80?"
    assert unknown("letter", "zero", letters).fix == f"Known: {', '.join('abcdefghijklmn')}, ..."
    assert str(unknown("zone", "x", [], at="a.csv, line 2", otherwise="Name one.")) == (
        "a.csv, line 2: unknown zone 'x'. Name one."
    )
