"""The supervisor of one VM: commands of the controller, processes of roles and other work, notices.

`agent` takes commands, `supervise` keeps one role running, `processes` keeps other work running.
`starting` starts a role's process, as a program or from a `fork_server`, which is another process.
Nothing here trains, and only the fork server imports TensorFlow.
"""

from __future__ import annotations
