"""Whatever a controller on a VM has written: what this machine rents, runs and shows once it takes the cluster back.

The kinds of events and their values come from the registry, so a new kind is tested as soon as it is there.
"""

from __future__ import annotations

import json
import signal
import tempfile
import time
import types
import typing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Union, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.client.text import screens
from transient_magics.controller.cluster import Controller
from transient_magics.controller.decisions.core import RequestVm, Situation, decide
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.trust import sifted_until
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.machines import requested, vm_request
from transient_magics.controller.works import Tick
from transient_magics.errors import JournalError
from transient_magics.journal import ClusterState, Event, Journal, RunState, bill, declared, events, read, replay
from transient_magics.kinds import KINDS as WORKS
from transient_magics.panels.snapshot.view import view
from transient_magics.panels.static.panel import html
from transient_magics.protocol import events as registry
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import ExtendStudy
from transient_magics.protocol.events import FACT, INTENTION, kinds
from transient_magics.protocol.literals import CheckedValue
from transient_magics.protocol.vm_events import TrainFinished, TrainProgress, TrainStarted
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup
from transient_magics.works.jobs.events import JobBegan
from transient_magics.works.jobs.state import JobState
from transient_magics.works.studies.events import StudyAsked, StudyExtended, StudyTold
from transient_magics.works.studies.sampling import point
from transient_magics.works.studies.spec import StudySpec
from transient_magics.works.studies.state import StudyState

PRICE = PriceLine("n1-standard-4", 0.256, 0.723, "test")
KINDS_OF_VMS = ("k80", "parameter-server", "controller", "cpu")
SPEC = ClusterSpec(
    name="one", groups=(WorkerGroup("k80", 2),), zones=("us-west1-b",), project="mine",
    prices=dict.fromkeys(KINDS_OF_VMS, PRICE), image="projects/mine/global/images/good", max_workers=4, max_cost=10.0,
    declared_at=time.time(), controller="cluster", id="0123abcd", preparation=2,
)  # fmt: skip
EVIL = replace(
    SPEC, groups=(WorkerGroup("a100", 64),), zones=("europe-west4-a",), image="projects/attacker/global/images/evil",
    service_account="owner@mine", max_cost=None, max_seconds=7 * 86400.0, max_workers=64, parameter_servers=9,
    preparation=1000, prices={**SPEC.prices, "a100": replace(PRICE, machine_type="a2-megagpu-16g")},
)  # fmt: skip
SPACE = [
    {"name": "lr", "kind": "float", "low": 0.001, "high": 0.1},
    {"name": "act", "kind": "choice", "choices": ["relu", "tanh"]},
]
STUDIED: dict[str, object] = {
    "name": "study-1", "trials": 3, "space": SPACE, "run": {"train_steps": 9, "name": "study-1"},
    "objective": "accuracy", "sampler": "tpe", "declared_at": 1.0,
}  # fmt: skip
STUDY = StudySpec.from_dict(STUDIED)
PREPARED = {"train_steps": 9, "prep": "cpux2"}
SOON = time.time() + 3600
RUNS: Mapping[str, dict[str, object]] = {
    "run-1": PREPARED,
    "run-2": {"train_steps": 9},
    "brought": {"train_steps": 9, "prep": "cpux500", "finish_by": SOON, "gpus": ["a100"], "zones": ["europe-west4-a"]},
}
JOB: dict[str, Any] = {"name": "job-1", "command": "true", "declared_at": 1.0}
BAG: dict[str, Any] = {
    "name": "bag-1", "jobs": 3, "space": [{"name": "x", "kind": "float", "low": 0.0, "high": 1.0}], "declared_at": 1.0,
}  # fmt: skip
DASK: dict[str, Any] = {"name": "dask-1", "workers": 1, "declared_at": 1.0}
SPECS: Mapping[str, list[dict[str, object]]] = {
    "cluster": [EVIL.to_dict(), replace(SPEC, max_cost=None, max_seconds=1e6).to_dict(), SPEC.to_dict()],
    "run": [{"train_steps": 10**6, "prep": "cpux500", "finish_by": SOON, "min_workers": 64}, PREPARED],
    "study": [{**STUDY.to_dict(), "trials": 1000, "sampler": "random"}, STUDY.to_dict()],
    "job": [{**JOB, "workers": 64}, JOB],
    "bag": [{**BAG, "jobs": 300}, BAG],
    "dask": [{**DASK, "workers": 64}, DASK],
}
"""Declarations of a cluster and, by kind, of work."""
VMS = ("worker-0", "worker-1", "worker-7", "ps-0", "ps-1", "prep-3", "controller-0", "controller-1")
NAMED = (*VMS, *RUNS, "study-1", "study-1-0", "job-1", "bag-1", "dask-1", "one")
WORDS: Mapping[str, Sequence[str]] = {
    "accelerator": ("", "a100", "k80", "cpu"),
    "gpu": ("", "a100", "k80", "cpu"),
    "role": ("worker", "ps", "controller", "prep"),
    "zone": ("us-west1-b", "europe-west4-a"),
    "machine_type": ("n1-standard-4", "n1-highmem-2", "a2-megagpu-16g"),
    "vm": VMS,
    "worker": VMS,
    "replaces": VMS,
    "run": (*RUNS, "study-1-0", "run-9"),
    "study": ("study-1", "study-2"),
}
"""By a field's name, what may stand in it, where any text would be without effect."""
PARAMS = [
    {"lr": 0.01, "act": "tanh"},
    {"lr": 1e9, "act": "__import__('os').system('id')"},
    {"lr": 0.01, "act": "tanh", "extra": "../../etc"},
]
OFTEN: Mapping[tuple[str, str], Sequence[object]] = {
    ("study.asked", "study"): ["study-1"],
    ("study.asked", "trial"): [0, 0, 1, 1000],
    ("study.asked", "runs"): [("study-1-0",), ("study-1-0",), ("run-2",)],
    ("study.extended", "study"): ["study-1"],
    ("preparation.scaled", "run"): ["run-1", "run-1", "brought"],
    ("vm.requested", "vm"): ["worker-7", "worker-8", "worker-0", "ps-1", "prep-3"],
    ("vm.requested", "replaces"): ["worker-7", "worker-8", "worker-0", None],
}
"""Values of single fields that are seldom drawn together."""
HANG_SECONDS = 20.0


def values(kind: str, name: str, annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of an event's field, most of them such as its class lets in."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if name == "spec":
        return st.sampled_from(SPECS.get(kind.partition(".")[0], [{}]))
    if name == "params":
        return st.sampled_from(PARAMS)
    if (kind, name) in OFTEN:
        return st.sampled_from(OFTEN[kind, name])
    if name == "point" or annotation == CheckedValue:
        return st.just({"x": 0.5} if name == "point" else 1)
    if origin is Annotated:
        return values(kind, name, arguments[0])
    if origin in (Union, types.UnionType):
        return st.one_of([values(kind, name, each) for each in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        element = name.removesuffix("s")
        if arguments[-1] is Ellipsis:
            found = st.lists(values(kind, element, arguments[0]), max_size=3)
            many = st.integers(3, 1100).map(lambda number: tuple(range(number)))
            return found.map(tuple) | many if name == "slots" else found.map(tuple)
        return st.tuples(*(values(kind, element, each) for each in arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(values(kind, "key", arguments[0]), values(kind, "value", arguments[1]), max_size=2)
    if is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return st.fixed_dictionaries(
            {each.name: values(kind, each.name, hints[each.name]) for each in fields(annotation)}
        )
    return plain(name, annotation)


def plain(name: str, annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a simple type."""
    choices: Mapping[Any, Sequence[object]] = {
        type(None): [None],
        bool: [True, False],
        int: [0, 1, 2, 3, 64, 1000, 2**40, time.time_ns()],
        float: [0.0, 0.5, 1.0, 1e-6, 64.0, 1e9, time.time(), SOON, -5.0],
        str: WORDS.get(name) or (*NAMED, "europe-west4-a", "0", "1", "stockout"),
        object: [1],
    }
    return st.sampled_from(choices[annotation])


def lines(kind: str) -> st.SearchStrategy[Event | None]:
    """Return events of the kind; None where the values are no such event."""
    if kinds()[kind] is events.WorkDeclared:
        return st.sampled_from(list(WORKS)).flatmap(declarations)
    hints = typing.get_type_hints(kinds()[kind], include_extras=True)
    own = {each.name: hints[each.name] for each in fields(kinds()[kind]) if each.name not in ("seq", "time")}
    parts = {name: values(kind, name, annotation) for name, annotation in own.items()}
    return st.fixed_dictionaries(parts).map(lambda found: line(kind, found))


def declarations(of: str) -> st.SearchStrategy[Event | None]:
    """Return declarations of work of the kind `of`."""
    parts = {"of": st.just(of), "work": values("work.declared", of, str), "spec": st.sampled_from(SPECS[of])}
    return st.fixed_dictionaries(parts).map(lambda found: line("work.declared", found))


def line(kind: str, found: Mapping[str, object]) -> Event | None:
    try:
        return events.from_dict(kind, {**found, "seq": 0, "time": time.time_ns()})
    except JournalError:
        return None


FORGED = [kind for kind in kinds() if kind not in ("controller.moved", "cluster.deleted", "cluster.taken_back")]
"""The mirror lets none of those three into its copy (`test_foreign_words`)."""
INTENDED = [kind for kind in FORGED if kinds()[kind].provenance == INTENTION]
INTENTIONS = [
    *(lines(kind) for kind in INTENDED if kinds()[kind] is not events.WorkDeclared),
    *(declarations(of) for of in WORKS),
]
"""Every kind of intention; of declarations, that of every kind of work."""
LINE = st.one_of([st.sampled_from(FORGED).flatmap(lines), st.sampled_from(INTENTIONS).flatmap(lambda each: each)])
WRITTEN = st.lists(LINE, min_size=1, max_size=6).map(lambda found: [each for each in found if each])
"""Few lines of a VM; every second one is an intention."""
FACTS = st.lists(st.sampled_from(sorted(set(FORGED) - set(INTENDED))).flatmap(lines), max_size=8)
EVERY = st.tuples(st.tuples(*INTENTIONS), FACTS, st.randoms(use_true_random=False)).map(
    lambda found: mixed([*found[0], *found[1]], found[2])
)
"""Lines of a VM with an intention of every kind, among facts, in any order."""
BEGUN = [
    events.ClusterLeased(ports={"run-1": 0}, workers={"0": "run-1"}),
    TrainStarted(run="run-1", step=0),
]


def mixed(found: Sequence[Event | None], chance: Random) -> list[Event]:
    written = [each for each in found if each]
    chance.shuffle(written)
    return written


class _Idle:
    """Tasks of which none begins."""

    def do(self, *_: object) -> None: ...

    def __contains__(self, key: str) -> bool:
        return False


IDLE = cast(Tasks, _Idle())


@contextmanager
def folder() -> Iterator[Path]:
    """A cluster's folder on this machine, whose user declared runs, a study, a job, a bag and a Dask cluster."""
    memory = Path("/dev/shm")  # each journal is synced, which takes a disk a tenth of a second
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place:
        directory = Path(place)
        (directory / layout.SPEC).write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
        declared.agree(directory, SPEC)
        for name, found in RUNS.items():
            write(directory / layout.RUNS / name / layout.RUN, {"name": name, "token": "t", **found})
        declared.note_brought(directory, "brought")
        write(directory / layout.STUDIES / "study-1" / layout.STUDY, STUDY.to_dict())
        write(directory / layout.JOBS / "job-1" / layout.JOB, JOB)
        write(directory / layout.BAGS / "bag-1" / layout.BAG, BAG)
        write(directory / layout.DASKS / "dask-1" / layout.DASK, DASK)
        yield directory


def write(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def history(directory: Path, written: Sequence[Event], *, returned: bool = True) -> Path:
    """Write the journal: what this machine's controller wrote, then the VM's, and return its path."""
    server: dict[str, Any] = {
        "zone": "us-west1-b", "machine_type": "n1-standard-4", "hourly": 0.256, "on_demand_hourly": 0.723,
        "ends": SPEC.ends_at,
    }  # fmt: skip
    own = [("controller", "", "standard"), ("ps", "", "standard"), ("worker", "k80", "spot")]
    with Journal(directory / layout.JOURNAL) as journal:
        journal.append(events.ClusterDeclared(spec=SPEC.to_dict()))
        for number, (role, gpu, model) in enumerate(own):
            name = f"{role}-0"
            terms = cast("Literal['spot', 'standard']", model)
            journal.append(
                events.VmRequested(vm=name, role=role, slot=0, accelerator=gpu, provisioning_model=terms, **server)
            )
            journal.append(events.VmRunning(vm=name, address=f"10.0.0.{number}", vm_id=str(number)))
            journal.append(events.VmReady(vm=name))
        journal.append(events.ClusterReady(workers=2, seconds=1.0))
        journal.append(events.WorkDeclared(of="run", work="run-1", spec=PREPARED))
        journal.append(events.WorkDeclared(of="study", work="study-1", spec=STUDY.to_dict()))
        journal.append(events.ControllerMoved(vm="controller-0"))
        for each in [*BEGUN, *written]:
            journal.append(replace(each, seq=0, time=0))
        if returned:
            journal.append(events.VmRevoked(vm="controller-0", signal="api"))
            journal.append(events.ControllerMoved(vm=""))
    return directory / layout.JOURNAL


@contextmanager
def taken_back(directory: Path) -> Iterator[Controller]:
    """A controller on this machine that takes charge, up to where it asks Compute Engine."""
    controller = Controller(directory)
    with Journal(directory / layout.JOURNAL) as journal:
        controller._create_works(Recorder(journal, replay(read(journal.path))))
        controller._sift_journal(declared.agreed(directory))
        yield controller


def decided(state: ClusterState) -> list[RequestVm]:
    return [each for each in decide(Situation(time.time(), state)) if isinstance(each, RequestVm)]


def rented_as(state: ClusterState) -> ClusterSpec:
    spec = state.relocation.spec if state.relocation else state.spec
    assert spec
    return spec


def requests_of(state: ClusterState) -> list[events.VmRequested]:
    return [requested(rented_as(state), each) for each in decided(state)]


def outside(state: ClusterState, asked: Sequence[events.VmRequested]) -> list[str]:
    """Say what of the requests is not as SPEC says, by the bodies that would be sent."""
    wrong = list[str]()
    for event in asked:
        body, own = vm_request(rented_as(state), event, "key"), vm_request(SPEC, event, "key")
        wrong += [f"{event.vm}: {name}" for name in asdict(own) if getattr(body, name) != getattr(own, name)]
        if event.machine_type != "n1-standard-4":
            wrong.append(f"{event.vm} is a {event.machine_type}")
        if event.zone != "us-west1-b":
            wrong.append(f"{event.vm} is in {event.zone}")
        if event.ends > SPEC.ends_at:
            wrong.append(f"{event.vm} ends later")
        terms = "spot" if event.role in ("worker", "prep") else "standard"
        if event.provisioning_model != terms:
            wrong.append(f"{event.vm} is {event.provisioning_model}")
        kinds = {"worker": "k80", "prep": "cpu"}
        if event.accelerator != kinds.get(event.role, ""):
            wrong.append(f"{event.vm} has {event.accelerator}")
    counts = Counter(event.role for event in asked)
    most = {"worker": 2, "prep": 2, "ps": 1, "controller": 1}
    return wrong + [f"{count} {role}" for role, count in counts.items() if count > most.get(role, 0)]


def show(state: ClusterState) -> None:
    """Draw what panels and terminals show of the state; TimeoutError where that never ends."""

    def hangs(*_: object) -> None:
        raise TimeoutError("it is still being drawn")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    try:
        now = time.time()
        costs = bill(state, now)
        html(view(state, costs, now))
        screens.status(state, costs, now)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def stands(written: Sequence[Event]) -> None:
    """Check the promise for what a VM wrote."""
    with folder() as directory:
        path = history(directory, written)
        show(replay(read(path)))
        with taken_back(directory) as controller:
            state = controller._state
            assert outside(state, requests_of(state)) == []
            assert state.spec == SPEC
            assert state.relocation is None
            for _ in range(2):
                controller._works["study"].tick(Tick(IDLE, time.time(), lambda: {0: "k80", 1: "k80"}))
            trials_are_declared(controller._state, directory)
            show(controller._state)
        again = replay(read(path))
        assert again.spec == SPEC, "every reader of the journal sees the same"
        assert outside(again, requests_of(again)) == []


def trials_are_declared(state: ClusterState, directory: Path) -> None:
    for study in state.of(StudyState).values():
        assert study.spec == STUDY
        assert study.planned == 3
        assert all(STUDY.tries(trial.params) for trial in study.trials.values())
    for path in (directory / layout.RUNS).glob("study-1-*/run.json"):
        assert STUDY.tries(json.loads(path.read_text(encoding="utf-8"))["params"])


@given(EVERY)
@examples(40)
def test_whatever_a_vm_wrote_nothing_outside_the_declaration_is_requested(written: list[Event]) -> None:
    stands(written)


@pytest.mark.nightly
@given(EVERY)
@examples(1000)
def test_lines_with_every_intention_of_a_vm_rent_nothing_outside_the_declaration(written: list[Event]) -> None:
    stands(written)


@pytest.mark.nightly
@given(WRITTEN)
@examples(3000)
def test_few_lines_of_a_vm_rent_nothing_outside_the_declaration(written: list[Event]) -> None:
    stands(written)


class Deaf(Fleet):
    """A fleet that records its requests and sends none."""

    def _send_batch(self, batch: Sequence[events.VmRequested]) -> Any:
        return None


def recorded(directory: Path, state: ClusterState, path: Path) -> tuple[list[events.VmRequested], str]:
    """Return the requests that a fleet records, and its trouble."""
    with Journal(path) as journal:
        recorder = Recorder(journal, state)
        begin = journal.seq
        fleet = Deaf(directory, recorder, cast(Access, None), IDLE, lambda *_: None, lambda _: None)
        fleet.request(decided(state))
        new = [event for event in read(path) if isinstance(event, events.VmRequested) and event.seq > begin]
        return new, recorder.trouble


def stands_the_wall(written: Sequence[Event]) -> None:
    """Check the second wall alone: the journal is not sifted, all that the VM wrote counts."""
    with folder() as directory:
        path = history(directory, written, returned=False)
        state = replay(read(path))
        if state.spec and state.phase != "deleting":
            new, _ = recorded(directory, state, path)
            assert outside(state, new) == []


@given(EVERY)
@examples(20)
def test_the_fleet_requests_nothing_outside_the_declaration_whatever_the_state_says(written: list[Event]) -> None:
    stands_the_wall(written)


@pytest.mark.nightly
@given(WRITTEN)
@examples(2000)
def test_the_fleet_refuses_what_few_lines_of_a_vm_ask_for(written: list[Event]) -> None:
    stands_the_wall(written)


def test_each_kind_of_event_says_whether_it_is_a_fact() -> None:
    assert {cls.provenance for cls in kinds().values()} == {FACT, INTENTION}
    with pytest.raises(TypeError, match="provenance"):
        cast(Callable[..., object], registry.event)("x.made")


def test_a_vm_does_not_move_the_cluster_of_this_machine() -> None:
    relocating = [events.ClusterRelocating(spec=EVIL.to_dict())]
    stands(relocating)
    with folder() as directory:
        path = history(directory, relocating)
        with taken_back(directory) as controller:
            assert "does not count: cluster.relocating" in controller._state.trouble
        assert "cluster.relocating" in (directory / "journal.left-out.jsonl").read_text(encoding="utf-8")
        back = [each for each in read(path) if isinstance(each, events.ClusterTakenBack)]
        assert [dict(each.left_out) for each in back] == [{"cluster.relocating": 1}]


def test_the_fleet_refuses_a_move_that_this_machines_user_has_not_asked_for() -> None:
    with folder() as directory:
        path = history(directory, [events.ClusterRelocating(spec=EVIL.to_dict())], returned=False)
        state = replay(read(path))
        new, trouble = recorded(directory, state, path)
        assert new == []
        assert "is not requested, because the declaration of one on this machine does not allow it" in trouble
        declared.agree_to_move(directory, EVIL)
        new, trouble = recorded(directory, state, path)
        assert Counter(each.role for each in new) == {"worker": 64, "ps": 9, "controller": 1}
        assert trouble == ""


def test_a_refused_request_holds_up_no_other() -> None:
    wider = replace(SPEC, groups=(*SPEC.groups, WorkerGroup("k80", 3)), end_hourly=SPEC.most_hourly)
    with folder() as directory:
        path = history(directory, [events.ClusterResized(spec=wider.to_dict())], returned=False)
        new, trouble = recorded(directory, replay(read(path)), path)
        assert [each.vm for each in new] == ["worker-1"], "of five workers two are declared, and one is there"
        assert "it allows 2 such VMs, and there are already 2" in trouble


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": "projects/attacker/global/images/evil"}, "differs in image"),
        ({"network": "open"}, "differs in network"),
        ({"disk_gb": 4000}, "differs in disk gb"),
        ({"max_cost": None, "max_seconds": 1e6}, "s after the cluster"),
        ({"zones": ("europe-west4-a",)}, "no such VM in europe-west4-a"),
        ({"provisioning_model": "standard"}, "no such VM with the provisioning model standard"),
        ({"prices": {**SPEC.prices, "k80": replace(PRICE, machine_type="n1-highmem-64")}}, "must be n1-standard-4"),
        ({"groups": (WorkerGroup("a100", 2),), "prices": EVIL.prices}, "no worker with a100"),
    ],
)
def test_the_fleet_says_in_which_way_a_request_is_not_as_declared(change: dict[str, Any], said: str) -> None:
    with folder() as directory:
        other = replace(SPEC, **change)
        path = history(directory, [events.ClusterResized(spec=other.to_dict())], returned=False)
        new, trouble = recorded(directory, replay(read(path)), path)
        assert new == []
        assert said in trouble


def test_the_service_account_of_the_controllers_vm_is_the_declared_one() -> None:
    with folder() as directory:
        other = replace(SPEC, service_account="owner@mine")
        gone = events.VmRevoked(vm="controller-0", signal="api")
        path = history(directory, [events.ClusterResized(spec=other.to_dict()), gone], returned=False)
        new, trouble = recorded(directory, replay(read(path)), path)
        assert {each.role for each in new} == {"worker"}, "workers have no account"
        assert "controller-1 is not requested" in trouble
        assert "the request differs in service account" in trouble


def test_runs_have_no_more_preparation_vms_than_the_cluster_may_have() -> None:
    many = events.PreparationScaled(run="run-1", slots=tuple(range(1000)))
    stands([many])
    with folder() as directory:
        state = replay(read(history(directory, [many], returned=False)))
        assert sum(each.role == "prep" for each in decided(state)) == SPEC.preparation == 2


@pytest.mark.parametrize("names", [("worker-7",), ("worker-7", "worker-8")])
def test_vms_that_replace_each_other_in_a_circle_are_drawn(names: tuple[str, ...]) -> None:
    """Also where a name is requested a second time."""
    server: dict[str, Any] = {
        "role": "worker", "slot": 1, "zone": "us-west1-b", "accelerator": "k80", "machine_type": "n1-standard-4",
        "provisioning_model": "spot", "hourly": 0.2, "on_demand_hourly": 0.2,
    }  # fmt: skip
    circle = zip(names, [*names[1:], names[0]], strict=True)
    written = [events.VmRequested(vm=name, replaces=other, **server) for name, other in circle]
    stands([*written, *written])


def test_trials_of_a_vm_count_if_they_are_in_the_space() -> None:
    good = StudyAsked(study="study-1", trial=0, params=PARAMS[0], runs=("study-1-0",))
    told = StudyTold(study="study-1", trial=0, state="complete", value=0.5)
    for evil in (
        StudyAsked(study="study-1", trial=1, params=PARAMS[1], runs=("study-1-1",)),
        StudyAsked(study="study-1", trial=1, params=PARAMS[2], runs=("study-1-1",)),
        StudyAsked(study="study-1", trial=1, params=PARAMS[0], runs=("run-2",)),
        StudyExtended(study="study-1", trials=100_000, request="r1"),
    ):
        stands([good, told, evil])
        with folder() as directory:
            history(directory, [good, told, evil])
            with taken_back(directory) as controller:
                study = controller._state.of(StudyState)["study-1"]
                assert [(each.value, each.params) for each in study.trials.values()] == [(0.5, PARAMS[0])]
                assert study.planned == STUDY.trials
                assert "does not count: study." in controller._state.trouble


def test_a_trial_whose_point_follows_from_its_number_has_no_other_point() -> None:
    random = StudySpec.from_dict({**STUDIED, "name": "study-2", "sampler": "random"})
    drawn = point(random, 0)
    assert drawn is not None
    for params, trials in ((drawn, 1), (PARAMS[0], 0)):
        with folder() as directory:
            write(directory / layout.STUDIES / "study-2" / layout.STUDY, random.to_dict())
            asked = StudyAsked(study="study-2", trial=0, params=params, runs=("study-2-0",))
            history(directory, [events.WorkDeclared(of="study", work="study-2", spec={}), asked])
            with taken_back(directory) as controller:
                assert len(controller._state.of(StudyState)["study-2"].trials) == trials


def test_a_study_stays_extended_if_this_machines_user_has_asked_for_it() -> None:
    with folder() as directory:
        declared.note_asked(directory, ExtendStudy(study="study-1", trials=2, request="r1"))
        extended = StudyExtended(study="study-1", trials=2, request="r1")
        history(directory, [extended, replace(extended, trials=7), extended])
        with taken_back(directory) as controller:
            assert controller._state.of(StudyState)["study-1"].planned == STUDY.trials + 2


def test_a_trial_is_made_again_where_a_vm_has_put_its_own_run_in_its_place() -> None:
    with folder() as directory:
        write(directory / layout.RUNS / "study-1-0" / layout.RUN, {"name": "study-1-0", "token": "t", "train_steps": 7})
        declared.note_brought(directory, "study-1-0")
        history(directory, [events.WorkDeclared(of="run", work="study-1-0", spec={"train_steps": 7})])
        with taken_back(directory) as controller:
            assert "study-1-0" not in controller._state.of(RunState)
            assert not (directory / layout.RUNS / "study-1-0").exists()
            assert not declared.is_brought(directory, "study-1-0")


def test_what_a_controller_on_a_vm_did_by_its_orders_survives() -> None:
    """Runs and their progress, results, a resize, VMs that exist: all of them are there when the cluster comes back."""
    bigger = replace(SPEC, groups=(WorkerGroup("k80", 3),))
    server: dict[str, Any] = {
        "zone": "us-west1-b", "machine_type": "n1-standard-4", "hourly": 0.0, "on_demand_hourly": 0.0,
        "provisioning_model": "spot", "role": "worker", "accelerator": "k80", "ends": SPEC.ends_at,
    }  # fmt: skip
    with folder() as directory:
        declared.agree(directory, bigger)  # as the mirror notes it when it passes a resize on
        path = history(
            directory,
            [
                events.ClusterResized(spec=bigger.to_dict()),
                events.VmRequested(vm="worker-1", slot=1, **server),
                events.VmRunning(vm="worker-1", address="10.0.0.9", vm_id="9"),
                events.VmReady(vm="worker-1"),
                TrainProgress(run="run-1", step=5, loss=0.5, steps_per_second=1.0),
                events.WorkDeclared(of="run", work="run-2", spec={"train_steps": 9}),
                TrainStarted(run="run-2", step=0),
                TrainFinished(run="run-2", step=9, checkpoint="model.ckpt-9"),
                events.WorkDeclared(of="run", work="brought", spec={"train_steps": 9}),
                events.WorkDeclared(of="job", work="job-1", spec=JOB),
                JobBegan(job="job-1", attempt=1, vms=("worker-1",)),
                events.WorkEnded(work="job-1", of="job", state="finished"),
            ],
        )
        with taken_back(directory) as controller:
            state = controller._state
        assert state.spec == bigger
        assert state.trouble == ""
        assert state.vms["worker-1"].state == "ready"
        assert state.vms["worker-1"].hourly == PRICE.hourly, "the bill goes by this machine's prices"
        assert state.of(RunState)["run-1"].step == 5
        assert (state.of(RunState)["run-2"].phase, state.of(RunState)["run-2"].step) == ("finished", 9)
        assert state.of(JobState)["job-1"].phase == "finished"
        assert state.of(RunState)["brought"].spec.finish_by == 0.0, "a deadline of another machine rents nothing"
        assert state.deadline_run is None
        assert replay(read(path)).of(RunState) == state.of(RunState)


def test_what_this_machine_decides_after_it_has_taken_the_cluster_back_is_not_sifted_again() -> None:
    with folder() as directory:
        path = history(directory, [])
        with taken_back(directory) as controller:
            controller._recorder.record(events.TrainMoved(run="run-1"))
            controller._recorder.record(events.ReclaimWanted(number=1, vms=("worker-0",), until=SOON))
        assert sifted_until(read(path)) == len(read(path))
        with Journal(path) as journal:
            journal.append(events.ControllerMoved(vm="controller-0"))
            journal.append(events.ClusterTakenBack())
            journal.append(events.ReclaimWanted(number=0))
            journal.append(events.ControllerMoved(vm=""))
        assert sifted_until(read(path)) < len(read(path)), "a VM cannot say that its own lines were sifted"
        with taken_back(directory) as controller:
            assert controller._state.reclaim
