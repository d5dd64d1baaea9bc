"""A bag as its journal tells it: jobs on the four workers of a cluster, one lost with its VM, one failed."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cached_property
from typing import Any

from transient_magics.journal import ClusterState, Event, events, replay
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags import events as b
from transient_magics.works.bags import events as e
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.surrogate.active_learning import judge
from transient_magics.works.dask.events import DaskBegan
from transient_magics.works.dask.spec import DaskSpec

from .stories import declaration, requested

BEGAN = 1_780_000_000.0
WORKERS = 4
SECONDS = 60.0
"""That a job takes."""
BATCH = 24
SPACE = "density=0.3:0.9 temperature=0.8:1.6"


def specification(jobs: int, **more: Any) -> BagSpec:
    """A bag over density and temperature; `more`: what is declared otherwise."""
    declared = {"space": parse_space(SPACE), "until": {"pressure": 0.01}, "retries": 0, "seed": 3, "spare": 0.1}
    return BagSpec(**{"name": "bag-1", "jobs": jobs, **declared, **more})


class BagStory:
    """A bag of which so many jobs are done and four run at the end; `state` is what that adds up to.

    The VM of job 5 was revoked and it began again; job 6 failed; the VM of the last but one that ran was lost a moment
    ago, so it waits. `over`: it has ended.
    """

    def __init__(self, spec: BagSpec, done: int, *, over: bool = False) -> None:
        self.spec, self.now = spec, BEGAN
        self._at: list[tuple[float, Event]] = []
        self._random = random.Random(5)
        self._tell(done, over)
        self.history = [
            replace(event, seq=number, time=int(at * 1e9))
            for number, (at, event) in enumerate(sorted(self._at, key=lambda pair: pair[0]), 1)
        ]
        self.now = max(at for at, _ in self._at) + 20

    @cached_property
    def state(self) -> ClusterState:
        """The state at `now`, some seconds after the last event."""
        return replay(self.history)

    def _tell(self, done: int, over: bool) -> None:
        say, spec, name = self._say, self.spec, self.spec.name
        vms = [f"worker-{number}" for number in range(WORKERS)]
        cluster = replace(declaration("simulate", WORKERS, purpose="jobs"), declared_at=BEGAN, max_seconds=90 * 3600.0)
        say(0, events.ClusterDeclared(spec=cluster.to_dict()))
        for slot, vm in enumerate(("ps-0", *vms)):
            say(0.1, requested(vm, max(0, slot - 1)))
            say(20 + slot, events.VmRunning(vm=vm, address=f"10.128.0.{slot + 2}"))
            say(40, events.VmReady(vm=vm))
        say(40.1, events.ClusterReady(workers=WORKERS, seconds=40.0))
        say(50, events.WorkDeclared(of="bag", work=name, spec=spec.to_dict()))
        dask = DaskSpec(f"{name}-1", WORKERS, bag=name)
        say(50.1, e.BagBegan(bag=name, dask=dask.name))
        say(50.2, events.WorkDeclared(of="dask", work=dask.name, spec=dask.to_dict()))
        say(50.3, DaskBegan(dask=dask.name, vm="ps-0"))
        say(50.4, events.ClusterLeased(ports={}, workers={str(slot): dask.name for slot in range(WORKERS)}))
        free = dict.fromkeys(range(WORKERS), 51.0)
        number = results = 0
        predicted: list[dict[str, tuple[float, float]]] = []
        returned: list[dict[str, float]] = []
        while results < done:
            slot = min(free, key=lambda each: free[each])
            at, point = free[slot], self._propose(number, min(free.values()), results)
            vm = vms[slot]
            say(at, b.BagStarted(bag=name, job=number, attempt=1, vm=vm, age=at - 20))
            length, attempt = SECONDS * self._random.uniform(0.7, 1.3), 1
            if number == 5:
                vms[slot] = vm = f"worker-{WORKERS + slot}"
                say(at + 20, b.BagSaved(bag=name, job=number, attempt=1, done=18.0, seconds=0.5))
                say(at + 30, b.BagLost(bag=name, job=number, attempt=1, why="revoked"))
                say(at + 30.1, events.VmRevoked(vm=f"worker-{slot}", signal="api"))
                say(at + 30.2, requested(vm, slot, f"worker-{slot}"))
                say(at + 50, events.VmRunning(vm=vm, address="10.128.0.99"))
                say(at + 55, events.VmReady(vm=vm))
                at, attempt = at + 56, 2
                say(at, b.BagStarted(bag=name, job=number, attempt=2, vm=vm, age=6.0, done=18.0))
            free[slot] = at + length + 0.5
            if number == 6:
                why = "ValueError: it did not converge"
                say(at + 9, b.BagLost(bag=name, job=number, attempt=1, why="raised", reason=why))
                free[slot] = at + 10
            else:
                values = self._computed(point)
                result = b.BagResult(bag=name, job=number, attempt=attempt, returned=values, seconds=length)
                say(at + length, result)
                results += 1
                sd = max(0.08 * math.exp(-results / 60), 0.006)
                told = values["pressure"] + sd * self._random.gauss(0, 1)
                predicted.append({"pressure": (told, sd)} if spec.surrogate != "none" and results > BATCH else {})
                returned.append(values)
                if spec.surrogate != "none" and results % BATCH == 0:
                    seen = judge(predicted[-BATCH:], returned[-BATCH:])
                    learnt = b.BagLearnt(
                        bag=name, batch=results // BATCH, results=results, model="gp", judged=seen.judged,
                        coverage=seen.coverage, residual=seen.residual, largest={"pressure": 1.6 * sd},
                    )  # fmt: skip
                    say(max(free.values()) + 0.2, learnt)
            number += 1
        end = max(free.values()) + 1
        for slot in range(WORKERS if not over else 0):
            self._propose(number, end, results)
            say(end + slot, b.BagStarted(bag=name, job=number, attempt=1, vm=vms[slot], age=end - 20))
            say(end + 10 + slot, b.BagSaved(bag=name, job=number, attempt=1, done=8.0, seconds=0.5))
            if slot == WORKERS - 2:
                say(end + 14, b.BagLost(bag=name, job=number, attempt=1, why="lost", reason="its VM is gone"))
            number += 1
        for _ in range(3 if number < spec.begun else 0):
            self._propose(number, end, results)
            number += 1
        if over:
            say(end, b.BagStopped(bag=name, why="counted" if results >= spec.jobs else "converged"))
            say(end + 1, events.WorkEnded(work=name, of="bag", state="finished", reason="the surrogate is good enough"))

    def _propose(self, number: int, at: float, results: int) -> dict[str, Any]:
        point: dict[str, Any] = {}
        for each in self.spec.space:
            if each.kind == "choice":
                point[each.name] = self._random.choice(each.choices)
            elif each.kind == "log":
                point[each.name] = math.exp(self._random.uniform(math.log(each.low), math.log(each.high)))
            elif each.kind == "int":
                point[each.name] = self._random.randint(int(each.low), int(each.high))
            else:
                point[each.name] = self._random.uniform(each.low, each.high)
        self._say(at - 0.3, b.BagProposed(bag=self.spec.name, job=number, point=point, batch=results // BATCH))
        return point

    def _computed(self, point: dict[str, Any]) -> dict[str, float]:
        numbers = [float(value) for value in point.values() if not isinstance(value, str)]
        return {"pressure": round(sum(map(math.sin, numbers)), 4), "pressure_error": 0.01}

    def _say(self, after: float, event: Event) -> None:
        self._at.append((BEGAN + after, event))
