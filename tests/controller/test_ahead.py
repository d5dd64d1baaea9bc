"""Who is told to make a worker ready before its run has the VM, and until when: the conduct of two runs."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controller.test_agent_lines import cluster as cluster
from tests.controller.test_agent_lines import in_charge
from tests.controller.test_agent_lines import served as served
from transient_magics.controller.decisions.admission import Server
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.link import Link, Work
from transient_magics.controller.works import Tick
from transient_magics.journal import RunState, events
from transient_magics.protocol.vm_events import TrainFinished, TrainMade, TrainProgress, TrainStarted, WorkerJoined
from transient_magics.works.runs.conduct import Runs
from transient_magics.works.runs.training import Training


class Told:
    """The link to a VM, and what it was told to do in which run."""

    def __init__(self) -> None:
        self.work: dict[str, Work] = {}

    @property
    def runs(self) -> frozenset[str]:
        return frozenset(self.work)

    @property
    def ahead(self) -> dict[str, bool]:
        return {run: work.ahead for run, work in self.work.items()}

    def expect(self, *_: Any, **__: Any) -> None:
        pass

    def assign(self, work: Work) -> None:
        self.work[work.assignment.run] = work

    def release(self, run: str) -> None:
        self.work.pop(run, None)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_run_makes_ready_beside_the_last_steps_of_another_and_has_the_vm_after_them(
    served: Path, stopped: bool
) -> None:
    links = {name: Told() for name in ("worker-0", "ps-0")}
    fleet = SimpleNamespace(server=Server(), link=links.get, release=lambda _: None, training_refused="")
    with in_charge(served) as controller:
        record, asked = controller._recorder.record, {"train_steps": 100, "least_workers": 1, "most_workers": 1}
        runs = Runs(served, controller._recorder, controller._link)
        runs.take_charge(cast(Fleet, fleet), cast(Tasks, None))
        for name in ("a", "b"):
            record(events.WorkDeclared(of="run", work=name, spec={**asked, "name": name, "check": False}))
            run = controller._state.of(RunState)[name]
            training = Training(run, served / "runs" / name, record, cast("Any", links.get), lambda: None)
            training._checked = True
            runs._trainings[name] = training
        runs.tick(Tick(cast(Tasks, None), time.time(), lambda: {0: "k80"}))
        record(TrainStarted(run="a", step=0))
        record(WorkerJoined(run="a", worker="worker-0", number=0, active=1))
        assert links["worker-0"].ahead == {"a": False}
        told = {"loss": 1.0, "samples_per_second": 1.0, "active": 1}
        record(TrainProgress(run="a", step=50, steps_per_second=10.0, **told))
        for _ in range(2):  # once its parameter server is asked for it is known where its workers will find it
            runs.tick(Tick(cast(Tasks, None), time.time(), lambda: {0: "k80"}))
        assert links["worker-0"].ahead == {"a": False, "b": True}
        assert controller._state.leases == {0: "a"}
        if stopped:
            record(TrainFinished(run="b", step=0, stopped=True))
            runs.tick(Tick(cast(Tasks, None), time.time(), lambda: {0: "k80"}))
            assert links["worker-0"].ahead == {"a": False}
            return
        record(TrainMade(run="a", step=100))
        runs.tick(Tick(cast(Tasks, None), time.time(), lambda: {0: "k80"}))
        assert links["worker-0"].ahead == {"b": False}
        assert cast("Link", links["ps-0"]).runs == {"a", "b"}
