"""What runs on a VM: the agent, the parameter server with the chief inside, the worker, and the Tensor2Tensor adapter.

This package is shipped to VMs alone (with `errors`) and imports nothing from the rooms above it. Nobody imports it to
use it: its modules are programs (`python -m transient_magics.runtime.agent`), spoken to over the agent's socket and
followed through the files they write.
"""

from __future__ import annotations
