"""`python -m transient_magics.runtime.agent --root DIRECTORY`: the agent of one VM."""

from __future__ import annotations

from .agent import main

if __name__ == "__main__":
    main()
