"""Data that VMs exchange across zones and pay by the byte: counted by themselves, and believed within bounds.

A VM runs its user's code and whatever that brought along. So what it says it moved is billed no further than a link can
carry in its time, and than the other end counted, too: what workers exchange across zones, they exchange with parameter
servers. One VM that makes its traffic up neither runs up the bill nor uses up the limit on money.
"""

from __future__ import annotations

from ..journal import VmState, events
from ..protocol.vm_events import TrafficCounted
from ..spec import PARAMETER_SERVER, WORKER
from .record import Recorder

_LINK = 2 * 32e9 / 8
"""Bytes per second, both ways, of the fastest machine that we rent (N1 and N2; A3 with a GPU has 25 Gbit/s)."""
_APART = 10.0  # seconds; agents count every 15
_OTHER_END = {WORKER: PARAMETER_SERVER, PARAMETER_SERVER: WORKER}


class Metering:
    """Puts into the journal what the VMs of one cluster counted. Each controller reads all that its agents wrote."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._counted: dict[str, TrafficCounted] = {}
        vms = recorder.state.vms.values()
        gone = {vm.role for vm in vms if vm.running_at and not vm.living}
        self._before = {role: self._billed(role) for role, other in _OTHER_END.items() if other in gone}
        """By role, in bytes: what was billed before, where nobody tells any more what the other end counted."""

    def counted(self, name: str, line: TrafficCounted, now: float) -> None:
        """A VM says how much it has sent and received since it was started (`now`: seconds since 1970)."""
        vm = self._recorder.state.vms[name]
        if not vm.living or line.sent + line.received > _LINK * max(now - vm.running_at, 1.0):
            return
        self._counted[name] = line
        for each in self._recorder.state.living:  # what one end says may be what the other's count waited for
            if claim := self._counted.get(each.name):
                self._bill(each, claim, now)

    def _bill(self, vm: VmState, claim: TrafficCounted, now: float) -> None:
        spec = self._recorder.spec
        if vm.zone not in spec.transfer_prices or vm.role not in _OTHER_END:
            return
        moved = claim.sent + claim.received
        others = self._billed(vm.role) - vm.traffic_bytes
        believed = min(moved, self._told(_OTHER_END[vm.role]) + self._before.get(vm.role, 0) - others)
        if believed <= vm.traffic_bytes:
            return
        sent = claim.sent * believed // moved
        # By the VM's clock, for lines may be old when they are read; but so that no rate comes out that was not.
        since = vm.traffic_at or vm.running_at
        at = min(max(claim.at, since + _APART), max(now, since + _APART))
        self._recorder.record(events.VmTraffic(vm=vm.name, sent=sent, received=believed - sent, time=round(at * 1e9)))

    def _billed(self, role: str) -> int:
        return sum(vm.traffic_bytes for vm in self._recorder.state.vms.values() if vm.role == role)

    def _told(self, role: str) -> int:
        vms = self._recorder.state.vms
        return sum(line.sent + line.received for name, line in self._counted.items() if vms[name].role == role)
