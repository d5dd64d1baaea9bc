"""Check whether a cluster can be created: `python -m ...programs.preflight < spec.json`.

Nothing is created. Prints one JSON object: `{"findings": [{subject, good, text, fix, answered}],
"spec": the declaration}`, with the zones that Compute Engine has. It examines what the controller
would request first. With the argument `controller`, on the VM that is going to run the controller,
it checks whether the controller can run there.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from dataclasses import asdict

from ...cloud import ComputeEngine, Finding, VmRequest
from ...errors import CloudError, TransientError
from ...journal import events, replay
from ...spec import ClusterSpec
from ..decisions.core import RequestVm, Situation, decide
from ..vms import lookup
from ..vms.access import Access
from ..vms.lookup import choose_image, find_zones, name_conflict, needs_image
from ..vms.machines import labels, requested, vm_request

log = logging.getLogger(__name__)


def first_requests(spec: ClusterSpec, *later: events.Event) -> list[VmRequest]:
    """Return the VMs that a controller requests for a new cluster, after the events in `later`."""
    state = replay(
        [
            events.ClusterDeclared(seq=1, time=int(spec.declared_at * 1e9), spec=spec.to_dict()),
            *later,
        ]
    )
    assert state.spec
    decisions = decide(Situation(spec.declared_at, state))
    requests = [
        requested(spec, decision) for decision in decisions if isinstance(decision, RequestVm)
    ]
    return [vm_request(state.spec, event, public_key="") for event in requests]


async def prepared(
    spec: ClusterSpec, engine: ComputeEngine
) -> tuple[ClusterSpec, list[events.Event], list[str]]:
    """Return the declaration as its controller would have it, what it would learn, and failures."""
    facts: list[events.Event] = []
    try:
        if priced := await lookup.find_prices(spec, engine):
            facts.append(priced)
            spec = ClusterSpec.from_dict(priced.spec)
        if found := await find_zones(spec, engine):
            facts.append(found)
            spec = ClusterSpec.from_dict(found.spec)
        if needs_image(spec):
            facts.append(await choose_image(spec, engine))
    except CloudError as error:
        return spec, facts, [str(error)]
    return spec, facts, []


async def examine(spec: ClusterSpec) -> tuple[list[Finding], ClusterSpec]:
    """Return the findings of Compute Engine, or of the emulator, and the declaration."""
    try:
        async with Access(spec) as access:
            await access.reopen()
            spec, facts, troubles = await prepared(spec, access.engine)
            # The examination meets the same error, and reports it question by question.
            for trouble in troubles:
                log.warning("%s", trouble)
            bucket = (spec.bucket or "").partition("/")[0]
            findings = await access.engine.examine(
                first_requests(spec, *facts), firewall=spec.firewall, bucket=bucket
            )
            if why := lookup.clock_error(access.engine.ahead):
                findings.append(Finding("clock", False, why))
            if all(finding.good for finding in findings) and (
                why := await name_conflict(spec, access.engine)
            ):
                findings.append(Finding(f"name {spec.name}", False, why))
            if all(finding.good for finding in findings):
                findings += await lookup.advice_findings(access, spec)
            return findings, spec
    except CloudError as error:
        return [Finding("Compute Engine", False, str(error))], spec


async def check_controller(spec: ClusterSpec) -> None:
    """Check that the cluster's controller can run on this machine, a VM.

    Everything that it imports has to be installed, Compute Engine has to list the cluster's VMs,
    and it has to issue tokens for the cluster's place in its bucket.

    Raises
    ------
    CloudError
        Compute Engine or the tokens cannot be used from here.
    """
    importlib.import_module("transient_magics.controller.cluster")
    async with Access(spec) as access:
        await access.reopen()
        await access.engine.list(labels(spec), within=spec.all_zones)
        await access.try_token()


def main(arguments: list[str]) -> int:
    """Examine the declaration from standard input. Returns the exit code.

    Findings print with exit code 0. With the argument `controller`, exit code 1 and one sentence on
    standard error say that a controller cannot run here.
    """
    spec = ClusterSpec.from_dict(json.load(sys.stdin))
    if arguments == ["controller"]:
        try:
            asyncio.run(check_controller(spec))
        except TransientError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    findings, spec = asyncio.run(examine(spec))
    print(
        json.dumps({"findings": [asdict(finding) for finding in findings], "spec": spec.to_dict()})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
