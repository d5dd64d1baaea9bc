"""Traffic across zones, billed by the byte: counted by the VMs themselves, and bounded.

A VM runs its user's code and that code's dependencies, so its counts are not trusted. They are
billed up to what a link can carry in the time, and up to what the other ends counted. Workers
exchange data across zones with parameter servers and with the VMs that prepare their mini-batches,
which are in the zone of the parameter servers. A single VM with false counts can neither raise the
bill nor use up the limit on cost.
"""

from __future__ import annotations

from ..journal import VmState, events
from ..protocol.vm_events import TrafficCounted
from ..spec import PARAMETER_SERVER, PREPARATION, WORKER
from .record import Recorder

_LINK = 2 * 32e9 / 8
"""Bytes per second, both ways, of the fastest machine that is rented.

N1 and N2 have this rate; A3 with a GPU has 25 Gbit/s.
"""
# In seconds; agents count every 15 s.
_APART = 10.0
_OTHER_ENDS = {
    WORKER: (PARAMETER_SERVER, PREPARATION),
    PARAMETER_SERVER: (WORKER,),
    PREPARATION: (WORKER,),
}


class Metering:
    """Record of what the VMs of one cluster counted, in the journal.

    Each controller reads all lines of its agents. The time per line does not depend on the number
    of VMs, except for a line of a parameter server, on which many VMs may wait.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counted: dict[str, dict[int, TrafficCounted]] = {}
        """Latest line of each VM for each of its starts, because a start resets the counts."""
        vms = recorder.state.vms.values()
        gone = {vm.role for vm in vms if vm.running_at and not vm.living}
        self._billed = {
            role: sum(vm.traffic_bytes for vm in vms if vm.role == role) for role in _OTHER_ENDS
        }
        self._before = {
            role: self._billed[role] for role, others in _OTHER_ENDS.items() if gone & {*others}
        }
        """Bytes billed before, by role, if the counts of the other ends are lost."""
        self._reported = dict.fromkeys(_OTHER_ENDS, 0)
        """Bytes that these VMs have counted, by role."""
        self._waiting: dict[str, set[str]] = {role: set() for role in _OTHER_ENDS}
        """VMs that counted more than the other ends have, by role."""

    def counted(self, name: str, line: TrafficCounted, now: float) -> None:
        """Bill what a VM counted as sent and received since its start.

        `now` is in seconds since 1970.
        """
        vm = self._recorder.state.vms[name]
        if (
            not vm.living
            or vm.role not in _OTHER_ENDS
            or _moved(line) > _LINK * max(now - vm.running_at, 1.0)
        ):
            return
        lines = self._counted.setdefault(name, {})
        start = sum(stretch.runs and stretch.since <= line.at for stretch in vm.powered[1:])
        self._reported[vm.role] += _moved(line) - (_moved(lines[start]) if start in lines else 0)
        lines[start] = line
        self._bill(vm, now)
        # The other ends may have waited for this count.
        for role in _OTHER_ENDS[vm.role]:
            for other in [*self._waiting[role]]:
                self._bill(self._recorder.state.vms[other], now)

    def _bill(self, vm: VmState, now: float) -> None:
        if not vm.living or vm.zone not in self._recorder.spec.transfer_prices:
            self._waiting[vm.role].discard(vm.name)
            return
        lines = self._counted[vm.name]
        claim = lines[max(lines)]
        all_sent = sum(line.sent for line in lines.values())
        moved = sum(map(_moved, lines.values()))
        others = self._billed[vm.role] - vm.traffic_bytes
        reported = sum(self._reported[role] for role in _OTHER_ENDS[vm.role]) + self._before.get(
            vm.role, 0
        )
        believed = min(moved, reported - others)
        if believed < moved:
            self._waiting[vm.role].add(vm.name)
        else:
            self._waiting[vm.role].discard(vm.name)
        if believed <= vm.traffic_bytes:
            return
        sent = all_sent * believed // moved
        # By the VM's clock, because lines may be old when they are read, but within bounds, so that
        # no false rate results.
        since = vm.traffic_at or vm.running_at
        at = min(max(claim.at, since + _APART), max(now, since + _APART))
        event = events.VmTraffic(
            vm=vm.name, sent=sent, received=believed - sent, time=round(at * 1e9)
        )
        if self._recorder.record(event):
            self._billed[vm.role] += believed - vm.traffic_bytes


def _moved(line: TrafficCounted) -> int:
    return line.sent + line.received
