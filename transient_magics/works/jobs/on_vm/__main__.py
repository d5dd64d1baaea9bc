"""`python -m transient_magics.works.jobs.on_vm --folder DIRECTORY`: run the job in the folder."""

from __future__ import annotations

from .runner import main

if __name__ == "__main__":
    main()
