"""What strangers may say: lines, rows, manifests, declarations, answers and listings, as strategies of hypothesis.

Most of it nearly fits, so that what reads it is reached in its depths; the rest is anything at all.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from hypothesis import strategies as some

from transient_magics.journal import metrics
from transient_magics.protocol import agent_commands, chief_messages, cluster_commands, events, vm_events
from transient_magics.protocol.step_parts import StepParts
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

NOW = 1_800_000_000 * 10**9
DAY = 86_400 * 10**9
PRICE = PriceLine("n1-standard-4", 0.2, 0.7, "fuzz")
SPEC = ClusterSpec("one", (WorkerGroup("k80", 2),), ("us-west1-b",), {"k80": PRICE, "parameter-server": PRICE})
CHIEF, AGENT = frozenset(vm_events._OF_CHIEF), frozenset(vm_events._OF_AGENT)
WORDS = [
    "run-1",
    "run-2",
    "worker-0",
    "ps",
    "..",
    ".",
    "/etc/passwd",
    "../../x",
    "a\\b",
    "a\0",
    "A",
    "x" * 5000,
    "\ud800",
    "",
]
DEEP = b"[" * 60_000

plain: Any = (
    some.none()
    | some.booleans()
    | some.integers(-5, 5)
    | some.sampled_from([2**63, 2**70, 10**310, 10**4000, NOW, NOW + 9 * DAY, -1])
    | some.floats()
    | some.sampled_from(WORDS)
    | some.text(max_size=4)
)
value = some.recursive(
    plain,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.sampled_from(WORDS), inner, max_size=3),
    max_leaves=6,
)
KINDS = sorted({*events.kinds(), *AGENT})
FIELDS: dict[str, list[Any]] = {
    "run": [*["run-1"] * 8, "run-2", "../../x", 7],
    "worker": ["worker-0", ""],
    "name": ["worker-0"],
    "vm": ["worker-0"],
    "role": ["ps", "worker", "worker", "king"],
    "time": [*[NOW] * 9, NOW + 9 * DAY, NOW - 9 * DAY, 5 * DAY, "x"],
    "seq": [0, 1, 10**12],
    "step": [7],
    "server": ["ps-0", ""],
    "replaces": ["ps-0"],
    "by": ["worker-1"],
    "loss": [*[0.5] * 4, None, 10**400],
    "reason": ["why"],
    "metrics": [{"a": 1.0}, dict.fromkeys(map(str, range(1100)), 1.0)],
    "spec": [SPEC.to_dict(), {"name": "one"}, {}],
    "anchors": [[[0, 0, 1.0]], [[0, 0, 1.0, 2]], []],
    "zones": [{"z": [0.5, 9.0]}, {"z": ["a"]}],
    "hints": [["z"], [1] * 1100],
    "provisioning_model": ["spot", "x"],
    "asked": [True, 1],
    "next_seconds": [None, 2.0],
    "job": [*["job-1"] * 8, "job-2"],
    "attempt": [*[1] * 8, 2],
    "rank": [*[0] * 8, 1],
    "dask": [*["dask-1"] * 8, "dask-2"],
    "versions": [{"distributed": "2026.1.0"}, {"distributed": "../../x"}],
}
GOOD = {
    name: [True] if "bool" in str(each.type) else ["text"] if re.search("str|Name", str(each.type)) else [1]
    for cls in (*events.kinds().values(), *vm_events._OF_AGENT.values())
    for name, each in cls.__dataclass_fields__.items()
}
SPEC_FIELDS = {name: [each] for name, each in SPEC.to_dict().items()}


@some.composite
def said(draw: Any, kinds: frozenset[str] | None = None) -> bytes:
    """A line: an event with some fields that fit and some that do not; another JSON value; or no JSON at all.

    `kinds`: those of the events that are drawn most (default: of chiefs and agents).
    """
    way = draw(some.integers(0, 9))
    if way == 0:
        return draw(some.binary(max_size=40) | some.sampled_from([DEEP, b'{"a":"' + b"x" * 2**20 + b'"}', b"9" * 5000]))
    if way == 1:
        return json.dumps(draw(value)).encode()
    kind = draw(some.sampled_from(sorted(kinds or CHIEF | AGENT | {"work.declared"}) if way > 5 else KINDS))
    cls = events.kinds().get(kind) or vm_events._OF_AGENT[kind]
    told: dict[str, Any] = {"kind": draw(some.just(kind) | value) if way == 2 else kind, "time": NOW}
    for name in (each.name for each in fields(cls)):
        told[name] = draw(
            value if draw(some.integers(0, 19)) == 19 else some.sampled_from(FIELDS.get(name) or GOOD[name])
        )
    if draw(some.integers(0, 9)) == 9:
        del told[draw(some.sampled_from(sorted(told)))]
    if draw(some.integers(0, 39)) == 39:
        told["of a newer version"] = "x" * 2**20
    return json.dumps(told).encode()


SPLIT = [0.1] * len(StepParts._fields)
"""The parts of a step, as a worker reports them."""


@some.composite
def rows(draw: Any) -> bytes:
    """Lines of metrics."""
    found = []
    for number in range(draw(some.integers(0, 4))):
        row: dict[str, Any] = {
            "time": NOW + number * draw(some.sampled_from([1, 4000])) * 10**9, "worker": "worker-0", "step": number,
            "steps": 1, "loss": 0.5,
        }  # fmt: skip
        if draw(some.booleans()):
            row |= dict.fromkeys(metrics.GRADIENTS, 1.0) | {"traced_seconds": 0.1, "split": SPLIT}
        changed = draw(
            some.lists(
                some.sampled_from([*sorted({*row, *metrics._NUMBERS, "new"}), *["time", "worker"] * 4]), max_size=2
            )
        )
        row |= {name: draw(plain) for name in changed}
        found.append(json.dumps(row).encode())
    return b"\n".join([*found, draw(said())]) + b"\n"


@some.composite
def manifests(draw: Any) -> Any:
    file = {
        "name": draw(some.sampled_from([*["model.ckpt-1.index"] * 9, *WORDS])),
        "size": draw(some.just(4) | plain),
        "crc32c": draw(some.just("AAAAAA==") | plain),
    }
    folder = draw(some.sampled_from([*["checkpoints/1-ab"] * 9, "checkpoints/../../x", *WORDS]))
    whole = {"checkpoints": [{"step": draw(some.just(1) | plain), "folder": folder, "files": [file]}]}
    return draw(some.just(whole) | value)


@some.composite
def declarations(draw: Any) -> Any:
    changed = draw(some.lists(some.sampled_from(sorted(SPEC_FIELDS)), max_size=2))
    return {**SPEC.to_dict(), **{name: draw(value) for name in changed}} if draw(some.booleans()) else draw(value)


BORDERS = (
    cluster_commands._KNOWN,
    agent_commands._KNOWN,
    chief_messages._FIRST,
    chief_messages._FROM_WORKER,
    chief_messages._TO_WORKER,
    chief_messages._FETCH,
)
"""The tables of messages: client to controller, controller to agent, and what workers and chief say."""
FITTING: dict[str, list[Any]] = {
    "str": ["text"], "bool": [True], "int": [1], "float": [0.5], "Count": [1], "Amount": [0.5], "Name": ["run-1"],
    "KindOfWork": ["job"], "None": [None], "NameOrNone": [""],
}  # fmt: skip


@some.composite
def spoken(draw: Any) -> bytes:
    """A line of one of the borders, with fields that fit mostly; a refusal; or another JSON value."""
    way = draw(some.integers(0, 9))
    if way == 0:
        return json.dumps(draw(value)).encode()
    if way == 1:
        return json.dumps({"ok": draw(some.booleans()), "error": draw(plain)}).encode()
    known = draw(some.sampled_from(BORDERS))
    do = draw(some.sampled_from(sorted(known)))
    told: dict[str, Any] = {"do": draw(some.just(do) | value) if way == 2 else do}
    for each in fields(known[do]):
        fitting = FITTING.get(str(each.type).partition(" |")[0])
        fits = fitting and draw(some.integers(0, 5)) < 5
        told[each.name] = draw(some.sampled_from(fitting) if fitting and fits else value)
    if draw(some.integers(0, 9)) == 9:
        del told[draw(some.sampled_from(sorted(told)))]
    return json.dumps(told).encode()


assignments = some.fixed_dictionaries(
    {
        "run": some.sampled_from([*WORDS, *["run-1"] * 9]),
        "role": some.sampled_from(["ps", "worker", "x"]),
        "name": some.sampled_from([*WORDS, 7, *["ps-0"] * 9]),
        "address": some.sampled_from(["a:1", "a:1", "", 7]),
        "ps": some.sampled_from([["a:1"], ["a:1"], "a:1", [], [7], 7]),
    },
    optional={"index": plain, "chief": some.just("a:2")},
)
answers = some.fixed_dictionaries(
    {
        "ok": some.booleans(),
        "kind": some.sampled_from(
            ["ClusterError", "annotations", "Exception", "__name__", "TransientError", 7, None, ["x"]]
        ),
    },
    optional={"error": plain},
)
listings = some.tuples(some.sampled_from(["model.ckpt-7.index", "checkpoint", "a.tmp", *WORDS]), plain).map(
    "{0[0]} {0[1]}".format
)
