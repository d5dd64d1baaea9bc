"""Names of new work, checked by the controller against all work of its cluster."""

from __future__ import annotations

from ..errors import NameTakenError
from ..journal import ClusterState
from ..spec.namespace import Kind


def refuse_taken(state: ClusterState, kind: Kind, name: str) -> None:
    """Raise NameTakenError where other work of the cluster has the name, or reserves it."""
    if why := state.taken(kind, name):
        raise NameTakenError(why, fix="Choose another --name.")
