"""The process that looks after one VM: it hears the controller, starts and restarts roles, watches
for the notice.

`agent` takes commands; `supervise` keeps one role running; `starting` starts its process, plainly
or from a `fork_server`, a process of its own. Nothing here trains, or imports TensorFlow, but the
fork server.
"""

from __future__ import annotations
