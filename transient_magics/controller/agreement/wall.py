"""The last look at a VM before it is requested: nothing that this machine's user has not agreed to
is rented.

What is requested follows from the state, and the state from the journal. The agreement is read from
files that no journal writes (`journal/declared.py`). Each request is compared with it whole, so a
feature that rents something new is refused until its agreement is noted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

from ...cloud import VmRequest
from ...deadlines.situation import zones_for
from ...errors import AgreementError
from ...journal import VmState, events
from ...journal.declared import Agreement
from ...protocol.machines import CPU
from ...spec import CONTROLLER, PARAMETER_SERVER, PREPARATION, WORKER, ClusterSpec, price_kind
from ...spec.cluster import PriceLine


def agreed_spec(
    agreement: Agreement, event: events.VmRequested, there: Iterable[VmState]
) -> ClusterSpec:
    """Return the declaration of the agreement in which the VM has a place.

    Parameters
    ----------
    agreement
        What this machine's user agreed to.
    event
        The VM that would be requested.
    there
        The VMs that stay: requested or running, and not about to go.

    Raises
    ------
    AgreementError
        The VM is outside the agreement.
    """
    specs = [spec for spec in (agreement.spec, agreement.moving) if spec is not None]
    whys = [_outside(spec, agreement, event) for spec in specs]
    if all(whys):
        raise _refusal(agreement, event, whys[-1])
    most = sum(_most(spec, agreement, event) for spec in specs)
    alike = [vm for vm in there if vm.name != event.vm and _is_alike(agreement, vm, event)]
    if len(alike) >= most:
        raise _refusal(agreement, event, f"there are {len(alike)} of the {most} that it may have")
    return next(spec for spec, why in zip(specs, whys, strict=True) if not why)


def compare(
    agreement: Agreement, event: events.VmRequested, request: VmRequest, agreed: VmRequest
) -> None:
    """Raise AgreementError where the request is another one than the agreement makes of the same
    VM.
    """
    names = [field.name for field in fields(VmRequest)]
    other = [name for name in names if getattr(request, name) != getattr(agreed, name)]
    if other:
        raise _refusal(agreement, event, f"it differs in {', '.join(other).replace('_', ' ')}")


def _refusal(agreement: Agreement, event: events.VmRequested, why: str) -> AgreementError:
    return AgreementError(
        f"{event.vm} is not requested, because {agreement.spec.name} was not declared so on this machine: {why}"
    )


def _outside(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> str:
    """Return why the VM is none of this declaration's, a clause, or nothing."""
    zones = _zones(spec, agreement, event)
    if not zones:
        return f"it has no {event.role} with {event.accelerator or 'no GPU'}"
    if event.zone not in zones:
        return f"none of its VMs like that may be in {event.zone}"
    line = spec.find_price(price_kind(event.role, event.accelerator), event.zone)
    if line is None:
        return f"it has no price for {event.accelerator or event.role}"
    if event.machine_type != line.machine_type:
        return f"such a VM is a {line.machine_type}, not a {event.machine_type}"
    if not _has_terms(spec, agreement, event):
        return f"such a VM is not rented as {event.provisioning_model}"
    return _wrong_limit(spec, event, line)


def _wrong_limit(spec: ClusterSpec, event: events.VmRequested, line: PriceLine) -> str:
    if event.ends > spec.ends_at:
        return f"it would end {event.ends - spec.ends_at:,.0f} s after the cluster"
    if event.hourly < min(line.hourly, line.on_demand_hourly):
        return "its price on the bill is too low"
    return ""


def _zones(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> Sequence[str]:
    """Return where such a VM may be; empty where the declaration has none."""
    if event.role == CONTROLLER and not event.accelerator:
        return spec.all_zones if spec.controller_vm else ()
    if event.role == PARAMETER_SERVER and not event.accelerator:
        if not spec.parameter_servers:
            return ()
        if spec.parameter_server_zone:
            return (spec.parameter_server_zone,)
        return spec.all_zones
    if event.role == PREPARATION and event.accelerator == CPU:
        if spec.preparation:
            return (spec.home_zone,)
        return ()
    if event.role != WORKER:
        return ()
    groups = [group for group in spec.groups if group.accelerator == event.accelerator]
    zones = [group.zone for group in groups if group.zone]
    if any(not group.zone for group in groups):
        zones += spec.zones_for(event.accelerator)
    if agreement.deadline and event.accelerator in spec.prices:
        zones += zones_for(spec, agreement.deadline, event.accelerator)
    return zones


def _has_terms(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> bool:
    if event.role in (CONTROLLER, PARAMETER_SERVER):
        return event.provisioning_model == "standard"
    if event.provisioning_model == spec.provisioning_model:
        return True
    falls_back = spec.fallback_seconds is not None
    return event.provisioning_model == "standard" and (falls_back or agreement.deadline is not None)


def _most(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> int:
    """Return how many VMs like that the declaration allows at once."""
    if event.role == CONTROLLER:
        return 1 if spec.controller_vm else 0
    if event.role == PARAMETER_SERVER:
        return spec.parameter_servers
    if event.role == PREPARATION:
        return spec.preparation
    if agreement.deadline:
        return max(spec.max_workers, spec.worker_count)
    return sum(group.count for group in spec.groups if group.accelerator == event.accelerator)


def _is_alike(agreement: Agreement, vm: VmState, event: events.VmRequested) -> bool:
    """Return whether both VMs are counted together: of workers those with the same GPU.

    A deadline may have workers of several kinds. There those on the same terms count together, as
    in `decisions.core.worker_places`.
    """
    if vm.role != event.role:
        return False
    if vm.role != WORKER:
        return True
    if agreement.deadline:
        return (vm.provisioning_model == "standard") == (event.provisioning_model == "standard")
    return vm.accelerator == event.accelerator
