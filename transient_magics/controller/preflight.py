"""`python -m transient_magics.controller.preflight < spec.json`: could this cluster be made? Nothing is made.

Prints one JSON object: `{"findings": [{subject, good, said}]}` or `{"error": sentence}`. What is examined is what the
controller would ask for first.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from ..cloud import Finding, VmRequest
from ..errors import TransientError
from ..journal import events, replay
from ..spec import ClusterSpec
from .access import Access
from .core import RequestVm, Situation, decide
from .machines import requested, vm_request


def first_requests(spec: ClusterSpec) -> list[VmRequest]:
    """The VMs that a controller asks for when the cluster has just been declared."""
    state = replay([events.ClusterDeclared(seq=1, time=int(spec.declared_at * 1e9), spec=spec.to_dict())])
    decisions = decide(Situation(spec.declared_at, state))
    wanted = [requested(spec, each) for each in decisions if isinstance(each, RequestVm)]
    return [vm_request(spec, event, public_key="") for event in wanted]


async def examine(spec: ClusterSpec) -> list[Finding]:
    """Ask Compute Engine, or the emulator for a cluster without a project. Raises CloudError if it cannot be asked."""
    async with Access(spec) as access:
        await access.reopen()
        return await access.engine.examine(first_requests(spec))


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    spec = ClusterSpec.from_dict(json.load(sys.stdin))
    try:
        answer: dict[str, Any] = {"findings": [asdict(each) for each in asyncio.run(examine(spec))]}
    except TransientError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return "error" in answer


if __name__ == "__main__":
    sys.exit(main())
