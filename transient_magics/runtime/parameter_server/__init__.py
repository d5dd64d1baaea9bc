"""The process of one parameter server, and in the first one of a run the chief (chief/).

`variables` initialises, saves and restores them; `server_load` reports the load of the process to
the chief.
"""

from __future__ import annotations
