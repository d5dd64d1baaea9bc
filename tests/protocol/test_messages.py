"""Messages between processes: what is sent is what is heard, as it always was; nothing else raises but ValueError."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.examples import examples
from transient_magics.kinds import KINDS
from transient_magics.protocol import agent_commands, checks, chief_messages, cluster_commands
from transient_magics.protocol.checks import checked_file
from transient_magics.protocol.messages import Message, encode, kinds
from transient_magics.protocol.objective import objective_or_none, patience_or_none

Read = Callable[[bytes], Message]
BORDERS: dict[str, tuple[Any, Read]] = {
    "cluster": (cluster_commands.Command, cluster_commands.read),
    "agent": (agent_commands.Command, agent_commands.read),
    "chief": (chief_messages.FirstWord, chief_messages.read_first),
    "chief, of a worker": (chief_messages.FromWorker, chief_messages.read_from_worker),
    "worker": (chief_messages.ToWorker, cast(Read, chief_messages.read_to_worker)),
}
CLASSES = [(cls, read) for union, read in BORDERS.values() for cls in typing.get_args(union)]
CLASSES.append((chief_messages.Fetch, chief_messages.read_fetch))
CLASSES += [(cls, chief_messages.read_callbacks) for cls in (chief_messages.EpochEnded, chief_messages.Called)]

JSON = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**62), 2**62) | some.floats(-1e18, 1e18) | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_NAMES = some.from_regex(r"[a-z]([a-z0-9-]{0,9}[a-z0-9])?", fullmatch=True)


def let_in(annotation: Any) -> some.SearchStrategy[Any]:
    """Values that may stand in a field that is annotated so."""
    if annotation == checks.Name or checked_file in getattr(annotation, "__metadata__", ()):
        return _NAMES
    if annotation == cluster_commands.KindOfWork:
        return some.sampled_from([*KINDS])
    checked = getattr(annotation, "__metadata__", ())
    if objective_or_none in checked:
        return some.sampled_from(["", "max accuracy"])
    if patience_or_none in checked:
        return some.sampled_from(["", "min loss no better in 2 evaluations"])
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
        return some.dictionaries(some.text(max_size=8), JSON if inner[1] is object else let_in(inner[1]), max_size=3)
    plain: dict[Any, some.SearchStrategy[Any]] = {
        int: some.integers(1, 2**62),
        float: some.floats(0, 1e18),
        bool: some.booleans(),
        type(None): some.none(),
        str: some.text(some.characters(exclude_categories=["Cs"]), min_size=1, max_size=9),
    }
    return plain[annotation] if annotation in plain else made(annotation)


def made(cls: type[Any]) -> some.SearchStrategy[Any]:
    """Instances of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return some.builds(cls, **{each.name: let_in(hints[each.name]) for each in fields(cls)})


@examples(15)
@given(some.data())
def test_what_is_sent_is_heard(data: some.DataObject) -> None:
    for cls, read in CLASSES:
        said = data.draw(made(cls))
        assert read(said.encoded) == said, said.encoded
        newer = encode({**said.to_dict(), "of a newer version": [7]})
        assert read(newer) == said


@given(JSON, JSON, some.sampled_from(sorted(BORDERS)), some.data())
def test_whatever_is_said_nothing_but_a_refusal_is_raised(
    value: Any, other: Any, border: str, data: some.DataObject
) -> None:
    union, read = BORDERS[border]
    known = kinds(*typing.get_args(union))
    do = data.draw(some.sampled_from(sorted(known)))
    names = data.draw(some.lists(some.sampled_from([each.name for each in fields(known[do])] or ["do"])))
    for values in (value, {"do": value}, {"do": do, **dict.fromkeys(names, value), **dict.fromkeys(names[1:], other)}):
        try:
            said = read(encode(values))
        except ValueError:
            continue
        assert said is None or type(said) in known.values()
        assert said is None or read(said.encoded) == said


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"7",
        b"null",
        b"[1]",
        b"{",
        b"{}",
        b'{"do":7}',
        b'{"do":[]}',
        b"\xff",
        b"[" * 200_000,
        b'{"do":"ping","a":"' + b"x" * 2**20 + b'"}',
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_a_line_that_is_no_message_is_refused(border: str, line: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons, one way out)
        BORDERS[border][1](line)


def test_a_word_that_is_not_known_is_refused_but_between_a_worker_and_its_chief() -> None:
    """There it is of a newer version, and who says it lives."""
    found: dict[str, Any] = {}
    for border, (_, read) in BORDERS.items():
        try:
            found[border] = read(b'{"do":"dance","run":"run-1"}')
        except ValueError as error:
            found[border] = str(error)
    refused = "unknown kind of message 'dance'"
    assert found == {
        "cluster": refused,
        "agent": refused,
        "chief": refused,
        "chief, of a worker": chief_messages.Alive(),
        "worker": None,
    }
    assert chief_messages.read_to_worker(b'{"ok":false,"error":"wrong token"}') == chief_messages.Refused("wrong token")


@pytest.mark.parametrize(
    ("border", "said", "wrong"),
    [
        ("cluster", cluster_commands.Revoke(vm="worker-1", seconds=-1.0), "seconds: must be at least 0, not -1.0"),
        ("cluster", cluster_commands.Stop(kind="party", name="job-1"), "kind: unknown kind of work: 'party'"),
        ("cluster", cluster_commands.Logs(vm="worker-1", lines=-1), "lines: must be at least 0, not -1"),
        ("cluster", cluster_commands.Logs(vm="worker-1", run="../x"), "run: "),
        ("agent", agent_commands.Stop(run="../x"), "run: '../x' is not a valid name"),
        (
            "agent",
            agent_commands.Warm(run="run-1", role=cast(Any, "king"), name="ps-0"),
            "role: must be one of ps, worker",
        ),
        ("chief", chief_messages.Join(token="t", name="../x"), "name: '../x' is not a valid name"),
        ("chief", chief_messages.Join(token="t", name="worker-1", number=-1), "number: "),
        (
            "chief",
            chief_messages.Files(token="t", what=cast(Any, "keys")),
            "what: must be one of records, whole, graphs",
        ),
        (
            "chief",
            chief_messages.Checkpoint(
                token="t",
                number=1,
                step=1,
                seconds=1.0,
                files=(chief_messages.File(name="../../etc/passwd", size=1, sha256=""),),
            ),
            "files: name: '../../etc/passwd' is not a valid file name",
        ),
        ("chief, of a worker", chief_messages.Exhausted(fits=-1), "fits: must be at least 0, not -1"),
        ("worker", chief_messages.Batch(size=-1, share=1.0), "size: must be at least 0, not -1"),
    ],
    ids=lambda value: getattr(value, "do", ""),
)
def test_a_field_that_is_not_as_it_should_be_is_named(border: str, said: Message, wrong: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 (compared below)
        BORDERS[border][1](said.encoded)
    assert str(refused.value).startswith(f"{said.do}: {wrong}")


ASSIGNMENT = agent_commands.Assignment("run-1", "worker", "worker-1", "10.0.0.3", ("10.0.0.2:2222",), "10.0.0.2:2221")
ASSIGNED = {
    "run": "run-1",
    "role": "worker",
    "name": "worker-1",
    "address": "10.0.0.3",
    "ps": ["10.0.0.2:2222"],
    "chief": "10.0.0.2:2221",
    "index": 0,
    "gpu": "",
    "dispatcher": "",
    "shares": "",
    "steps": 0,
    "epoch_steps": 0,
    "first_epoch": 0,
    "eval_steps": 0,
    "keep_best": "",
    "callbacks": False,
    "phase_steps": 0,
}
ROLE = {"run": "run-1", "role": "ps", "name": "ps-0"}
AS_EVER: list[tuple[Read, Message, dict[str, Any]]] = [
    (cluster_commands.read, cluster_commands.Ping(), {"do": "ping"}),
    (
        cluster_commands.read,
        cluster_commands.Declare(kind="job", name="job-1"),
        {"do": "declare", "kind": "job", "name": "job-1"},
    ),
    (
        cluster_commands.read,
        cluster_commands.Stop(kind="dask", name="dask-1", reason="its client was closed"),
        {"do": "stop", "kind": "dask", "name": "dask-1", "reason": "its client was closed"},
    ),
    (
        cluster_commands.read,
        cluster_commands.ExtendStudy(study="lr", trials=5, request="r7"),
        {"do": "extend study", "study": "lr", "trials": 5, "request": "r7"},
    ),
    (cluster_commands.read, cluster_commands.Move(run="run-3"), {"do": "move", "run": "run-3", "before": ""}),
    (cluster_commands.read, cluster_commands.Save(run="run-1"), {"do": "save", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Evaluate(run="run-1"), {"do": "evaluate", "run": "run-1"}),
    (cluster_commands.read, cluster_commands.Profile(run="run-1"), {"do": "profile", "run": "run-1", "worker": ""}),
    (
        cluster_commands.read,
        cluster_commands.Agree(run="run-1", proposal=7),
        {"do": "agree", "run": "run-1", "proposal": 7},
    ),
    (cluster_commands.read, cluster_commands.Delete(), {"do": "delete", "reason": "asked by the user"}),
    (
        cluster_commands.read,
        cluster_commands.Revoke(vm="worker-1", seconds=7.0),
        {"do": "revoke", "vm": "worker-1", "seconds": 7.0},
    ),
    (
        cluster_commands.read,
        cluster_commands.ChangeMachine(vm="worker-1", machine_type="n1-standard-2"),
        {"do": "change machine", "vm": "worker-1", "machine_type": "n1-standard-2"},
    ),
    (cluster_commands.read, cluster_commands.Resize(spec={"name": "one"}), {"do": "resize", "spec": {"name": "one"}}),
    (
        cluster_commands.read,
        cluster_commands.Resize(spec={"name": "one"}, give_up="slowest"),
        {"do": "resize", "spec": {"name": "one"}, "give_up": "slowest"},
    ),
    (
        cluster_commands.read,
        cluster_commands.Relocate(spec={"name": "one"}, agreed=True),
        {"do": "relocate", "spec": {"name": "one"}, "agreed": True},
    ),
    (cluster_commands.read, cluster_commands.Logs(vm="ps-0", lines=9), {"do": "logs", "vm": "ps-0", "lines": 9}),
    (
        cluster_commands.read,
        cluster_commands.Logs(vm="ps-0", run="run-1", lines=9),
        {"do": "logs", "vm": "ps-0", "run": "run-1", "lines": 9},
    ),
    (agent_commands.read, agent_commands.Ping(), {"do": "ping"}),
    (
        agent_commands.read,
        agent_commands.Warm(run="run-1", role="ps", name="ps-0", own=True),
        {"do": "warm", **ROLE, "own": True},
    ),
    (
        agent_commands.read,
        agent_commands.Assign.of(ASSIGNMENT, ("run-1", "run-2")),
        {"do": "assign", **ASSIGNED, "runs": ["run-1", "run-2"], "standby": False},
    ),
    (
        agent_commands.read,
        agent_commands.Assign.of(ASSIGNMENT, ("run-1",), standby=True),
        {"do": "assign", **ASSIGNED, "runs": ["run-1"], "standby": True},
    ),
    (agent_commands.read, agent_commands.MakeReady.of(ASSIGNMENT), {"do": "make ready", **ASSIGNED}),
    (agent_commands.read, agent_commands.Stop(run="run-1"), {"do": "stop", "run": "run-1", "at_once": False}),
    (
        agent_commands.read,
        agent_commands.Stop(run="run-1", at_once=True),
        {"do": "stop", "run": "run-1", "at_once": True},
    ),
    (agent_commands.read, agent_commands.Save(run="run-1"), {"do": "save", "run": "run-1"}),
    (agent_commands.read, agent_commands.Evaluate(run="run-1"), {"do": "evaluate", "run": "run-1"}),
    (
        agent_commands.read,
        agent_commands.Fork(run="run-1", program="evaluate", arguments=("--step", "9"), caller=7),
        {"do": "fork", "run": "run-1", "program": "evaluate", "arguments": ["--step", "9"], "caller": 7},
    ),
    (
        agent_commands.read,
        agent_commands.Begin(kind="job", work="job-1", attempt=2, task={"rank": 0}),
        {"do": "begin", "kind": "job", "work": "job-1", "attempt": 2, "task": {"rank": 0}},
    ),
    (
        agent_commands.read,
        agent_commands.Warn(kind="job", work="job-1", attempt=2, seconds=28.5),
        {"do": "warn", "kind": "job", "work": "job-1", "attempt": 2, "seconds": 28.5},
    ),
    (
        agent_commands.read,
        agent_commands.End(kind="dask", work="dask-1"),
        {"do": "end", "kind": "dask", "work": "dask-1", "attempt": 0},
    ),
    *(
        (
            read,
            chief_messages.Join(token="t", name="worker-1", accelerator="Tesla K80"),
            {"do": "join", "token": "t", "name": "worker-1", "accelerator": "Tesla K80"},
        )
        for read in (chief_messages.read_first, chief_messages.read_from_worker)
    ),
    (
        chief_messages.read_first,
        chief_messages.Join(token="t", name="worker-1", number=4),
        {"do": "join", "token": "t", "name": "worker-1", "accelerator": "", "number": 4},
    ),
    (
        chief_messages.read_first,
        chief_messages.Checkpoint(
            token="t",
            number=4,
            step=40,
            seconds=0.5,
            files=(chief_messages.File(name="model.ckpt-40.index", size=7, sha256="ab"),),
        ),
        {
            "do": "checkpoint",
            "token": "t",
            "number": 4,
            "step": 40,
            "seconds": 0.5,
            "files": [{"name": "model.ckpt-40.index", "size": 7, "sha256": "ab"}],
        },
    ),
    (
        chief_messages.read_first,
        chief_messages.Files(token="t", what="graphs"),
        {"do": "files", "what": "graphs", "token": "t"},
    ),
    (chief_messages.read_first, chief_messages.Grant(token="t"), {"do": "grant", "token": "t"}),
    (chief_messages.read_first, chief_messages.Calls(token="t"), {"do": "calls", "token": "t"}),
    (
        chief_messages.read_callbacks,
        chief_messages.EpochEnded(step=40, epoch=1, sums=(32.0, 9.5), last=True),
        {
            "do": "epoch ended",
            "step": 40,
            "epoch": 1,
            "sums": [32.0, 9.5],
            "last": True,
            "seconds": 60.0,
            "awaited": True,
            "before": {},
        },
    ),
    (
        chief_messages.read_callbacks,
        chief_messages.Called(logs={"loss": 0.5}, rate=0.1, output="done"),
        {
            "do": "called",
            "logs": {"loss": 0.5},
            "rate": 0.1,
            "stop": "",
            "output": "done",
            "error": "",
            "evaluation": {},
        },
    ),
    (chief_messages.read_fetch, chief_messages.Fetch(name="a/train-0"), {"do": "fetch", "name": "a/train-0"}),
    (
        chief_messages.read_first,
        chief_messages.Load(token="t", name="ps-1", cpu_seconds=1.5, clock=9.5, cores=2),
        {"do": "load", "token": "t", "name": "ps-1", "cpu_seconds": 1.5, "clock": 9.5, "cores": 2},
    ),
    *(
        (chief_messages.read_from_worker, said, values)
        for said, values in (
            (
                chief_messages.Stepping(loss=1.5, samples=7, speed=2.0, gpu=True),
                {"do": "stepping", "loss": 1.5, "samples": 7, "speed": 2.0, "gpu": True, "program": ""},
            ),
            (
                chief_messages.Metrics(line={"step": 7, "loss": None}),
                {"do": "metrics", "line": {"step": 7, "loss": None}},
            ),
            (chief_messages.Alive(), {"do": "alive"}),
            (chief_messages.Noticed(), {"do": "noticed"}),
            (chief_messages.Exhausted(fits=16), {"do": "exhausted", "fits": 16}),
            (
                chief_messages.Lease(
                    serial=2, held=(4,), done=(1,), cached=(1,), wanted=20, bound=24, misses=2, fetched=9
                ),
                {
                    "do": "lease",
                    "serial": 2,
                    "held": [4],
                    "done": [1],
                    "cached": [1],
                    "wanted": 20,
                    "bound": 24,
                    "hits": 0,
                    "misses": 2,
                    "saved": 0,
                    "fetched": 9,
                    "straight": 0,
                    "waited": 0.0,
                    "detour": "",
                },
            ),
            (chief_messages.Unsaved(reason="no room"), {"do": "unsaved", "reason": "no room"}),
            (chief_messages.Trouble(reason="no", fatal=True), {"do": "trouble", "reason": "no", "fatal": True}),
            (chief_messages.Reading(note="no end"), {"do": "reading", "note": "no end"}),
            (
                chief_messages.Took(turn=7, seconds=(0.5, 0.25), examples=32, bytes=9),
                {"do": "took", "turn": 7, "seconds": [0.5, 0.25], "examples": 32, "bytes": 9},
            ),
            (chief_messages.Leaving(reason="revoked"), {"do": "leaving", "reason": "revoked"}),
        )
    ),
    *(
        (cast(Read, chief_messages.read_to_worker), said, values)
        for said, values in (
            (chief_messages.Joined(number=4, active=2), {"do": "joined", "number": 4, "active": 2, "phase": 0}),
            (
                chief_messages.Leased(blocks=(chief_messages.LeasedBlock(number=4, size=9, records=2, crc32c=7),)),
                {
                    "do": "leased",
                    "blocks": [{"number": 4, "size": 9, "records": 2, "crc32c": 7, "file": "", "offset": 0}],
                },
            ),
            (chief_messages.Active(active=2), {"do": "active", "active": 2}),
            (chief_messages.Batch(size=16, share=0.5), {"do": "batch", "size": 16, "share": 0.5}),
            (chief_messages.Save(), {"do": "save"}),
            (
                chief_messages.Take(turn=7, measure="S1", seconds=2.0),
                {"do": "take", "turn": 7, "measure": "S1", "seconds": 2.0},
            ),
            (chief_messages.Proceed(limit=40, rate=0.5), {"do": "proceed", "limit": 40, "rate": 0.5}),
            (chief_messages.Stop(again=True), {"do": "stop", "again": True}),
            (chief_messages.Leave(reason="finished"), {"do": "leave", "reason": "finished"}),
        )
    ),
]


@pytest.mark.parametrize(("read", "said", "values"), AS_EVER, ids=lambda value: getattr(value, "do", ""))
def test_a_process_of_an_earlier_version_says_and_hears_the_same(
    read: Read, said: Message, values: dict[str, Any]
) -> None:
    """What versions before these classes sent, field by field: a controller outlives the kernel that was updated."""
    assert json.loads(said.encoded) == values
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
    stepping = said(chief_messages.read_from_worker, do="stepping", loss=None)  # a loss that is no number
    assert stepping == chief_messages.Stepping(loss=None, samples=0, speed=0.0, gpu=False)
    assert said(chief_messages.read_first, do="files", token="t") == chief_messages.Files(token="t", what="records")
    extended = cluster_commands.ExtendStudy(study="lr", trials=5, request="")
    assert said(cluster_commands.read, do="extend study", study="lr", trials=5) == extended
    begun = {"kind": "dask", "work": "dask-1", "task": {"part": "scheduler"}}
    assert said(agent_commands.read, do="begin", **begun) == agent_commands.Begin(**begun, attempt=0)
    assert said(agent_commands.read, do="warm", **ROLE) == agent_commands.Warm(**ROLE)


def test_a_text_is_sent_up_to_where_it_is_let_in() -> None:
    said = cluster_commands.Delete(reason="é" * 5000)
    assert cluster_commands.read(said.encoded) == cluster_commands.Delete(reason="é" * 2048)
    trouble = chief_messages.Trouble(reason="x" * 10_000, fatal=True)  # of an exception, which may say much
    assert chief_messages.read_from_worker(trouble.encoded) == chief_messages.Trouble(reason="x" * 4096, fatal=True)


def test_every_message_is_held_to_what_earlier_versions_sent() -> None:
    assert {type(said) for _, said, _ in AS_EVER} == {cls for cls, _ in CLASSES}
