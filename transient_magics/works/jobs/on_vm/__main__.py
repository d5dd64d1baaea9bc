"""Run the job in a folder.

Usage: `python -m transient_magics.works.jobs.on_vm --folder DIRECTORY`.
"""

from __future__ import annotations

from .runner import main

if __name__ == "__main__":
    main()
