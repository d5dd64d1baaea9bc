"""Compute Engine on this machine: the same REST API, metadata servers, and VMs that are real processes.

`ensure()` gives the URL of this user's emulator and starts it if needed, `running()` only where one runs; `about(url)`
tells how to get into its network. The emulator itself is a process of its own (`python -m transient_magics.emulator`);
importing this starts nothing.
"""

from .launch import about, ensure, running

__all__ = ["about", "ensure", "running"]
