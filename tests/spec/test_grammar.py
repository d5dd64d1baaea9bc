"""The grammar of a SPEC: what it accepts, and how it says no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import ACCELERATORS, ZONES
from transient_magics.errors import DeclarationError
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
