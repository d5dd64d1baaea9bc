"""Foreign lines and names against everything that reads them: branches reached, refusals, and attacks found again.

Guided by the branches that an input reaches (hypothesis' `target`; they are counted on the byte code, each conditional
jump both ways). Hypothesis is here anyway, makes structured lines and shrinks what it finds; atheris fits Python 3.11,
but is one more compiled package for what a second of structured lines reaches as well. Nothing is kept between runs:
each corpus is a clean one. For each attack one guard is taken away, and the same search has to find what it let in.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import dis
import itertools
import json
import math
import re
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any
from unittest.mock import patch

from _strangers import (
    AGENT,
    CHIEF,
    DAY,
    NOW,
    WORDS,
    answers,
    assignments,
    declarations,
    listings,
    manifests,
    rows,
    said,
    spoken,
    value,
)
from hypothesis import HealthCheck, Phase, given, settings, target
from hypothesis import strategies as some

from transient_magics import errors
from transient_magics.errors import TransientError
from transient_magics.journal import metrics, replay
from transient_magics.journal.reading import decode_lines
from transient_magics.protocol import (
    agent_commands,
    checks,
    chief_messages,
    cluster_commands,
    events,
    messages,
    vm_events,
)
from transient_magics.remote import following, transfer
from transient_magics.runtime.files import manifest
from transient_magics.spec import ClusterSpec, WorkerGroup
from transient_magics.works.dask.events import _OF_DASK, from_dask
from transient_magics.works.jobs.events import _OF_JOB, from_job
from transient_magics.works.runs import checkpoint_copy

GOAL = 0.95
"""Of the readers' branches."""
RUN = "lines of chief and agent"
NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")

READERS: tuple[Any, ...] = (
    checks,
    checks,
    vm_events,
    following,
    events.decode,
    events.from_values,
    decode_lines,
    metrics._parsed,
    metrics._is_sound,
    metrics.speeds,
    metrics.thin,
    metrics._merge,
    manifest.Manifest.from_dict,
    manifest._file,
    manifest._fits,
    checkpoint_copy._safe,
    checkpoint_copy._newest,
    transfer.Transfer._checked,
    errors.checked_answer,
    errors.error_class,
    messages.read,
    cluster_commands.read,
    agent_commands.read,
    chief_messages.read_first,
    chief_messages.read_from_worker,
    chief_messages.read_to_worker,
    chief_messages.read_fetch,
    agent_commands.Assignment.from_dict,
    ClusterSpec.from_dict,
)
LEFT_OUT = {"clipped", "told"}  # what a VM does with its own words


def codes(thing: Any) -> Iterator[types.CodeType]:
    """The code of a function, or of all that a module defines."""
    if isinstance(thing, types.ModuleType):
        for each in vars(thing).values():
            if getattr(each, "__module__", "") == thing.__name__:
                if isinstance(each, type):
                    for method in vars(each).values():
                        yield from codes(getattr(method, "fget", method))
                else:
                    yield from codes(each)
        return
    function = getattr(thing, "__wrapped__", getattr(thing, "__func__", thing))
    waiting = [function.__code__] if hasattr(function, "__code__") and function.__name__ not in LEFT_OUT else []
    while waiting:
        code = waiting.pop()
        if not code.co_filename.startswith("<"):  # what dataclasses write themselves
            yield code
            waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def branches(code: types.CodeType) -> dict[int, set[int]]:
    """By offset of each conditional jump, where it may go."""
    found, instructions = {}, list(dis.get_instructions(code))
    for before, here, after in zip(instructions, instructions[1:], instructions[2:], strict=False):
        conditional = "_IF_" in here.opname or here.opname == "FOR_ITER"
        # Neither an exception that nobody foresaw nor an assertion that fails is a branch.
        if conditional and before.opname != "CHECK_EXC_MATCH" and after.opname != "LOAD_ASSERTION_ERROR":
            found[here.offset] = {here.argval, after.offset}
    return found


class Branches:
    """Which way the conditional jumps of the readers went."""

    def __init__(self, readers: tuple[Any, ...]) -> None:
        self.all = {code: branches(code) for reader in readers for code in codes(reader)}
        self.reached: set[tuple[types.CodeType, int, int]] = set()

    @property
    def total(self) -> int:
        return sum(len(ways) for found in self.all.values() for ways in found.values())

    def missed(self) -> list[str]:
        """Function and line of what was never reached."""
        found = []
        for code, jumps in self.all.items():
            where = {offset: line for begin, end, line in code.co_lines() for offset in range(begin, end)}
            for offset, ways in jumps.items():
                for way in ways:
                    if (code, offset, way) not in self.reached:
                        found.append(f"{code.co_filename.rpartition('/')[2]}:{where[offset]} {code.co_name}")
        return sorted(set(found))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        def called(frame: types.FrameType, event: str, _: Any) -> Any:
            jumps = self.all.get(frame.f_code)
            if not jumps:
                return None
            frame.f_trace_opcodes, last = True, -1

            def step(frame: types.FrameType, event: str, _: Any) -> Any:
                nonlocal last
                if event == "opcode":
                    if last in jumps and frame.f_lasti in jumps[last]:
                        self.reached.add((frame.f_code, last, frame.f_lasti))
                    last = frame.f_lasti
                return step

            return step

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)


def named_well(event: Any) -> None:
    for name in ("run", "worker", "name", "server", "vm", "by"):
        if found := getattr(event, name, None):
            assert NAME.fullmatch(found), f"a name: {found!r}"
            assert len(found) <= 40, "a long name"


def of_a_vm(line: bytes) -> None:
    for kinds in (CHIEF, AGENT):
        with contextlib.suppress(ValueError):
            agent = kinds is AGENT
            event = vm_events.from_agent(line, NOW, NOW) if agent else vm_events.from_chief(line, "run-1", NOW, NOW)
            assert event.kind in kinds, f"the kind {event.kind}"
            assert kinds is AGENT or event.values["run"] == "run-1", "another run"
            assert NOW - DAY <= event.time <= NOW + DAY, "another time"
            assert len(line) <= 2**20, "a long line"
            named_well(event)
            for number in filter(lambda each: isinstance(each, int | float), event.values.values()):
                assert math.isfinite(number), "no number to reckon with"
            vm_events.line_fields(event)


def of_work(line: bytes) -> None:
    with contextlib.suppress(ValueError):
        event = from_job(line, "job-1", 1, 0, NOW, NOW)
        assert event.values["job"] == "job-1", "another job"
        assert event.values["attempt"] == 1, "another attempt"
        assert event.values.get("rank", 0) == 0, "another rank"
    for schedules in (True, False):
        with contextlib.suppress(ValueError):
            event = from_dask(line, "dask-1", "worker-0", schedules, NOW, NOW)
            assert event.values["dask"] == "dask-1", "another Dask cluster"
            assert event.values.get("vm", "worker-0") == "worker-0", "another VM"


def of_a_journal(line: bytes) -> None:
    found, end = decode_lines(line + b"\n" + b"torn")
    assert end == len(line) + 1
    state = replay(found)
    for event in found:
        named_well(event)
    assert state.seq <= 10**7, "no room for numbers"


def of_metrics(block: bytes) -> None:
    found = metrics._parsed(block)
    list(metrics.thin(found, NOW))
    metrics.speeds(found)


def of_lines(block: bytes) -> None:
    splitter, told = following.Splitter(64), 0
    for begin in range(0, min(len(block), 4000), 7):
        for size, line in splitter.feed(block[begin : begin + 7]):
            told += size
            assert line is None or (len(line) <= 64 and b"\n" not in line), "a line"
    assert sum(map(len, splitter._parts)) <= 64 + 7, "memory"


def of_a_manifest(values: Any) -> None:
    with contextlib.suppress(TransientError):
        for checkpoint in manifest.Manifest.from_dict(values).checkpoints:
            for name in (checkpoint.folder.removeprefix("checkpoints/"), *(file.name for file in checkpoint.files)):
                assert not {"/", "\\", "\0"} & {*name}, f"a path: {name!r}"
                assert name not in (".", ".."), f"a path: {name!r}"


def of_a_declaration(values: Any) -> None:
    with contextlib.suppress(TransientError):
        spec = ClusterSpec.from_dict(values)
        assert NAME.fullmatch(spec.name)
        _ = spec.home_zone, spec.hourly, spec.on_demand_hourly, spec.all_zones, spec.worker_count


BORDERS = (
    cluster_commands.read,
    agent_commands.read,
    chief_messages.read_first,
    chief_messages.read_from_worker,
    chief_messages.read_to_worker,
    chief_messages.read_fetch,
)


def of_a_message(line: bytes) -> None:
    """What is let in can be said again, and is then the same."""
    for read in BORDERS:
        with contextlib.suppress(ValueError):
            found = read(line)
            if not isinstance(found, messages.Message):
                continue  # of a newer version, or a refusal
            named_well(found)
            for each in fields(found):
                known = checks.fields_of(type(found))[each.name]
                assert known(getattr(found, each.name)) == getattr(found, each.name), f"{found.do}: {each.name}"


def of_an_assignment(message: Any) -> None:
    with contextlib.suppress(ValueError):
        agent_commands.read(json.dumps({**message, "do": "assign"} if isinstance(message, dict) else message).encode())
    with contextlib.suppress(ValueError):
        assert NAME.fullmatch(agent_commands.Assignment.from_dict(message).run)


def of_an_answer(answer: dict[str, Any]) -> None:
    with contextlib.suppress(TransientError):
        errors.checked_answer(dict(answer))


def of_a_listing(line: str) -> None:
    if checkpoint_copy._safe(line):
        name, size = line.split()
        int(size)
        assert "/" not in name, f"a path: {name!r}"
        assert not name.startswith("."), f"a path: {name!r}"
    checkpoint_copy._newest([line, line.split()[0] if line.split() else ""])


def of_a_file_name(name: Any) -> None:
    with contextlib.suppress(TransientError, UnicodeDecodeError):
        found = transfer.Transfer(None, "vm")._checked(name)  # type: ignore[arg-type]
        assert not {"/", "\\", "\0", "\n"} & {*found}, f"a path: {found!r}"
        assert found not in ("", ".", ".."), f"a path: {found!r}"
    checks.is_path(name)
    checks.is_name(name)


def of_a_class(annotation: Any, given: Any) -> None:
    with contextlib.suppress(ValueError):
        (annotation if annotation is checks.text else checks.of(annotation))(given)
    for nothing in (set, list[int], "text"):
        with contextlib.suppress(TypeError):
            checks.of(nothing)


ANNOTATIONS = [
    checks.Count,
    checks.Amount,
    checks.Name,
    checks.NameOrNone,
    checks.text,
    tuple[int, ...],
    tuple[int, str],
    dict[str, float],
    int | None,
    object,
    bool,
    WorkerGroup,
    typing.Annotated[float, checks.within(0, 1)],
    typing.Literal["spot"],
]
DEEPER: Any = []
for _ in range(20):
    DEEPER = [DEEPER]
ODD = [
    DEEPER,
    {1: 2},
    {"a": [1, {"b": None}, "c"]},
    object(),
    "é" * 3000,
    "é",
    "x" * 5000,
    float("inf"),
    2**63,
    -(2**70),
    0.5,
    (1, "x"),
    [1] * 1100,
    dict.fromkeys(map(str, range(1100)), 1),
    {"accelerator": "k80"},
    {"count": 1},
    {"accelerator": 7},
    "spot",
    "run-1",
    "",
]
TARGETS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "lines of chief and agent": (said(), of_a_vm),
    "lines of jobs and of Dask": (said(frozenset({*_OF_JOB, *_OF_DASK})), of_work),
    "lines of a journal": (said(), of_a_journal),
    "metrics": (rows(), of_metrics),
    "blocks of bytes": (rows() | some.binary(max_size=300), of_lines),
    "manifests": (manifests(), of_a_manifest),
    "declarations": (declarations(), of_a_declaration),
    "messages": (spoken(), of_a_message),
    "assignments": (assignments | value, of_an_assignment),
    "answers to commands": (answers, of_an_answer),
    "listings": (listings | some.text(max_size=9), of_a_listing),
    "names of files": (
        some.sampled_from([*WORDS, "good.txt"]) | some.text(max_size=5) | some.binary(max_size=4),
        of_a_file_name,
    ),
    "values": (
        some.sampled_from(list(itertools.product(ANNOTATIONS, ODD)))
        | some.tuples(some.sampled_from(ANNOTATIONS), value),
        lambda both: of_a_class(*both),
    ),
}

ANYTHING = re.compile(r".*", re.DOTALL)


class Never(Exception):
    """Raised by nobody."""


def without(module: Any, name: str, instead: Any) -> Any:
    hides_a_builtin = hasattr(builtins, name)
    return patch.object(module, name, instead, create=hides_a_builtin)


ATTACKS: dict[str, tuple[str, Any]] = {
    "1: any event decides for the controller": (RUN, without(vm_events, "_OF_CHIEF", events.kinds())),
    "1: events of another run": (
        RUN,
        without(
            vm_events,
            "from_chief",
            lambda line, _, *when: events.read_foreign(line, vm_events._OF_CHIEF, "a VM", *when),
        ),
    ),
    "1: events of another job": (
        "lines of jobs and of Dask",
        without(vm_events, "from_job", lambda line, *_: events.read_foreign(line, _OF_JOB, "a VM", NOW, NOW)),
    ),
    "1: moments of another age": (RUN, without(events, "_DAY", 2**80)),
    "2: names of runs that lead elsewhere": ("lines of a journal", without(checks, "_NAME", ANYTHING)),
    "2: names of files that lead elsewhere": ("names of files", without(transfer, "checked_file", str)),
    "2: a manifest that leads elsewhere": ("manifests", without(manifest, "_FILE", ANYTHING)),
    "2: a listing that leads elsewhere": ("listings", without(checkpoint_copy, "_LISTED", ANYTHING)),
    "6: values of other types": (
        RUN,
        without(checks, "fields_of", lambda cls: {each.name: lambda given: given for each in fields(cls)}),
    ),
    "6: numbers too large for a float": (RUN, without(checks, "LARGEST", 10**5000)),
    "6: JSON that is too deep": ("lines of a journal", without(checks, "RecursionError", Never)),
    "6: metrics of other types": ("metrics", without(metrics, "_is_sound", lambda row: True)),
    "6: a declaration without what it needs": (
        "declarations",
        without(checks, "built", lambda cls, values: cls(**values)),
    ),
    "6: messages of other types": (
        "messages",
        without(
            checks,
            "known",
            lambda cls, values: {each.name: values[each.name] for each in fields(cls) if each.name in values},
        ),
    ),
    "11: lines without an end": (RUN, without(checks, "LONGEST_LINE", 2**40)),
    "16: errors that are none": (
        "answers to commands",
        without(errors, "error_class", lambda kind, otherwise: getattr(errors, str(kind), otherwise)),
    ),
}


def search(inputs: Any, holds: Callable[[Any], None], most: int, seen: Branches | None = None) -> Exception | None:
    """Try `most` inputs, guided by the branches that they reach; what does not hold, if anything."""

    @settings(
        max_examples=most,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.target),
        print_blob=False,
    )
    @given(inputs)
    def tried(given: Any) -> None:
        if seen is None:
            holds(given)
            return
        before = len(seen.reached)
        with seen.watching():
            holds(given)
        target(float(len(seen.reached) - before), label="new branches")

    try:
        tried()
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what was looked for)
        return error
    return None


def main() -> int:
    """Exit code 0 where all holds, every attack is found again and, but for --quick, the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the inputs")
    quick = parser.parse_args().quick
    most, began, good = 100 if quick else 1000, time.monotonic(), True
    seen = Branches(READERS)
    for name, (inputs, holds) in TARGETS.items():
        known = len(seen.reached)
        error = search(inputs, holds, most, seen)
        good &= error is None
        outcome = "holds" if error is None else repr(error)
        print(f"{name:28} {most:5} inputs, {len(seen.reached) - known:3} new branches, {outcome}")
    share = len(seen.reached) / seen.total
    seconds = time.monotonic() - began
    reached = f"{len(seen.reached)} of {seen.total} ({share:.1%}, goal >= {GOAL:.0%})"
    print(f"Branches of the readers: {reached} in {seconds:.0f} s")
    for place in seen.missed():
        print(f"  never: {place}")
    found = 0
    for name, (where, guard) in ATTACKS.items():
        with guard:
            error = search(*TARGETS[where], 20 * most)
        found += error is not None
        print(f"{name:42} {f'found: {type(error).__name__}: {error!s:.60}' if error else 'NOT FOUND'}".splitlines()[0])
    print(f"Attacks found again with their guard taken away: {found} of {len(ATTACKS)}")
    return 0 if good and found == len(ATTACKS) and (quick or share >= GOAL) else 1


if __name__ == "__main__":
    sys.exit(main())
