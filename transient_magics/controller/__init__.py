"""The process that owns one cluster's VMs: provision, connect, replace, limit, tear down.

`decisions/` are pure functions of the journal's state and the clock, `cluster` is in charge,
`vms/fleet` carries out, `vms/link` is one VM, `runs/conduct` has the runs, `runs/training` is one
of them. Started detached by whoever needs it (`python -m transient_magics.controller NAME`); a lock
on the cluster's folder keeps a second one away; everything that it knows is in the journal and in
the labels of the VMs. Where it is declared so it moves to a VM of the cluster (`placement/seat`),
and what stays here only follows it (`placement/mirror`); `placement/attaching` makes the folder of
a cluster that another machine declared. `programs/bake` is the same for one image: a program that
outlives the notebook.
"""

from .decisions.core import Decision, Situation, decide

__all__ = ["Decision", "Situation", "decide"]
