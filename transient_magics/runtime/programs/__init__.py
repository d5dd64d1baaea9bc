"""Programs beside a run or apart from it, each a process: `python -m ...runtime.programs.NAME`.

`evaluate`, `shipping`, `shared_graph` and `shared_records` work for the chief, which starts them
(`parameter_server/chief/programs.py`). `check` and `serve` work for clients.
"""

from __future__ import annotations
