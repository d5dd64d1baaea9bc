"""`python -m ...programs.self_check < spec.json`: whether the cluster's controller could run here.

Everything that it imports has to be there, Compute Engine has to tell it the cluster's VMs, and
there have to be tokens for the cluster's place in its bucket. Started on the VM that is to become
its seat, before anything is handed over; exit code 1 with one sentence where it could not.
"""

from __future__ import annotations

import asyncio
import json
import sys

from ...errors import TransientError
from ...spec import ClusterSpec
from .. import cluster as _  # noqa: F401 - what the controller imports
from ..vms.access import Access
from ..vms.machines import labels


async def check(spec: ClusterSpec) -> None:
    """Raises CloudError where Compute Engine or tokens cannot be had from here."""
    async with Access(spec) as access:
        await access.reopen()
        await access.engine.list(labels(spec), within=spec.all_zones)
        await access.try_token()


def main() -> int:
    """Exit code 0: it could."""
    try:
        asyncio.run(check(ClusterSpec.from_dict(json.load(sys.stdin))))
    except TransientError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
