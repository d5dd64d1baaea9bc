"""What runs on a VM, a room for each process: the agent, the parameter server with the chief
inside, the worker.

They talk over sockets and files and import nothing of each other. What they share is below them:
training/, files/, tf/, and at the top a role's start (`role`), its folder (`folder`) and the lines
on sockets (`protocol`). This package is shipped to VMs with `errors`, `files` and `protocol` alone
and imports nothing from the rooms above it.
"""

from __future__ import annotations
