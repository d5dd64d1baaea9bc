"""Declaration of new work of any kind: the checks on its cluster, its folder and its start.

The folder has the declaration, code and files. The controller starts the work when it receives the
command that follows; if no controller receives it, the next one finds the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ..errors import ClusterError
from ..kinds import KINDS
from ..spec import JOBS, ClusterSpec, parse_name
from .cluster_handle import Cluster
from .declaring import claims
from .declaring.declaration import option_error, refuse_more_workers
from .declaring.payload import Payload
from .lookup import cluster as find_cluster

Spec = TypeVar("Spec")


class NewWork:
    """Work that is being declared on a cluster.

    Attributes
    ----------
    cluster : Cluster
        The cluster on which it is declared.
    name : str or None
        The name chosen by the user; None for an automatic name.
    """

    def __init__(
        self,
        kind: str,
        cluster: Cluster | str | None,
        name: str | None,
        *,
        stem: str = "",
        trains: bool = False,
    ) -> None:
        """Find the cluster, and check that it takes such work and that the name is free.

        Parameters
        ----------
        kind
            A key of `kinds.KINDS`.
        cluster
            The cluster or its name (default: that of this process).
        name
            The name chosen by the user.
        stem
            The first part of the automatic name (default: the kind).
        trains
            Whether the work needs TensorFlow on the VMs.

        Raises
        ------
        ClusterError
            There is no such cluster, or it takes no work.
        DeclarationError
            The name is invalid.
        NameTakenError
            Other work of the cluster has the name, or reserves it.
        """
        if isinstance(cluster, Cluster):
            self.cluster = cluster
        else:
            self.cluster = find_cluster(cluster)
        self._kind = kind
        self._stem = stem or KINDS[kind].stems[0]
        refuse_when_ending(self.cluster)
        if trains:
            refuse_to_train(self.cluster)
        self.name = None
        if name:
            self.name = parse_name(name, "--name")
            claims.refuse_taken(self.cluster, kind, self.name)

    @property
    def expected_name(self) -> str:
        """The name of the work, unless another process takes it first."""
        return self.name or claims.free_name(self.cluster, self._kind, self._stem)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The declaration of the cluster. Raises ClusterError if there is none yet."""
        spec = self.cluster.state.spec
        if spec is None:
            raise ClusterError(
                f"{self.cluster.name} is not declared yet", fix="Try again in a moment."
            )
        return spec

    def specify(
        self,
        make: Callable[[dict[str, object]], Spec],
        values: Mapping[str, Any],
        payload: Payload | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
        *,
        prefix: str = "--",
    ) -> Spec:
        """Build the declaration, with a name that `declare` replaces.

        Parameters
        ----------
        make
            Builds the declaration from its fields.
        values
            Fields by name. None values are left out.
        payload
            Files and packages of the work, if it can have any.
        options
            Options by field, if their names differ, for errors.
        prefix
            The text before an option in errors.

        Raises
        ------
        DeclarationError
            A value is invalid, or the cluster has fewer workers than `workers`.
        """
        fields = {name: value for name, value in values.items() if value is not None}
        if workers := fields.get("workers"):
            refuse_more_workers(self.cluster_spec, workers, where=f"{prefix}workers")
        if payload:
            fields |= payload.fields
        fields |= {"name": self.name or f"{self._stem}-1", "declared_at": time.time()}
        try:
            return make(fields)
        except ValueError as error:
            raise option_error(error, options, prefix=prefix) from None

    def declare(
        self, record: Callable[[str], Mapping[str, Any]], fill: Callable[[Path], None]
    ) -> str:
        """Write the folder, send the command that starts the work, and return its name.

        Parameters
        ----------
        record, fill
            As for `claims.declare`.

        Raises
        ------
        TransientError
            As `claims.declare` and `claims.announce`.
        """
        name = claims.declare(
            self.cluster, self._kind, self.name, stem=self._stem, record=record, fill=fill
        )
        claims.announce(self.cluster, self._kind, name)
        return name


def refuse_when_ending(cluster: Cluster) -> None:
    """Raise ClusterError if the cluster is ending, or a run with a deadline uses it exclusively."""
    state = cluster.state
    if due := state.deadline_run:
        what = f"{cluster.name} is reserved for {due.name}, which has a deadline"
        raise ClusterError(what, fix="Name another cluster, or wait until the run has ended.")
    if state.phase in ("deleting", "deleted"):
        what = "is deleted" if state.over else "is being deleted"
        raise ClusterError(f"{cluster.name} {what}", fix="Declare another cluster.")


def refuse_to_train(cluster: Cluster) -> None:
    """Raise ClusterError if the VMs of the cluster have no TensorFlow."""
    spec = cluster.state.spec
    if spec and spec.purpose == JOBS:
        what = f"{cluster.name} was declared --for jobs, so its VMs have no TensorFlow"
        raise ClusterError(
            what, fix="Name another cluster with --cluster, or declare one without --for jobs."
        )
