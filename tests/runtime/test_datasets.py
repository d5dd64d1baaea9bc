"""What a cell's own datasets and structures come to: where reading begins, evaluations of a part, names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import programs
from transient_magics.protocol.step_parts import examples_words, part_words
from transient_magics.runtime.training.user_model import structure
from transient_magics.runtime.training.user_model.structure import Layout, unique

pytestmark = [pytest.mark.training, pytest.mark.slow]

COUNT = 400


def found(module: str, *arguments: object) -> dict[str, Any]:
    return json.loads(programs.run(f"tests.runtime.{module}", *arguments, own=True).splitlines()[-1])


@pytest.mark.parametrize("kinds", ["some", pytest.param("all", marks=pytest.mark.nightly)])
def test_whatever_a_dataset_is_built_from_each_session_begins_elsewhere_in_it(tmp_path: Path, kinds: str) -> None:
    answer = found("dataset_places", tmp_path, kinds)
    for name, read in answer["read"].items():
        assert len(set(read["firsts"])) > 1, f"{name}: {read['firsts']}"
        # Where the first examples are shuffled among themselves, some are in two of a session's epochs.
        assert read["different"] >= (COUNT - 16 if "shuffled" in name else COUNT), name
        if "again and again" not in name:
            assert read["evaluated"] == list(range(COUNT)), name
    notes = answer["notes"]
    assert notes.pop("endless").startswith("input_fn's dataset is endless, or cannot be counted in 1 s: each")
    outside = notes.pop("slow, made outside")
    assert outside.startswith(
        "reading through input_fn's dataset takes more than 1 s: each worker begins at one of the first "
    )
    assert outside.endswith(" of its 1,000 elements. Create it inside input_fn.")
    assert set(notes.values()) == {""}


def test_an_evaluation_that_takes_too_long_is_of_a_part_drawn_once_for_the_run(tmp_path: Path) -> None:
    answer = found("evaluated_parts", tmp_path)
    for name, (first, *again) in answer.items():
        mean, examples = first["metrics"]["mean"], first["examples"]
        assert first["metrics"]["loss"] == pytest.approx(mean, rel=1e-4), name
        for later in again:
            assert (later["metrics"], later["examples"]) == (first["metrics"], examples), name
        if name in ("arrays, time", "dataset, time", "not known, time", "arrays, 0 batches"):
            assert (examples, first["complete"], mean) == (2000, True, 999.5), name
        else:
            assert not first["complete"], name
        if name in ("arrays, no time", "dataset, no time"):
            assert first["of"] == 2000
            assert 100 < examples < 1500, name
            assert abs(mean - 1000) < 250, f"{name}: the first ones have a mean of {examples / 2}"
        if "end" in name:
            assert first["endless"], name
    part = {"batches": 3, "examples": 60, "complete": False, "of": 2000}
    assert {name: answer["arrays, 3 batches"][0][name] for name in part} == part
    assert answer["endless, 0 batches"][0]["batches"] == 100, "all of what has no end"


def test_names_of_features_outputs_and_weights_may_be_any(tmp_path: Path) -> None:
    answer = found("odd_names", tmp_path)
    for name, used in answer.items():
        for what in ("predicted", "exported", "restored", "on other data"):
            assert used[what] < 1e-6, f"{name}: {what}"
    assert answer["odd names"]["inputs"][:3] == ["petal length (cm)", "größe", "a/b"]
    assert answer["texts"]["inputs"] == ["text", "city"]
    assert answer["nested"]["inputs"] == ["pair/first", "pair/second/0", "pair/second/1/7"]
    assert answer["nested"]["outputs"] == ["y one", "z/0", "z/1"]
    weights = answer["twins"]["weights"]
    assert len(set(weights)) == len(weights) == 12


def test_names_that_are_alike_get_numbers_and_others_stay() -> None:
    assert unique(["a/k", "b", "a/k", "A/K", "a/k_1", "a/k"]) == ["a/k", "b", "a/k_2", "A/K_3", "a/k_1", "a/k_4"]
    layout = Layout(({"a": {"b": 1}, "a/b": 2}, (3, 4)))
    assert list(layout.names.values()) == ["a/b", "a/b_1", "labels_0", "labels_1"]
    assert layout.structured(layout.flat({"a/b": 2, "a": {"b": 1}}, (3, 4)))[:2] == ({"a": {"b": 1}, "a/b": 2}, (3, 4))


def test_arrays_of_any_names_go_through_a_file(tmp_path: Path) -> None:
    import numpy

    for names in (("x", "labels"), ("file", "größe (cm)"), ("names", "a/b")):
        given = {name: numpy.arange(number + 2) for number, name in enumerate(names)}
        structure.write_arrays(tmp_path / "some.npz", given)
        read = structure.read_arrays(tmp_path / "some.npz")
        assert {name: array.tolist() for name, array in read.items()} == {
            name: array.tolist() for name, array in given.items()
        }


def test_the_part_of_a_split_in_words() -> None:
    assert examples_words(360, True) == "all 360 examples"
    assert examples_words(1000, False, 50_000) == "1,000 of 50,000 examples"
    assert examples_words(12_800, False) == "the first 12,800 examples"
    assert examples_words(1, False, 0, True) == "1 example of an endless dataset, or one too long to count"
    assert (part_words(360, True), part_words(0, False), part_words(2, False, 3)) == ("", "", "2 of 3 examples")
