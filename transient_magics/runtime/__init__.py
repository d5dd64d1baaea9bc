"""The processes that run on a VM: the agent, the parameter server with the chief, the worker.

They communicate over sockets and files, and do not import each other. They share training/, files/
and tf/, and the modules here: the start of a role (`role`), the folder of a run (`folder`), and
records of processes (`process_record`). This package is copied to VMs with `errors`, `files`,
`imports`, `kinds` and `protocol`, and imports nothing else of the project.
"""

from __future__ import annotations
