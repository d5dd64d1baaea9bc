"""The process of one parameter server, and in the first one of a run the chief (chief/).

`variables` initialises, saves and restores them; `server_load` tells the chief how busy the process
is.
"""

from __future__ import annotations
