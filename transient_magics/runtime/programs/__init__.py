"""Programs that run beside a run or apart from it, each in a process of its own: `python -m
...runtime.programs.NAME`.

Some do work for the chief (`evaluate`, `shipping`, `shared_graph`, `shared_records`), whose side of
them is `running`; others for whoever declared the run (`check`, `serve`).
"""

from __future__ import annotations
