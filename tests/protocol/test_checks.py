"""What each check lets in and what it says of the rest, to the last value; and the line on which it stood."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from transient_magics.protocol import checks, vm_events
from transient_magics.protocol.vm_events import from_agent, from_chief, line_fields

BEFORE, AFTER = 2**63 - 1, 2**63
DAY = 86_400 * 10**9
NOW = 1_800_000_000 * 10**9


@dataclass(frozen=True)
class Thing:
    """A class with every kind of field."""

    number: checks.Count
    name: str = ""


def nested(depth: int, innermost: Any = 1, *, objects: bool = False) -> Any:
    value = innermost
    for _ in range(depth):
        value = {"a": value} if objects else [value]
    return value


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (
            int,
            (0, -7, BEFORE, -BEFORE),
            {
                AFTER: f"must be a whole number, not {AFTER}",
                -AFTER: f"must be a whole number, not -{AFTER}",
                1.5: "must be a whole number, not 1.5",
                True: "must be a whole number, not True",
                "7": "must be a whole number, not '7'",
                None: "must be a whole number, not None",
            },
        ),
        (
            float,
            (0, 1.5, BEFORE, -BEFORE),
            {
                AFTER: f"must be a number, not {AFTER}",
                -AFTER: f"must be a number, not -{AFTER}",
                float("inf"): "must be a number, not inf",
                float("nan"): "must be a number, not nan",
                True: "must be a number, not True",
                "1": "must be a number, not '1'",
            },
        ),
        (bool, (True, False), {1: "must be true or false, not 1", None: "must be true or false, not None"}),
        (type(None), (None,), {0: "must be null, not 0", "": "must be null, not ''"}),
        (
            str,
            ("", "né", "x" * 4096, "é" * 2048),
            {
                7: "must be a text, not 7",
                None: "must be a text, not None",
                "x" * 4097: "must have at most 4096 bytes, and has 4097 characters",
                "é" * 2048 + "x": "must have at most 4096 bytes, and has 2049 characters",
                "\ud800": "surrogates not allowed",
            },
        ),
        (checks.Count, (0, BEFORE), {-1: "must be at least 0, not -1", "x": "must be a whole number, not 'x'"}),
        (checks.Amount, (0, 0.5), {-0.5: "must be at least 0, not -0.5"}),
        (checks.Name, ("worker-0",), {"": "'' is not a valid name", "../..": "'../..' is not a valid name"}),
        (checks.NameOrNone, ("", "worker-0"), {"/": "'/' is not a valid name", 0: "must be a text, not 0"}),
        (
            Literal["ps", "worker"],
            ("ps", "worker"),
            {
                "chief": "must be one of ps, worker, not 'chief'",
                7: "must be one of ps, worker, not 7",
                None: "must be one of ps, worker, not None",
            },
        ),
        (int | str | None, (7, "x", None), {1.5: "must be a text, not 1.5"}),
        (float | None, (7, None), {"x": "must be a number, not 'x'"}),
    ],
    ids=lambda value: "" if isinstance(value, (tuple, dict)) else re.sub(r"<function (\S+) at \w+>", r"\1", str(value)),
)
def test_a_value_is_let_in_or_what_is_wrong_with_it_is_said(
    annotation: Any, good: tuple[Any, ...], bad: dict[Any, str]
) -> None:
    check = checks.of(annotation)
    for value in good:
        assert check(value) is value
    for value, said in bad.items():
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
            check(value)
        assert str(refused.value).endswith(said)


def test_bounds_are_let_in_and_what_is_beyond_them_is_not() -> None:
    from_two, small = checks.of(Annotated[int, checks.within(2, 5)]), checks.within(-9, 5)
    both = checks.of(Annotated[int, checks.at_least(0), small])
    assert [from_two(2), from_two(5), both(0), both(5), small(-9)] == [2, 5, 0, 5, -9]
    for check, value, said in (
        (from_two, 1, "must be from 2 to 5, not 1"),
        (from_two, 6, "must be from 2 to 5, not 6"),
        (both, -1, "must be at least 0, not -1"),
        (both, 6, "must be from -9 to 5, not 6"),
        (small, -10, "must be from -9 to 5, not -10"),
    ):
        with pytest.raises(ValueError, match=f"^{said}$"):
            check(value)


def test_many_values_are_let_in_each_by_its_check_up_to_so_many() -> None:
    numbers, pair = checks.of(tuple[int, ...]), checks.of(tuple[int, str])
    by_name = checks.of(Mapping[checks.Name, int])
    assert numbers([1, 2]) == numbers((1, 2)) == (1, 2)
    assert numbers([0] * 1024) == (0,) * 1024
    assert pair([1, "x"]) == pair((1, "x")) == (1, "x")
    assert checks.of(tuple[int])([1]) == (1,)
    assert by_name({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert len(by_name({f"n{number}": 1 for number in range(1024)})) == 1024
    assert checks.of(tuple[tuple[float, float, float], ...])([[1, 2.0, 3]]) == ((1, 2.0, 3),)
    for check, value, said in (
        (numbers, [0] * 1025, "must have at most 1024 entries, not 1025"),
        (numbers, 7, "must be a list, not 7"),
        (numbers, {"a": 1}, "must be a list, not {'a': 1}"),
        (numbers, [1, "x"], "must be a whole number, not 'x'"),
        (pair, [1], "must be a list of 2 entries, not [1]"),
        (pair, "ab", "must be a list of 2 entries, not 'ab'"),
        (pair, ["x", 1], "must be a whole number, not 'x'"),
        (by_name, [1], "must be an object, not [1]"),
        (by_name, {f"n{number}": 1 for number in range(1025)}, "must have at most 1024 entries, not 1025"),
        (by_name, {"": 1}, "'' is not a valid name"),
        (by_name, {"a": "x"}, "must be a whole number, not 'x'"),
    ):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
            check(value)
        assert str(refused.value) == said


def test_any_json_is_let_in_but_for_what_is_deep_or_none() -> None:
    for value in (None, True, "x", 7, 1.5, [1, [None]], {"a": {"b": [1]}}, (1, 2), {}, []):
        assert checks.anything(value) is value
    for objects in (False, True):
        checks.anything(nested(16, objects=objects))
        with pytest.raises(ValueError, match=r"^the JSON has too many levels$"):
            checks.anything(nested(17, objects=objects))
        with pytest.raises(ValueError, match=r"^must be a number, not nan$"):
            checks.anything(nested(3, float("nan"), objects=objects))
    for value, said in (
        (float("inf"), "must be a number, not inf"),
        (b"x", "must be a JSON value, not bytes"),
        ({7: 1}, "a key must be a text, not 7"),
    ):
        with pytest.raises(ValueError, match=f"^{said}$"):
            checks.anything(value)


def test_a_line_is_parsed_up_to_so_many_bytes() -> None:
    longest = b'"' + b"x" * (2**20 - 2) + b'"'
    assert checks.parsed(longest) == "x" * (2**20 - 2)
    assert checks.parsed('{"a": 1.5}') == checks.parsed_object(b'{"a": 1.5}') == {"a": 1.5}
    for read, line, said in (
        (checks.parsed, longest + b" ", "the line has 1048577 bytes, more than 1048576"),
        (checks.parsed, b"[NaN]", "NaN is not a JSON number"),
        (checks.parsed, b"-Infinity", "-Infinity is not a JSON number"),
        (checks.parsed, b"[" * 200_000, "the JSON has too many levels"),
        (checks.parsed_object, b"[1]", "the line is not a JSON object"),
    ):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
            read(line)
        assert str(refused.value) == said


def test_a_class_is_built_of_what_it_knows_and_the_field_that_is_wrong_is_named() -> None:
    assert checks.built(Thing, {"number": 7, "something_new": object()}) == Thing(7)
    assert checks.of(Thing)({"number": 7, "name": "x"}) == Thing(7, "x")
    assert checks.known_fields(Thing, {"name": "x", "something_new": 1}) == {"name": "x"}
    for values, said in (
        ([1], "must be an object, not [1]"),
        ({"number": -1}, "number: must be at least 0, not -1"),
        ({"number": 7, "name": 7}, "name: must be a text, not 7"),
        ({}, "Thing.__init__() missing 1 required positional argument: 'number'"),
    ):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
            checks.built(Thing, values)
        assert str(refused.value) == said
    with pytest.raises(TypeError, match=r"^there is no check for the annotation <class 'set'>$"):
        checks.of(set)
    with pytest.raises(TypeError, match=r"^there is no check for the annotation list\[int\]$"):
        checks.of(list[int])


def test_what_is_told_is_no_longer_than_what_is_let_in() -> None:
    assert checks.clipped("é" * 4096) == "é" * 2048
    assert checks.clipped("x" + "é" * 4096) == "x" + "é" * 2047, "no half of a letter"
    assert checks.clipped("a\ud800b") == "a?b"
    failed = vm_events.TrainFailed(run="run-1", reason="x" * 5000, step=7)
    assert line_fields(failed) == {"run": "run-1", "reason": "x" * 4096, "step": 7}


def test_a_line_is_of_its_run_its_time_and_its_kinds_and_what_is_wrong_is_said() -> None:
    def line(**changes: Any) -> bytes:
        return json.dumps({"kind": "train.started", "time": NOW, "run": "run-1", "step": 7, **changes}).encode()

    taken = from_chief(line(seq=12), "run-1", NOW, NOW)
    assert taken == vm_events.TrainStarted(time=NOW, run="run-1", step=7), "numbers are the controller's to give"
    assert from_chief(line(seq="x"), "run-1", NOW, NOW) == taken
    for time in (NOW - DAY, NOW + 1000 + DAY):
        assert from_chief(line(time=time), "run-1", NOW, NOW + 1000).time == time
    agent = {"kind": "vm.traffic", "run": None, "sent": 1, "received": 2}
    assert from_agent(line(**agent), NOW, NOW) == vm_events.TrafficCounted(time=NOW, sent=1, received=2)
    late = f"the time of a train.started event is out of range ({(NOW + DAY) // 10**9} s since 1970)"
    early = f"the time of a train.started event is out of range ({(NOW - DAY) // 10**9} s since 1970)"
    for said, wrong in (
        (late, line(time=NOW + DAY + 1)),
        (early, line(time=NOW - DAY - 1)),
        ("the train.started event belongs to another run", line(run="run-2")),
        ("a VM sent an event of the unexpected kind 'vm.deleted'", line(kind="vm.deleted")),
        ("a VM sent an event of the unexpected kind 7", line(kind=7)),
        ("a VM sent an event of the unexpected kind 'vm.traffic'", line(**agent)),
        ("step: must be at least 0, not -1", line(step=-1)),
        ("the line is not a JSON object", b"7"),
    ):
        with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
            from_chief(wrong, "run-1", NOW, NOW)
        assert str(refused.value) == said
    with pytest.raises(ValueError, match=r"^a VM sent an event of the unexpected kind 'train\.started'$"):
        from_agent(line(), NOW, NOW)
