"""`python -m ...programs.attach NAME [PROJECT]`: follow what another machine declared.

Prints one JSON object: `{"folder": path}` or `{"error": sentence}`. Without a project it looks on
the emulator.
"""

from __future__ import annotations

import sys

from ..answer import answer
from ..placement.attaching import attach


def main() -> int:
    """Exit code 0, or 1 with the reason in the output."""
    name, *project = sys.argv[1:]

    async def folder() -> dict[str, str]:
        return {"folder": str(await attach(name, project[0] if project else None))}

    return answer(folder())


if __name__ == "__main__":
    sys.exit(main())
