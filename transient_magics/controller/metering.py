"""Data that VMs exchange across zones and pay by the byte: counted by themselves, and believed
within bounds.

A VM runs its user's code and whatever that brought along. So what it says it moved is billed no
further than a link can carry in its time, and than the other ends counted, too: what workers
exchange across zones, they exchange with parameter servers, and with the VMs that prepare their
mini-batches, which are where the parameter servers are. One VM that makes its traffic up neither
runs up the bill nor uses up the limit on money.
"""

from __future__ import annotations

from ..journal import VmState, events
from ..protocol.vm_events import TrafficCounted
from ..spec import PARAMETER_SERVER, PREPARATION, WORKER
from .record import Recorder

_LINK = 2 * 32e9 / 8
"""Bytes per second, both ways, of the fastest machine that we rent (N1 and N2; A3 with a GPU has 25
Gbit/s).
"""
_APART = 10.0  # seconds; agents count every 15
_OTHER_ENDS = {
    WORKER: (PARAMETER_SERVER, PREPARATION),
    PARAMETER_SERVER: (WORKER,),
    PREPARATION: (WORKER,),
}


class Metering:
    """Puts into the journal what the VMs of one cluster counted. Each controller reads all that its
    agents wrote.

    A line takes as long however many VMs there are, but for one of a parameter server's, for which
    many may wait.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counted: dict[str, dict[int, TrafficCounted]] = {}
        """The latest line of each VM, since each of its starts: it counts anew then."""
        vms = recorder.state.vms.values()
        gone = {vm.role for vm in vms if vm.running_at and not vm.living}
        self._billed = {
            role: sum(vm.traffic_bytes for vm in vms if vm.role == role) for role in _OTHER_ENDS
        }
        self._before = {
            role: self._billed[role] for role, others in _OTHER_ENDS.items() if gone & {*others}
        }
        """By role, in bytes: what was billed before, where nobody tells any more what the other
        ends counted.
        """
        self._told = dict.fromkeys(_OTHER_ENDS, 0)
        """By role, in bytes: what these VMs have counted."""
        self._waiting: dict[str, set[str]] = {role: set() for role in _OTHER_ENDS}
        """By role: VMs that counted more than the other ends have."""

    def counted(self, name: str, line: TrafficCounted, now: float) -> None:
        """A VM says how much it has sent and received since it was started (`now`: seconds since
        1970).
        """
        vm = self._recorder.state.vms[name]
        if (
            not vm.living
            or vm.role not in _OTHER_ENDS
            or _moved(line) > _LINK * max(now - vm.running_at, 1.0)
        ):
            return
        lines = self._counted.setdefault(name, {})
        start = sum(each.runs and each.since <= line.at for each in vm.powered[1:])
        self._told[vm.role] += _moved(line) - (_moved(lines[start]) if start in lines else 0)
        lines[start] = line
        self._bill(vm, now)
        for role in _OTHER_ENDS[
            vm.role
        ]:  # what one end says may be what the other's count waited for
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
        told = sum(self._told[role] for role in _OTHER_ENDS[vm.role]) + self._before.get(vm.role, 0)
        believed = min(moved, told - others)
        if believed < moved:
            self._waiting[vm.role].add(vm.name)
        else:
            self._waiting[vm.role].discard(vm.name)
        if believed <= vm.traffic_bytes:
            return
        sent = all_sent * believed // moved
        # By the VM's clock, for lines may be old when they are read; but so that no rate comes out
        # that was not.
        since = vm.traffic_at or vm.running_at
        at = min(max(claim.at, since + _APART), max(now, since + _APART))
        event = events.VmTraffic(
            vm=vm.name, sent=sent, received=believed - sent, time=round(at * 1e9)
        )
        if self._recorder.record(event):
            self._billed[vm.role] += believed - vm.traffic_bytes


def _moved(line: TrafficCounted) -> int:
    return line.sent + line.received
