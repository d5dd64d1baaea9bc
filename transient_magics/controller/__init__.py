"""The process that owns one cluster's VMs: provision, connect, replace, limit, tear down.

`cluster` is the control loop, `decisions` are pure functions of the journal's state and the clock,
`vms/fleet` carries them out, and `vms/link` is the connection to one VM. Clients start the process
detached (`python -m transient_magics.controller NAME`). A lock on the cluster's folder keeps a
second one away. All that the process knows is in the journal and in the labels of the VMs.

With `--controller cluster` it moves to a VM (`remote_controller/install`), and the process on this
machine is its proxy (`remote_controller/proxy`). `remote_controller/attach` makes the folder of a
cluster that another machine declared.
"""

from .decisions.core import Decision, Situation, decide

__all__ = ["Decision", "Situation", "decide"]
