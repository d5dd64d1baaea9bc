"""What work left on the VM of a controller comes a moment after the word of it: who waits or asks has no less."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.client.test_jobs import SEATED
from tests.client.test_profile import step
from tests.homes import own_home
from transient_magics import places
from transient_magics.client import Cluster, Declaration, Run, commands
from transient_magics.client.declaring import specify
from transient_magics.client.folders import KnownRun
from transient_magics.client.following import cluster as home
from transient_magics.client.planning import workloads
from transient_magics.errors import ClusterError, TrainingError
from transient_magics.files import write_atomically
from transient_magics.journal import Event, Journal, events, lock
from transient_magics.protocol import layout
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.step_parts import packed
from transient_magics.protocol.vm_events import TrainEvaluated, TrainFinished, TrainStarted
from transient_magics.works.bags import events as b
from transient_magics.works.bags import events as e
from transient_magics.works.bags import handle as handle_of_bags
from transient_magics.works.bags.handle import Bag
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.storage import pack_surrogate
from transient_magics.works.bags.surrogate.model import learn
from transient_magics.works.studies.events import StudyAsked, StudyTold
from transient_magics.works.studies.handle import Study
from transient_magics.works.studies.spec import StudySpec

RUN = RunSpec("run-1", 10, eval_steps=10)
STUDY = StudySpec("s", RUN, "max accuracy", parse_space("lr=0.1,0.2"), trials=2, sampler="grid")
SPACE = parse_space("x=0.0:1.0")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One whose controller is on a VM; the program that follows that is the test."""
    with own_home():
        directory = places.cluster("one")
        directory.mkdir(parents=True)
        spec = specify(Declaration("cpux2", name="one"))
        with Journal(directory / layout.JOURNAL) as journal:
            for each in (events.ClusterDeclared(spec=spec.to_dict()), *SEATED):
                journal.append(each)
        lock.take(directory)
        yield Cluster("one")


def happen(cluster: Cluster, *told: Event) -> None:
    with Journal(cluster.directory / layout.JOURNAL) as journal:
        for each in told:
            journal.append(each)


def later(do: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(1.0, do)
    timer.start()
    return timer


def come(run: Run) -> None:
    run.directory.mkdir(parents=True, exist_ok=True)
    with (run.directory / layout.METRICS).open("a", encoding="utf-8") as file:
        file.write('{"time": 1, "worker": "worker-0", "step": 10, "steps": 10}\n')
    (run.directory / layout.HOME).touch()


@pytest.mark.slow
def test_who_waits_for_a_run_has_all_of_its_metrics(cluster: Cluster, tmp_path: Path) -> None:
    run = Run("run-1", cluster)
    happen(
        cluster, events.WorkDeclared(of="run", work="run-1", spec=RUN.without_token()),
        TrainStarted(run="run-1", step=0),
        TrainFinished(run="run-1", step=10),
    )  # fmt: skip
    coming = later(lambda: come(run))
    assert run.wait(60).step == 10
    assert run.history()["step"].tolist() == [10]
    coming.join()
    assert layout.HOME not in [path.name for path in run.fetch(tmp_path / "got").iterdir()]


@pytest.mark.slow
def test_who_waits_for_a_study_has_the_metrics_of_its_trials(cluster: Cluster) -> None:
    trial = Run(STUDY.run_name(0), cluster)
    happen(
        cluster, events.WorkDeclared(of="study", work="s", spec=STUDY.to_dict()),
        StudyAsked(study="s", trial=0, params={"lr": 0.1}, runs=(trial.name,)),
        events.WorkDeclared(of="run", work=trial.name, spec=RUN.without_token()),
        TrainStarted(run=trial.name, step=0), TrainFinished(run=trial.name, step=10),
        StudyTold(study="s", trial=0, state="complete", value=0.9),
        events.WorkStopping(work="s", of="study", reason="its limit"),
    )  # fmt: skip
    coming = later(lambda: come(trial))
    best = Study("s", cluster).wait(60)
    assert best
    assert len(best.runs[0].history()) == 1
    coming.join()


@pytest.mark.slow
def test_a_trace_is_the_one_that_was_asked_for_and_not_that_of_last_time(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("run-1", cluster)
    happen(
        cluster,
        events.WorkDeclared(of="run", work="run-1", spec=RUN.without_token()),
        TrainStarted(run="run-1", step=0),
    )
    trace = run.directory / layout.trace_of("worker-3")
    trace.parent.mkdir(parents=True)
    trace.write_bytes(packed(step()))
    coming: list[threading.Timer] = []

    def send(*_: object) -> dict[str, object]:
        happen(cluster, events.TrainTraced(run="run-1", worker="worker-3"))
        coming.append(later(lambda: write_atomically(trace, packed(step(250_000.0)))))
        return {}

    monkeypatch.setattr(commands, "send", send)
    assert '"worker-3"' in run.profile(tmp_path / "step.json").read_text(encoding="utf-8")
    assert "moved by" in (tmp_path / "step.json").read_text(encoding="utf-8"), "the later one"
    coming[0].join()
    monkeypatch.setattr(home, "HOME_SECONDS", 0.3)
    monkeypatch.setattr(
        commands, "send", lambda *_: happen(cluster, events.TrainTraced(run="run-1", worker="worker-3"))
    )
    with pytest.raises(TrainingError, match="The trace has not arrived from the VM of the controller"):
        run.profile(tmp_path / "step.json")


def test_a_plan_looks_again_at_a_run_of_which_not_all_was_here(cluster: Cluster) -> None:
    run = Run("run-1", cluster)
    happen(
        cluster, events.WorkDeclared(of="run", work="run-1", spec=RUN.without_token()),
        TrainStarted(run="run-1", step=0),
        TrainEvaluated(run="run-1", step=10, metrics={"accuracy": 0.5}),
        TrainFinished(run="run-1", step=10),
    )  # fmt: skip
    run.directory.mkdir(parents=True)
    (run.directory / layout.CELL).touch()
    known = KnownRun(cluster.directory, run.state)
    store = workloads.store_of(known)
    over: list[bool] = []
    for comes in (lambda: None, lambda: come(run)):
        comes()
        workloads.learn(store, known)
        over.append(store.records("emulated")[known.identity].over)
    assert over == [False, True]


def surrogate(results: int) -> tuple[bytes, bytes]:
    rows = np.linspace(0.0, 1.0, results)
    return pack_surrogate(learn(SPACE, [({"x": float(x)}, {"y": float(x) * results}) for x in rows]))


def put(bag: Bag, header: bytes, arrays: bytes) -> None:
    bag.directory.mkdir(parents=True, exist_ok=True)
    write_atomically(bag.directory / layout.SURROGATE_ARRAYS, arrays)
    write_atomically(bag.directory / layout.SURROGATE, header)


@pytest.mark.slow
def test_who_waits_for_a_bag_has_what_was_learnt_last(cluster: Cluster) -> None:
    bag, spec = Bag("bag-1", cluster), BagSpec("bag-1", SPACE, 16, declared_at=time.time())
    computed = [
        each for job in range(16)
        for each in (
            b.BagProposed(bag="bag-1", job=job, point={"x": job / 15}),
            b.BagStarted(bag="bag-1", job=job, attempt=1, vm="worker-0", age=0.0),
            b.BagResult(bag="bag-1", job=job, attempt=1, returned={"y": 1.0}, seconds=1.0),
        )
    ]  # fmt: skip
    happen(
        cluster, events.WorkDeclared(of="bag", work="bag-1", spec=spec.to_dict()),
        e.BagBegan(bag="bag-1", dask="bag-1-1"), *computed,
        b.BagLearnt(bag="bag-1", batch=0, results=8, model="gp"),
        b.BagLearnt(bag="bag-1", batch=1, results=16, model="gp"),
        events.WorkEnded(work="bag-1", of="bag", state="finished", reason="all of it is computed"),
    )  # fmt: skip
    put(bag, *surrogate(8))
    coming = later(lambda: put(bag, *surrogate(16)))
    bag.wait(60)
    assert len(bag.surrogate.rows) == 16
    coming.join()


@pytest.mark.slow
def test_a_surrogate_is_never_of_two_that_replace_each_other(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bag = Bag("bag-1", cluster)
    (header, _), newer = surrogate(8), surrogate(16)
    put(bag, header, newer[1])
    coming = later(lambda: put(bag, *newer))
    monkeypatch.setattr(handle_of_bags, "_LOOK_SECONDS", 1.0)
    assert len(bag.surrogate.rows) == 16
    coming.join()
    monkeypatch.setattr(handle_of_bags, "_LOOK_SECONDS", 0.0)
    put(bag, header, newer[1])
    with pytest.raises(ClusterError, match="the arrays belong to another surrogate"):
        _ = bag.surrogate
