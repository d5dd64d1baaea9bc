"""A study as its journal tells it: trials on the four workers of a cluster, one pruned, one failed, one revoked."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

from transient_magics.journal import ClusterState, Event, events, replay
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainEvaluated, TrainFailed, TrainFinished, TrainProgress, TrainStarted
from transient_magics.works.studies.events import StudyAsked, StudyTold
from transient_magics.works.studies.spec import StudySpec

from .stories import declaration, requested

BEGAN = 1_780_000_000.0
WORKERS = 4
STEPS = 400
SECONDS = 80.0
"""That a trial takes."""
SPACE = "learning_rate=0.001:0.1:log batch_size=16,32,64"


def specification(trials: int, **more: Any) -> StudySpec:
    """A search with Optuna's TPE and a pruner; `more`: what is declared otherwise."""
    run = RunSpec("search", STEPS, eval_steps=STEPS // 8)
    declared = {"space": parse_space(SPACE), "sampler": "tpe", "pruner": "median", "seed": 7, "trials": trials}
    return StudySpec(**{"name": "search", "run": run, "objective": "max accuracy", **declared, **more})


class StudyStory:
    """A study of which so many trials have ended and some train at the end; `state` is what that adds up to.

    `over`: it has ended. Trial 1 is pruned, trial 2 failed, and the worker of trial 3 was revoked.
    """

    def __init__(self, spec: StudySpec, told: int, running: int = WORKERS, *, over: bool = False) -> None:
        self.spec = spec
        self.history: list[Event] = []
        self.now = BEGAN
        self._at: list[tuple[float, Event]] = []
        self._random = random.Random(5)
        self._has: list[tuple[float, int, str]] = []
        self._tell(told, running, over)
        self._lease()
        for number, (at, event) in enumerate(sorted(self._at, key=lambda pair: pair[0]), 1):
            self.history.append(replace(event, seq=number, time=int(at * 1e9)))
            self.now = max(self.now, at)
        self.now += 1

    @property
    def state(self) -> ClusterState:
        """The state at `now`, a second after the last event."""
        return replay(self.history)

    def _tell(self, told: int, running: int, over: bool) -> None:
        say, spec = self._say, self.spec
        cluster = replace(declaration("tuning", WORKERS), declared_at=BEGAN, max_seconds=30 * 3600.0)
        say(0, events.ClusterDeclared(spec=cluster.to_dict()))
        for slot, vm in enumerate(("ps-0", *(f"worker-{number}" for number in range(WORKERS)))):
            say(0.1, requested(vm, max(0, slot - 1)))
            say(20, events.VmRunning(vm=vm, address=f"10.128.0.{slot + 2}"))
            say(40, events.VmReady(vm=vm))
        say(40.1, events.ClusterReady(workers=WORKERS, seconds=40.0))
        say(50, events.WorkDeclared(of="study", work=spec.name, spec=spec.to_dict()))
        for trial in range(told + running):
            slot, begins = trial % WORKERS, 51 + (trial // WORKERS) * (SECONDS + 2) + trial % WORKERS
            params = self._params()
            runs = spec.run_names(trial)
            say(begins, StudyAsked(study=spec.name, trial=trial, params=params, runs=runs))
            value, ends = self._train(trial, params, begins, slot, trial < told)
            if trial < told:
                state = {1: "pruned", 2: "failed"}.get(trial, "complete")
                why = "its loss is no number" if state == "failed" else ""
                told_value = None if state == "failed" else value
                ended = StudyTold(study=spec.name, trial=trial, state=state, value=told_value, reason=why)  # type: ignore[arg-type]
                say(ends, ended)
        if over:
            say(max(at for at, _ in self._at) - BEGAN + 1, events.WorkStopping(work=spec.name, of="study"))

    def _params(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for each in self.spec.space:
            if each.kind == "choice":
                found[each.name] = self._random.choice(each.choices)
            elif each.kind == "log":
                found[each.name] = math.exp(self._random.uniform(math.log(each.low), math.log(each.high)))
            else:
                found[each.name] = self._random.uniform(each.low, each.high)
        return found

    def _train(self, trial: int, params: dict[str, Any], begins: float, slot: int, whole: bool) -> tuple[float, float]:
        """The runs of a trial, one after the other; its value, and when the last one ended."""
        say, spec = self._say, self.spec
        good = 1 - abs(math.log10(params.get("learning_rate", 0.02) / 0.02)) / 2
        share = (0.4 if trial == 1 else 1.0) if whole else 0.3 + 0.15 * (trial % WORKERS)
        values, length = [], SECONDS / spec.repeat
        for repeat, name in enumerate(spec.run_names(trial)):
            begin, value = begins + repeat * length, 0.1
            run = spec.run_of(trial, repeat, params).without_token()
            say(begin + 0.1, events.WorkDeclared(of="run", work=name, spec=run))
            say(begin + 0.3, TrainStarted(run=name, step=0))
            ceiling = 0.5 + 0.46 * good + 0.01 * self._random.gauss(0, 1)
            for part in range(1, int(8 * share) + 1):
                step, at = STEPS * part // 8, begin + length * part / 8 - 0.5
                value = round(ceiling * (1 - math.exp(-step / 90)), 4)
                loss = 2.3 * math.exp(-step / 120) + 0.1 * (1 - good)
                say(at, TrainProgress(run=name, step=step, loss=loss, steps_per_second=5.0, active=1))
                if step % (spec.run.eval_steps or STEPS) == 0:
                    metrics = {"accuracy": value, "loss": round(loss, 4)}
                    say(at + 0.1, TrainEvaluated(run=name, step=step, metrics=metrics))
            self._has.append((begin + 0.2, slot, name))
            if trial == 3:
                say(begin + 10, events.VmRevoked(vm=f"worker-{slot}", signal="api"))
                say(begin + 10.5, requested(f"worker-{WORKERS + slot}", slot, f"worker-{slot}"))
                say(begin + 30, events.VmRunning(vm=f"worker-{WORKERS + slot}", address="10.128.0.99"))
                say(begin + 35, events.VmReady(vm=f"worker-{WORKERS + slot}"))
            if whole:
                if trial == 2:
                    say(begin + length, TrainFailed(run=name, reason="its loss is no number"))
                else:
                    steps, stopped = int(STEPS * share), share < 1
                    say(begin + length * share, TrainFinished(run=name, step=steps, loss=0.2, stopped=stopped))
                self._has.append((begin + length * share - 0.01, slot, ""))
            values.append(value)
        return sum(values) / len(values), begins + SECONDS * share + 0.2

    def _lease(self) -> None:
        has: dict[int, str] = {}
        for at, slot, name in sorted(self._has):
            has[slot] = name
            leased = {each: run for each, run in has.items() if run}
            ports = {run: each for each, run in leased.items()}
            workers = {str(each): run for each, run in leased.items()}
            self._say(at, events.ClusterLeased(ports=ports, workers=workers))

    def _say(self, after: float, event: Event) -> None:
        self._at.append((BEGAN + after, event))
