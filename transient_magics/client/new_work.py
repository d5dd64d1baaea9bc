"""New work of any kind: what its declaration checks on a cluster, and how it gets its folder and
begins.

The folder has the declaration and everything that goes along. The controller begins the work at the
command that follows; if none receives it, the next controller finds the folder.
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
    """Work of one kind that is being declared on a cluster.

    Attributes
    ----------
    cluster : Cluster
        The cluster on which it is declared.
    name : str or None
        The name that the user chose; None: an automatic one.
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
            The cluster or its name (default: the one on which this process works).
        name
            The name that the user chose.
        stem
            The first part of the automatic name (default: the kind).
        trains
            Whether the work needs TensorFlow on the VMs.

        Raises
        ------
        ClusterError
            There is no such cluster, or no work can begin on it.
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
        if name:
            self.name = parse_name(name, "--name")
        else:
            self.name = None
        if self.name:
            claims.refuse_taken(self.cluster, kind, self.name)

    @property
    def expected_name(self) -> str:
        """The name that the work gets unless another process takes it before."""
        return self.name or claims.free_name(self.cluster, self._kind, self._stem)

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The declaration of the cluster. Raises ClusterError before it is known."""
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
        """Return the declaration that `make` builds of its fields, with a name that `declare`
        replaces.

        Parameters
        ----------
        values
            Fields by name. Those that are None are left out.
        payload
            Files and packages that go along, where such work can have any.
        options
            Options by field, where their names differ, for errors.
        prefix
            What stands before an option in errors.

        Raises
        ------
        DeclarationError
            A value is invalid, or there are more `workers` than the cluster has.
        """
        fields = {name: value for name, value in values.items() if value is not None}
        if workers := fields.get("workers"):
            refuse_more_workers(self.cluster_spec, workers, where=f"{prefix}workers")
        fields |= payload.fields if payload else {}
        fields |= {"name": self.name or f"{self._stem}-1", "declared_at": time.time()}
        try:
            return make(fields)
        except ValueError as error:
            raise option_error(error, options, prefix=prefix) from None

    def declare(
        self, record: Callable[[str], Mapping[str, Any]], fill: Callable[[Path], None]
    ) -> str:
        """Write the folder, have the controller begin the work, and return its name.

        `record` and `fill` are those of `claims.declare`. Raises as `claims.declare` and
        `claims.announce` do.
        """
        name = claims.declare(
            self.cluster, self._kind, self.name, stem=self._stem, record=record, fill=fill
        )
        claims.announce(self.cluster, self._kind, name)
        return name


def refuse_when_ending(cluster: Cluster) -> None:
    """Raise ClusterError for a cluster that ends, or that a run with a deadline has for itself."""
    state = cluster.state
    if due := state.due:
        what = f"{due.name} has a deadline, and {cluster.name} for itself until it is over"
        raise ClusterError(what, fix="Name another cluster, or wait.")
    if state.phase in ("deleting", "deleted"):
        what = "is deleted" if state.over else "is being deleted"
        raise ClusterError(f"{cluster.name} {what}", fix="Declare another cluster.")


def refuse_to_train(cluster: Cluster) -> None:
    """Raise ClusterError for a cluster whose VMs have no TensorFlow."""
    spec = cluster.state.spec
    if spec and spec.purpose == JOBS:
        what = f"{cluster.name} was declared --for jobs, so its VMs have no TensorFlow"
        raise ClusterError(
            what, fix="Name another cluster with --cluster, or declare one without --for jobs."
        )
