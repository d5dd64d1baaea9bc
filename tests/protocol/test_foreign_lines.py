"""Lines of strangers: what is let in is what chief and agent send, and nothing else raises anything but ValueError."""

from __future__ import annotations

import json
import subprocess
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from transient_magics.errors import JournalError
from transient_magics.journal import Event, decode, encode, metrics, replay
from transient_magics.protocol import checks, events, vm_events
from transient_magics.protocol.step_parts import MEASURES
from transient_magics.protocol.vm_events import TrainMeasured, from_agent, from_chief, line_fields
from transient_magics.works.jobs.events import from_job

NOW = 1_800_000_000 * 10**9
DEEP = b'{"kind":' + b"[" * 200_000

PROGRESS: dict[str, Any] = {"kind": "train.progress", "time": NOW, "run": "run-1", "step": 7, "loss": 0.5}
CHIEF = sorted(vm_events._OF_CHIEF.values(), key=lambda each: each.kind)
AGENT = sorted(vm_events._OF_AGENT.values(), key=lambda each: each.kind)

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def plain(name: str) -> str:
    """What of it a test's name may hold; a backslash is escaped anew whenever tests are collected."""
    return "".join(letter for letter in name if letter.isascii() and letter.isprintable() and letter != "\\")


def line(**changes: Any) -> bytes:
    return json.dumps({**PROGRESS, **changes}).encode()


def values_of(cls: type[Event]) -> some.SearchStrategy[dict[str, Any]]:
    """What the fields of a class may hold."""
    hints = typing.get_type_hints(cls)
    kinds: dict[Any, some.SearchStrategy[Any]] = {
        int: some.integers(0, 10**9), float: some.floats(0, 1e9), str: some.sampled_from(["", "x" * 5000, "né\ud800"]),
        bool: some.booleans(), float | None: some.none() | some.floats(0, 1e9), int | None: some.none(),
    }  # fmt: skip
    named = {"run": some.just("run-1"), "worker": some.just("worker-1"), "server": some.just("ps-0")}
    named |= {"name": some.just("worker-1"), "role": some.sampled_from(["ps", "worker"])}
    named |= {"measure": some.sampled_from(MEASURES), "repeat": some.integers(0, 10**9)}
    by_worker = some.dictionaries(some.sampled_from(["worker-1", "worker-2"]), some.integers(0, 10**9))
    named |= {"seconds": by_worker.map(lambda found: {who: float(much) for who, much in found.items()}),
              "steps": by_worker} if cls is TrainMeasured else {}  # fmt: skip
    some_names = some.text("abc/", max_size=9)
    kinds[tuple[str, ...]] = some.lists(some_names, max_size=3).map(tuple)
    kinds[Mapping[str, float]] = some.dictionaries(some_names, some.floats(-1e9, 1e9), max_size=3)
    own = [each.name for each in fields(cls) if each.name not in ("seq", "time")]
    return some.fixed_dictionaries({name: named[name] if name in named else kinds[hints[name]] for name in own})


@pytest.mark.slow
@given(some.data())
def test_what_chief_and_agent_tell_is_let_in(data: some.DataObject) -> None:
    for cls in (*CHIEF, *AGENT):
        event = cls(**data.draw(values_of(cls)))
        said = json.dumps({"time": NOW, "kind": event.kind, **line_fields(event)}, allow_nan=False).encode()
        heard = from_agent(said, 0, NOW) if cls in AGENT else from_chief(said, "run-1", 0, NOW)
        assert line_fields(heard) == line_fields(event)
        assert heard.time == NOW


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": kind}
        for kind in (
            *(each for each in events.kinds() if each not in vm_events._OF_CHIEF),
            "vm.unheard_of",
            None,
            7,
            [],
            {},
        )
    ],
    ids=lambda changes: str(changes["kind"]),
)
def test_a_vm_tells_nothing_that_is_the_controllers_to_say(changes: dict[str, Any]) -> None:
    everything = {name: 1 for cls in events.kinds().values() for name in cls.__dataclass_fields__}
    everything |= {"run": "run-1", "vm": "worker-0", "worker": "worker-0", "spec": {"name": "evil"}, "time": NOW}
    said = json.dumps({**everything, **changes}).encode()
    with pytest.raises(ValueError, match="a VM sent an event of the unexpected kind"):
        from_chief(said, "run-1", 0, NOW)


@pytest.mark.parametrize(
    "said",
    [
        line(time="x"), line(time=-1), line(time=NOW + 2 * 86_400 * 10**9), line(time=1.5), line(time=True),
        line(time=2**70),
        line(run="run-2"), line(run="../../../.."), line(run=7), line(run=""), line(step=-1), line(step="7"),
        line(step=None), line(loss="x"), line(steps_per_second=-1.0), line(active=[1]),
        *(line(loss=1.0).replace(b"1.0", number) for number in (b"NaN", b"1e999", b"9" * 99, b"9" * 400, b"9" * 9999)),
        *(line(kind="train.failed", **reason) for reason in ({}, {"reason": "x" * 5000}, {"reason": "\ud800"})),
        line(kind="train.evaluated", metrics=7), line(kind="train.evaluated", metrics={"a": "b"}),
        line(kind="train.evaluated", metrics=dict.fromkeys(map(str, range(2000)), 1.0)),
        line(kind="worker.joined", worker="/etc/passwd", number=1, active=1),
        b"[1]", b"7", b"null", b"", b"{", b"\xff", DEEP, b"[" * 200_000, b'{"a":"' + b"x" * 2**20 + b'"}',
    ],
    ids=lambda said: plain(said[:60].decode(errors="ignore")),
)  # fmt: skip
def test_a_line_that_is_not_as_it_should_be_is_refused(said: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons, one way out)
        from_chief(said, "run-1", NOW, NOW)
    with pytest.raises(ValueError):  # noqa: PT011
        from_agent(said, NOW, NOW)


EVIL = "\x1b]0;owned\x07\x1b[2Jit\x00 failed\u202e"


def test_texts_of_a_vm_are_plain_wherever_they_go_on_to() -> None:
    """Results and tables are printed in terminals too, by anybody's code."""
    failed = from_chief(line(kind="train.failed", reason=EVIL), "run-1", 0, NOW)
    assert failed.values["reason"] == "it\ufffd failed\ufffd"
    more = {"kind": "train.evaluated", "metrics": {EVIL: 1.0}, "undefined": [EVIL]}
    evaluated = from_chief(line(**more), "run-1", 0, NOW).values
    assert evaluated["metrics"] == {"it\ufffd failed\ufffd": 1.0}
    assert evaluated["undefined"] == ("it\ufffd failed\ufffd",)


def test_a_text_that_grows_as_it_becomes_plain_is_read_again() -> None:
    """Otherwise nobody would hear of the end of a job whose last words are no text."""
    exited = {"kind": "job.exited", "time": NOW, "job": "job-1", "attempt": 1, "rank": 0, "code": 1}
    said = json.dumps({**exited, "tail": "\x00" * checks.LONGEST_TEXT})
    heard = from_job(said.encode(), "job-1", 1, 0, 0, NOW)
    again = decode(encode(heard))
    assert again.values == heard.values
    assert str(again.values["tail"]).startswith("\ufffd" * 1000)


@given(JSON, JSON, some.sampled_from(sorted(events.kinds())))
def test_whatever_a_line_holds_nothing_but_a_refusal_is_raised(value: Any, other: Any, kind: str) -> None:
    """Also by our own journal, where the line may be a copy of what somebody else wrote, and by what is made of it."""
    filled = dict.fromkeys(events.kinds()[kind].__dataclass_fields__, other)
    for values in (value, {"kind": kind, **filled}, {"kind": kind, "spec": value, "run": "run-1"}):
        said = json.dumps(values).encode()
        for read in (lambda said: from_chief(said, "run-1", 0, NOW), lambda said: from_agent(said, 0, NOW)):
            with suppress(ValueError):
                read(said)
        try:
            event = decode(said)
        except JournalError:
            continue
        replay([event])
        assert decode(encode(event)) == event or isinstance(event, events.Unknown)


def test_an_event_that_makes_no_sense_is_passed_over_and_counted() -> None:
    lines = [
        b'{"seq":1,"time":1,"kind":"cluster.declared","spec":{"name":"../.."}}',
        b'{"seq":2,"time":1,"kind":"vm.new"}',
    ]
    lines += [b'{"seq":9000000000,"time":1,"kind":"controller.trouble","what":"no room for numbers is left"}']
    state = replay(map(decode, lines))
    assert (state.passed_over, state.spec, state.seq) == (2, None, 2)


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "a/b", "/etc", "a\\b", "a\0b", "a\nb", "x" * 41, "-a", "a-", "A", "é", 7, None],
    ids=lambda name: plain(str(name)),
)
def test_a_name_that_leads_elsewhere_is_none(name: Any) -> None:
    assert not checks.is_name(name)
    if name not in ("x" * 41, "-a", "a-", "A", "é"):  # which files may have
        with pytest.raises(ValueError, match="is not a valid file name"):
            checks.checked_file(name)


@given(some.lists(JSON, max_size=4), some.sampled_from(["time", "worker", "steps", "loss", "step"]))
def test_metrics_that_cannot_be_reckoned_with_are_passed_over(values: list[Any], name: str) -> None:
    row = {"time": NOW, "worker": "worker-0", "steps": 1, "samples": 8, "loss": 0.5, "step": 1}
    written = b"\n".join(
        json.dumps(each).encode() for each in [row, *values, *({**row, name: each} for each in values)]
    )
    rows = metrics._parsed(written + b"\n" + DEEP + b"\n")
    assert rows[0] == row
    list(metrics.thin(rows, NOW + 10**13))
    metrics.speeds(rows)


def test_the_ground_floor_needs_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; was = {*sys.modules}; import transient_magics.protocol.vm_events; print(*{*sys.modules} - was)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout.split()
    ours = {name for name in found if name.startswith("transient_magics")}
    assert {name.split(".")[1] for name in ours if "." in name} <= {"imports", "kinds", "protocol", "version"}
    assert {name.split(".")[0] for name in found if name.split(".")[0] not in sys.stdlib_module_names} == {
        "transient_magics"
    }
