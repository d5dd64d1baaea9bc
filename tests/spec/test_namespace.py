"""One namespace for all work of a cluster: every pair of kinds, and the names that studies and bags reserve."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.kinds import KINDS
from transient_magics.protocol import layout
from transient_magics.spec.namespace import dask_name, refusal

RESERVED = {
    "study-1-0": "study",
    "study-1-12": "study",
    "study-1-0-3": "study",
    layout.shared_input("study-1"): "study",
    dask_name("bag-1", 1): "bag",
    dask_name("bag-1", 20): "bag",
}


@pytest.mark.parametrize(("there", "new"), list(product(KINDS, KINDS)))
def test_no_two_works_of_a_cluster_have_one_name(there: str, new: str) -> None:
    assert refusal("lab", new, "night", {"night": there}) == f"lab has a {KINDS[there]} night already"
    assert not refusal("lab", new, "day", {"night": there})


@pytest.mark.parametrize(("new", "name"), list(product(KINDS, RESERVED)))
def test_names_that_a_study_or_a_bag_reserves_are_not_free(new: str, name: str) -> None:
    taken: dict[str, str] = {"study-1": "study", "bag-1": "bag"}
    holder = RESERVED[name]
    why = refusal("lab", new, name, taken)
    assert why.startswith(f"lab has a {holder} {holder}-1, which reserves the name {name} for its ")
    owner = f"{holder}-1"
    assert not refusal("lab", "run" if holder == "study" else "dask", name, taken, owner=owner)
    others: dict[str, str] = {"study-1": "job", "bag-1": "run"}
    assert not refusal("lab", new, name, others), "other kinds reserve nothing"


@pytest.mark.parametrize("there", KINDS)
def test_a_study_needs_the_names_of_its_trials(there: str) -> None:
    for name in ("study-1-0", "study-1-12-3", layout.shared_input("study-1")):
        why = refusal("lab", "study", "study-1", {name: there})
        assert why == f"lab has a {KINDS[there]} {name} already, and a trial of study-1 would need that name"
    assert not refusal("lab", "study", "study-1", {"study-1-a": there, "study-10": there, "study-1-0-0-0": there})


@pytest.mark.parametrize("stem", ["run", "job", "bag", "study", "stalls", "dask"])
def test_a_study_does_not_take_the_automatic_names(stem: str) -> None:
    assert refusal("lab", "study", stem, {}).startswith(f"{stem}-1, {stem}-2 and so on are automatic names")
    assert not refusal("lab", "job", stem, {})


def test_bags_with_long_names_share_what_both_reserve() -> None:
    first, second = "b" * 40, "b" * 39
    name = dask_name(first, 1)
    assert name == dask_name(second, 1)
    taken: dict[str, str] = {first: "bag", second: "bag"}
    assert refusal("lab", "job", name, taken)
    assert not refusal("lab", "dask", name, taken, owner=second)


words = st.sampled_from(["a", "b", "a-1", "b-d1", "a-1-2", "a-input"])


@given(st.lists(st.tuples(st.sampled_from(list(KINDS)), words), max_size=6))
def test_the_order_of_declarations_never_gives_a_trial_the_name_of_other_work(work: list[tuple[str, str]]) -> None:
    taken: dict[str, str] = {}
    for kind, name in work:
        if not refusal("lab", kind, name, taken):
            taken[name] = kind
    studies = [name for name, kind in taken.items() if kind == "study"]
    trials = {f"{study}{end}" for study in studies for end in ("-1", "-1-2", "-input")}
    assert not trials & {*taken}
