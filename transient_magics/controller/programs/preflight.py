"""`python -m ...programs.preflight < spec.json`: could this cluster be made? Nothing is made.

Prints one JSON object: `{"findings": [{subject, good, said, fix, told}], "spec": the declaration}`,
with the zones that Compute Engine has. What is examined is what the controller would ask for first.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from dataclasses import asdict

from ...cloud import ComputeEngine, Finding, VmRequest
from ...errors import CloudError
from ...journal import events, replay
from ...spec import ClusterSpec
from .. import skew
from ..decisions.core import RequestVm, Situation, decide
from ..vms import advice, live_prices
from ..vms.access import Access
from ..vms.image_choice import choose, to_be_chosen
from ..vms.machines import requested, vm_request
from ..vms.neighbours import taken
from ..vms.zones import find

log = logging.getLogger(__name__)


def first_requests(spec: ClusterSpec, *later: events.Event) -> list[VmRequest]:
    """The VMs that a controller asks for when the cluster has just been declared (and `later` has
    happened).
    """
    state = replay(
        [
            events.ClusterDeclared(seq=1, time=int(spec.declared_at * 1e9), spec=spec.to_dict()),
            *later,
        ]
    )
    assert state.spec
    decisions = decide(Situation(spec.declared_at, state))
    wanted = [
        requested(spec, decision) for decision in decisions if isinstance(decision, RequestVm)
    ]
    return [vm_request(state.spec, event, public_key="") for event in wanted]


async def prepared(
    spec: ClusterSpec, engine: ComputeEngine
) -> tuple[ClusterSpec, list[events.Event], list[str]]:
    """The declaration as its controller would have it, with what it would learn first, and what it
    could not learn.
    """
    known: list[events.Event] = []
    try:
        if priced := await live_prices.find(spec, engine):
            known.append(priced)
            spec = ClusterSpec.from_dict(priced.spec)
        if found := await find(spec, engine):
            known.append(found)
            spec = ClusterSpec.from_dict(found.spec)
        if to_be_chosen(spec):
            known.append(await choose(spec, engine))
    except CloudError as error:
        return spec, known, [str(error)]
    return spec, known, []


async def examine(spec: ClusterSpec) -> tuple[list[Finding], ClusterSpec]:
    """Ask Compute Engine, or the emulator for a cluster without a project."""
    try:
        async with Access(spec) as access:
            await access.reopen()
            spec, known, troubles = await prepared(spec, access.engine)
            for (
                trouble
            ) in troubles:  # the examination meets the same, and says it question by question
                log.warning("%s", trouble)
            bucket = (spec.bucket or "").partition("/")[0]
            findings = await access.engine.examine(
                first_requests(spec, *known), firewall=spec.firewall, bucket=bucket
            )
            if why := skew.wrong(access.engine.ahead):
                findings.append(Finding("clock", False, why))
            if all(finding.good for finding in findings) and (
                why := await taken(spec, access.engine)
            ):
                findings.append(Finding(f"name {spec.name}", False, why))
            if all(each.good for each in findings):
                findings += await advice.findings(access, spec)
            return findings, spec
    except CloudError as error:
        return [Finding("Compute Engine", False, str(error))], spec


def main() -> int:
    """Always exit code 0: what is wrong is in the findings."""
    findings, spec = asyncio.run(examine(ClusterSpec.from_dict(json.load(sys.stdin))))
    print(
        json.dumps({"findings": [asdict(finding) for finding in findings], "spec": spec.to_dict()})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
