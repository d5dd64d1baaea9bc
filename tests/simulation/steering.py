"""One controller after another in charge of a simulated cluster: the real core decides, this carries out.

It does what `controller/cluster.py`, `fleet.py` and `tasks.py` do: it records a request before it is made, makes it
again under the same identity when it was started anew, compares what Compute Engine lists with the journal every few
seconds, keeps in touch with the VMs that run, and forgets all but the journal when it is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.simulation.clock import Clock
from tests.simulation.cloud import Cloud, Instance
from transient_magics.controller.decisions.core import (
    BeginDeletion,
    DeleteVm,
    ReportReady,
    RequestVm,
    SaveAhead,
    Situation,
    decide,
)
from transient_magics.controller.vms.machines import instance_name, labels, requested, vm_name, vm_request
from transient_magics.journal import ClusterState, Event, VmState, events, fold
from transient_magics.spec import ClusterSpec, price_kind

POLL, SILENT, LONGEST_SLEEP = 5.0, 60.0, 30.0


class Steering:
    """Whoever is in charge. `reaches` says whether a VM answers over SSH now."""

    def __init__(
        self, clock: Clock, chance: random.Random, cloud: Cloud, spec: ClusterSpec, log: Callable[[str], None]
    ) -> None:
        self.clock, self.chance, self.cloud, self._log = clock, chance, cloud, log
        self.state = ClusterState()
        self.kills = 0
        self.alive = False
        self.on_event: Callable[[Event], None] = lambda event: None
        self.conduct: Callable[[], None] = lambda: None
        """What else is to be done in each round: the runs."""
        self.reaches: Callable[[str], bool] = lambda vm: True
        self.save_ahead: Callable[[], None] = lambda: None
        self._asked: dict[str, events.VmRequested] = {}
        self._seq = 0
        self._epoch = 0
        self._tasks: dict[str, None] = {}
        self._silent_since: dict[str, float] = {}
        self._sleep, self._planned, self._save_requested = 1.0, False, False
        self._turn = 0
        """Which round this is: only the latest plans the next."""
        self.record(events.ClusterDeclared(spec=spec.to_dict()))
        self.start()

    @property
    def spec(self) -> ClusterSpec:
        """What is declared now."""
        assert self.state.spec
        return self.state.spec

    def record(self, event: Event) -> None:
        """Append to the journal; now and then a fact is delivered twice."""
        twice = self.chance.random() < 0.03 and not isinstance(event, events.VmRequested | events.WorkDeclared)
        for _ in range(2 if twice else 1):
            self._seq += 1
            given = {**event.values, "seq": self._seq, "time": int(self.clock.now * 1e9)}
            self.state = fold(self.state, type(event)(**given))
            self._log(f"{event.kind} {dict(event.values)}" if event.kind != "cluster.declared" else event.kind)
        self.on_event(event)
        self.wake()

    # --- processes ---------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """A controller takes charge."""
        self._epoch += 1
        self.alive, self._sleep, self._save_requested = True, 1.0, False
        self._tasks, self._silent_since = {}, {}
        self._planned = False
        self._log("controller: starts")
        self._later(0.0, self._poll)
        self.wake()

    def kill(self, seconds: float) -> None:
        """kill -9; another one takes charge after some seconds. Nobody waits any more for what was asked."""
        if not self.alive or self.state.over:
            return
        self.alive, self.kills = False, self.kills + 1
        self._epoch += 1
        self._log("controller: killed")
        self.clock.after(seconds, self.start)

    def _later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it, unless this process is no more."""
        epoch = self._epoch
        self.clock.after(seconds, lambda: do() if self._epoch == epoch else None)

    def wake(self) -> None:
        """Something changed: decide at once."""
        self._sleep = 1.0
        if self.alive and not self._planned:
            self._planned = True
            self._later(0.0, self._woken)

    def _woken(self) -> None:
        self._planned = False
        self._turn += 1
        if self.state.over:
            return
        self._round()
        turn = self._turn
        self._later(self._sleep, lambda: self._woken() if self._turn == turn else None)
        self._sleep = min(2 * self._sleep, LONGEST_SLEEP)

    # --- a round -----------------------------------------------------------------------------------------------------
    def _round(self) -> None:
        for decision in decide(Situation(self.clock.now, self.state, self._save_requested, silent=self._silent())):
            match decision:
                case RequestVm():
                    self._request(decision)
                case DeleteVm():
                    self._delete(self.state.vms[decision.vm], decision.reason)
                case BeginDeletion():
                    self.record(events.ClusterDeleting(reason=decision.reason))
                case SaveAhead():
                    self._save_requested = True
                    self.save_ahead()
                case ReportReady():
                    self.record(events.ClusterReady(workers=decision.workers, seconds=1.0))
        self._keep_in_touch()
        self.conduct()
        if self.state.phase == "deleting" and not self.state.living:
            self._verify_gone()

    def _request(self, decision: RequestVm) -> None:
        if self.cloud.signed_out or decision.vm in self._tasks:
            return
        event = requested(self.spec, decision)
        slot, kind = (event.role, event.slot), price_kind(event.role, event.accelerator)
        model = "standard" if event.provisioning_model == "standard" else "spot"
        self.cloud.observer.asked(event.vm, slot, kind, event.zone, model, self.clock.now, event.hourly)
        self._asked[event.vm] = event
        assert len(self._asked) < 100_000, "it asks without end"
        self.record(event)
        self._insert(event)

    def _insert(self, event: events.VmRequested) -> None:
        """Ask, and ask the same again where there is no answer."""
        self._tasks[event.vm] = None

        def again() -> None:
            self._tasks.pop(event.vm, None)
            self._insert(event)

        if self.cloud.signed_out:
            self._tasks.pop(event.vm)  # the next look at the list resumes it
            return
        if self.cloud.loses and self.chance.random() < 0.5:
            self._later(self.chance.uniform(1, 10), again)  # it never arrived
            return
        request = vm_request(self.spec, event, "key")
        kind = price_kind(event.role, event.accelerator)
        epoch, lost = self._epoch, self.cloud.loses

        def answer(how: str, vm: str) -> None:
            if self._epoch != epoch:
                return
            if lost:
                self._later(self.chance.uniform(1, 10), again)
                return
            self._tasks.pop(vm, None)
            self._answered(vm, how)

        self.cloud.insert(request, event.vm, kind, self.spec.ends_at, answer)

    def _answered(self, vm: str, how: str) -> None:
        observer, now = self.cloud.observer, self.clock.now
        if how == "runs":
            observer.ran(vm, now)
            self.record(events.VmRunning(vm=vm, address="10.128.0.2"))
            self._follow_boot(vm)
        elif how == "gone":
            observer.gone(vm, now)
            self.record(events.VmRevoked(vm=vm, signal="api"))
        else:
            observer.refused(vm, how, now)
            self.record(events.VmRefused(vm=vm, reason=how, cause=how))

    def _follow_boot(self, vm: str) -> None:
        if f"boot {vm}" not in self._tasks:
            self._tasks[f"boot {vm}"] = None
            self._later(self.chance.uniform(20, 90), lambda: self._boot_ended(vm))

    def _boot_ended(self, vm: str) -> None:
        self._tasks.pop(f"boot {vm}", None)
        known = self.state.vms[vm]
        if known.state != "booting" or known.failure:
            return
        if vm in self.cloud.doomed:
            self.cloud.observer.failed(vm, self.clock.now)
            self.record(events.VmBootFailed(vm=vm, reason="failed at: the driver"))
        elif self.reaches(vm):
            self.cloud.observer.answered(vm)
            self.record(events.VmReady(vm=vm))

    def _delete(self, vm: VmState, reason: str) -> None:
        key = f"delete {vm.name}"
        if self.cloud.signed_out or key in self._tasks:
            return
        self._tasks[key] = None
        if vm.name in self._tasks:  # after the request for it has been answered
            self._later(1.0, lambda: self._deletion_again(key))
            return

        def answer() -> None:
            if lost:
                self._later(2.0, lambda: self._deletion_again(key))
                return
            self._tasks.pop(key, None)
            self.record(events.VmDeleted(vm=vm.name, reason=reason))

        epoch, lost = self._epoch, self.cloud.loses
        if lost and self.chance.random() < 0.5:
            self._later(2.0, lambda: self._deletion_again(key))
            return
        guarded = lambda: answer() if self._epoch == epoch else None  # noqa: E731
        self.cloud.delete(vm.zone, instance_name(self.spec, vm.name), labels(self.spec), guarded)

    def _deletion_again(self, key: str) -> None:
        self._tasks.pop(key, None)
        self.wake()

    def _poll(self) -> None:
        if self.state.over:
            return
        self._later(POLL, self._poll)
        if self.cloud.signed_out or self.cloud.loses:
            return
        found = {vm_name(self.spec, vm.name): vm for vm in self.cloud.list(labels(self.spec))}
        living = self.state.living
        for vm in living:
            if vm.name in self._tasks or f"delete {vm.name}" in self._tasks:
                continue
            seen = found.get(vm.name)
            if not vm.running_at:
                self._insert(self._asked[vm.name])
            elif seen and seen.status == "STOPPING" and vm.state != "leaving" and vm.provisioning_model != "standard":
                self.notice(vm.name)
            elif seen is None and vm.running_at < self.clock.now:
                self.record(events.VmRevoked(vm=vm.name, signal="notice" if vm.state == "leaving" else "api"))
        busy = {key.rpartition(" ")[2] for key in self._tasks}
        for name in sorted(found.keys() - {vm.name for vm in living} - busy):
            self._remove(name, found[name])

    def _remove(self, name: str, instance: Instance) -> None:
        """It is listed and nobody here knows it as one that lives."""
        key, epoch = f"remove {name}", self._epoch
        self._tasks[key] = None

        def done() -> None:
            if self._epoch == epoch:
                self._tasks.pop(key, None)

        self.cloud.delete(instance.zone, instance.name, labels(self.spec), done)

    def notice(self, vm: str) -> None:
        """The VM told, or the list shows, that it will be taken."""
        known = self.state.vms[vm]
        if self.alive and known.living and known.state != "leaving":
            self.cloud.observer.noticed(vm, self.clock.now)
            self.record(events.VmPreemptionNotice(vm=vm))

    def _keep_in_touch(self) -> None:
        for vm in self.state.living:
            if not vm.running_at:
                continue
            if vm.state == "booting" and not vm.failure:
                self._follow_boot(vm.name)

    def _silent(self) -> list[str]:
        """VMs that have answered, and have not for a minute."""
        now = self.clock.now
        for vm in self.state.living:
            if self.reaches(vm.name) or not vm.ready_at:
                self._silent_since.pop(vm.name, None)
        lost = [vm.name for vm in self.state.living if vm.ready_at and not self.reaches(vm.name)]
        return [vm for vm in lost if now - self._silent_since.setdefault(vm, now) > SILENT]

    def _verify_gone(self) -> None:
        if self.cloud.signed_out or self.cloud.loses:
            self._later(2.0, self.wake)
            return
        left = self.cloud.list(labels(self.spec))
        for vm in left:
            self.cloud.delete(vm.zone, vm.name, labels(self.spec), lambda: None)
        if left:
            self._later(22.0, self.wake)
        else:
            self.record(events.ClusterDeleted())
