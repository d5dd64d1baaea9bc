"""`python -m ...programs.live_prices PROJECT`: ask Google for today's prices.

It asks with that project's right, and prints `{"rows": how many}` or `{"error": sentence}`.
"""

from __future__ import annotations

import sys

from ..answer import answer
from ..vms.access import to_project
from ..vms.live_prices import refresh


async def _refresh(project: str) -> dict[str, int]:
    async with to_project(project) as access:
        await access.reopen()
        return {"rows": await refresh(access.engine, older_than=0.0)}


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    return answer(_refresh(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
