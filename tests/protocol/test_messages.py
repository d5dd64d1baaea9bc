"""Messages between processes: what is sent is what is heard, as it always was; nothing else raises but ValueError."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from transient_magics.protocol import agent_commands, checks, cluster_commands
from transient_magics.protocol.messages import Message, encode, kinds

Read = Callable[[bytes], Message]
BORDERS: dict[str, tuple[Any, Read]] = {
    "cluster": (cluster_commands.Command, cluster_commands.read),
    "agent": (agent_commands.Command, agent_commands.read),
}
CLASSES = [(cls, read) for union, read in BORDERS.values() for cls in typing.get_args(union)]

JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**62), 2**62) | some.floats(-1e18, 1e18) | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_NAMES = some.from_regex(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?", fullmatch=True)


def let_in(annotation: Any) -> some.SearchStrategy[Any]:
    """Values that may stand in a field that is annotated so."""
    if annotation == checks.Name:
        return _NAMES
    if annotation == checks.NameOrNone:
        return some.just("") | _NAMES
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return let_in(inner[0])
    if origin in (typing.Union, types.UnionType):
        return some.one_of(*map(let_in, inner))
    if origin is typing.Literal:
        return some.sampled_from(inner)
    if origin is tuple:
        return some.lists(let_in(inner[0]), min_size=1, max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return some.dictionaries(some.text(max_size=8), JSON, max_size=3)
    plain: dict[Any, some.SearchStrategy[Any]] = {
        int: some.integers(1, 2**62), float: some.floats(0, 1e18), bool: some.booleans(), type(None): some.none(),
        str: some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    }  # fmt: skip
    return plain[annotation] if annotation in plain else made(annotation)


def made(cls: type[Any]) -> some.SearchStrategy[Any]:
    """Instances of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return some.builds(cls, **{each.name: let_in(hints[each.name]) for each in fields(cls)})


@settings(max_examples=40)
@given(some.data())
def test_what_is_sent_is_heard(data: some.DataObject) -> None:
    for cls, read in CLASSES:
        said = data.draw(made(cls))
        assert read(said.line) == said, said.line
        newer = encode({**said.to_dict(), "of a newer version": [7]})
        assert read(newer) == said


@given(JSON, JSON, some.data())
def test_whatever_is_said_nothing_but_a_refusal_is_raised(value: Any, other: Any, data: some.DataObject) -> None:
    for union, read in BORDERS.values():
        known = kinds(union)
        do = data.draw(some.sampled_from(sorted(known)))
        names = data.draw(some.lists(some.sampled_from([each.name for each in fields(known[do])] or ["do"])))
        for values in (
            value,
            {"do": value},
            {"do": do, **dict.fromkeys(names, value), **dict.fromkeys(names[1:], other)},
        ):
            try:
                said = read(encode(values))
            except ValueError:
                continue
            assert isinstance(said, known[do])
            assert read(said.line) == said


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    "line",
    [b"", b"7", b"null", b"[1]", b"{", b"{}", b'{"do":7}', b'{"do":[]}', b'{"do":"dance"}', b"\xff", b"[" * 200_000,
     b'{"do":"ping","a":"' + b"x" * 2**20 + b'"}'],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)  # fmt: skip
def test_a_line_that_is_no_message_is_refused(border: str, line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons, one way out)
        BORDERS[border][1](line)


ASSIGNMENT = agent_commands.Assignment("run-1", "worker", "worker-1", "10.0.0.3", ("10.0.0.2:2222",), "10.0.0.2:2221")
ASSIGNED = {
    "run": "run-1", "role": "worker", "name": "worker-1", "address": "10.0.0.3", "ps": ["10.0.0.2:2222"],
    "chief": "10.0.0.2:2221", "index": 0, "gpu": "",
}  # fmt: skip
ROLE = {"run": "run-1", "role": "ps", "name": "ps-0"}
AS_EVER: list[tuple[Read, Message, dict[str, Any]]] = [
    (cluster_commands.read, cluster_commands.Ping(), {"do": "ping"}),
    (cluster_commands.read, cluster_commands.Train(run="run-1"), {"do": "train", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Stop(run="run-1"), {"do": "stop", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Move(run="run-3"), {"do": "move", "run": "run-3", "before": ""}),
    (cluster_commands.read, cluster_commands.Save(run="run-1"), {"do": "save", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Evaluate(run="run-1"), {"do": "evaluate", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Delete(), {"do": "delete", "reason": "asked by the user"}),
    (cluster_commands.read, cluster_commands.Revoke(vm="worker-1", seconds=7.0),
     {"do": "revoke", "vm": "worker-1", "seconds": 7.0}),
    (cluster_commands.read, cluster_commands.Resize(spec={"name": "one"}), {"do": "resize", "spec": {"name": "one"}}),
    (cluster_commands.read, cluster_commands.Logs(vm="ps-0", lines=9), {"do": "logs", "vm": "ps-0", "lines": 9}),
    (cluster_commands.read, cluster_commands.Logs(vm="ps-0", run="run-1", lines=9),
     {"do": "logs", "vm": "ps-0", "run": "run-1", "lines": 9}),
    (agent_commands.read, agent_commands.Ping(), {"do": "ping"}),
    (agent_commands.read, agent_commands.Warm(run="run-1", role="ps", name="ps-0", own=True),
     {"do": "warm", **ROLE, "own": True}),
    (agent_commands.read, agent_commands.Assign.of(ASSIGNMENT, ("run-1", "run-2")),
     {"do": "assign", **ASSIGNED, "runs": ["run-1", "run-2"]}),
    (agent_commands.read, agent_commands.Stop(run="run-1"), {"do": "stop", "run": "run-1"}),
    (agent_commands.read, agent_commands.Save(run="run-1"), {"do": "save", "run": "run-1"}),
    (agent_commands.read, agent_commands.Evaluate(run="run-1"), {"do": "evaluate", "run": "run-1"}),
]  # fmt: skip


@pytest.mark.parametrize(("read", "said", "values"), AS_EVER, ids=lambda value: getattr(value, "do", ""))
def test_a_process_of_an_earlier_version_says_and_hears_the_same(
    read: Read, said: Message, values: dict[str, Any]
) -> None:
    """What versions before these classes sent, field by field: a controller outlives the kernel that was updated."""
    assert json.loads(said.line) == values
    assert read(json.dumps(values).encode() + b"\n") == said


def test_what_earlier_versions_left_out_is_as_it_was() -> None:
    def said(read: Read, **values: Any) -> Message:
        return read(json.dumps(values).encode())

    assert said(cluster_commands.read, do="delete") == cluster_commands.Delete(reason="asked by the user")
    assert said(cluster_commands.read, do="logs", vm="ps-0", run=None) == cluster_commands.Logs(vm="ps-0", lines=200)
    few = {name: value for name, value in ASSIGNED.items() if name not in ("index", "gpu")}
    assign = said(agent_commands.read, do="assign", **few)
    assert assign == agent_commands.Assign.of(ASSIGNMENT, ())
    assert assign.assignment == ASSIGNMENT
    assert said(agent_commands.read, do="warm", **ROLE) == agent_commands.Warm(**ROLE)


def test_a_text_is_sent_up_to_where_it_is_let_in() -> None:
    said = cluster_commands.Delete(reason="é" * 5000)
    assert cluster_commands.read(said.line) == cluster_commands.Delete(reason="é" * 2048)


def test_every_message_is_held_to_what_earlier_versions_sent() -> None:
    assert {type(said) for _, said, _ in AS_EVER} == {cls for cls, _ in CLASSES}
