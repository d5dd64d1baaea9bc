"""Conduct the sleeps of a cluster, from the controller."""

from __future__ import annotations

import asyncio
from functools import partial

from ...controller import on_vm
from ...controller.artifacts import VmFolder, bring
from ...controller.on_vm import OnVm, ask
from ...controller.tasks import Tasks
from ...controller.works import Tick, Works
from ...errors import ForeignError
from ...journal import ClusterState, Event, events, now
from ...kinds import KINDS
from ...protocol import agent_commands, layout
from .artifacts import result
from .events import SleepBegan, SleepInterrupted, SleepWoke, from_vm
from .fold import SleepState
from .spec import SleepSpec, events_file

STOP_SECONDS = 60.0
"""A stopped sleep whose VM has not reported the end after this time is over."""
LEAVING_SECONDS = 180.0
"""A VM that woke its sleep at a preemption notice leaves within this time."""


def due(sleep: SleepState, state: ClusterState, now: float) -> Event | None:
    """Return the event that is due for a sleep that is not over, if any. Pure.

    `now` is in seconds since 1970.
    """
    name = sleep.name
    end = partial(events.WorkEnded, work=name, of="sleep")
    if not sleep.stop and state.phase == "deleting":
        reason = f"the cluster ends: {state.reason}"
        return events.WorkStopping(work=name, of="sleep", reason=reason)
    lives = state.lives(sleep.vm)
    if sleep.woke and sleep.woke.rested:
        return end(state="finished")
    if sleep.stop:
        if sleep.woke or not lives or now - sleep.stopping_at > STOP_SECONDS:
            return end(state=sleep.stop.state, reason=sleep.stop.reason)
        return None
    if not sleep.vm:
        for vm in state.ready_for(name):
            return SleepBegan(sleep=name, attempt=sleep.attempt + 1, vm=vm.name)
        return None
    interrupted = partial(SleepInterrupted, sleep=name, attempt=sleep.attempt)
    if sleep.woke and sleep.woke.reason:
        if sleep.failures >= sleep.spec.retries:
            return end(state="failed", reason=sleep.woke.reason)
        return interrupted(reason=sleep.woke.reason, failed=True)
    # A VM may report that it woke at its notice before its agent reports the notice.
    leaves = not lives or state.vms[sleep.vm].state == "leaving"
    if not lives or (sleep.woke and (leaves or now - sleep.woke.at > LEAVING_SECONDS)):
        return interrupted(reason=state.loss_of(sleep.vm))
    return None


class Sleeps(Works[SleepSpec]):
    """The sleeps of a cluster."""

    kind = "sleep"
    spec_class = SleepSpec

    def tick(self, tick: Tick) -> None:
        """Record what is due for each sleep, and follow it on its VM."""
        for sleep in self.state.active(SleepState):
            key = f"sleep {sleep.name}, attempt {sleep.attempt}"
            event = due(sleep, self.state, tick.at)
            if event is not None:
                tick.tasks.cancel(key)
                self.recorder.record(event)
            elif sleep.vm and not sleep.woke:
                tick.tasks.do(key, _Sleeper(self, sleep).conduct)
                self._pass_on_stop(sleep, tick.tasks)

    def _pass_on_stop(self, sleep: SleepState, tasks: Tasks) -> None:
        if sleep.stop:
            tasks.do(f"end {sleep.name} on {sleep.vm}", partial(self._end_on_vm, sleep))

    async def _end_on_vm(self, sleep: SleepState) -> None:
        """Ask the agent of the VM to end the sleep. The next tick asks again until it has ended."""
        command = agent_commands.End(kind=self.kind, work=sleep.name, attempt=sleep.attempt)
        await ask(self.link(sleep.vm), command)
        await asyncio.sleep(on_vm.TRY_AGAIN_SECONDS)


class _Sleeper(OnVm):
    """One attempt on its VM."""

    def __init__(self, sleeps: Sleeps, sleep: SleepState) -> None:
        super().__init__(sleep.name, sleep.vm, sleeps.link, partial(sleeps.note, sleep.name))
        self._sleeps = sleeps
        self._sleep = sleep
        self._folder = layout.work_on_vm(sleeps.kind, sleep.name)

    async def conduct(self) -> None:
        """Begin the attempt and follow it until its end. Cancelled when it is over."""
        await self.retried(self._begin)
        try:
            await self.retried(self._follow)
        except ForeignError as error:
            # Its end would not be read any more.
            self._record(self._woke(str(error)))

    async def _begin(self) -> None:
        connection = await self.connection()
        declaration = KINDS[self._sleeps.kind].file
        path = self._sleeps.folder(self.name) / declaration
        await connection.put_files({declaration: path}, below=self._folder)
        link = self.link(self.vm)
        if link is not None:
            attempt = self._sleep.attempt
            await link.ask(agent_commands.Begin(kind=self._sleeps.kind, work=self.name, attempt=attempt))

    async def _follow(self) -> None:
        attempt = self._sleep.attempt
        allowance = self._sleeps.allowance(self.name, attempt)
        path = f"{self._folder}/{events_file(attempt)}"
        await self.follow(path, self._parse, self._handle, allowance)

    def _parse(self, line: bytes) -> Event:
        since = int(self._sleep.declared_at * 1e9)
        return from_vm(line, self.name, self._sleep.attempt, since, int(now() * 1e9))

    async def _handle(self, event: Event) -> bool:
        """Copy the result of the attempt here, then record its end."""
        below = f"{KINDS[self._sleeps.kind].folder}/{self.name}"
        source = VmFolder(self.connection, self._folder, below)
        await bring(result(self.name, self._sleep.attempt), self._sleeps.directory, source)
        self._record(event)
        return True

    def _woke(self, reason: str) -> SleepWoke:
        return SleepWoke(sleep=self.name, attempt=self._sleep.attempt, seconds=0.0, reason=reason)

    def _record(self, event: Event) -> None:
        self._sleeps.recorder.record(event)
        self.note("")


WORKS = Sleeps
