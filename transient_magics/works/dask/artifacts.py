"""The artifacts of a Dask cluster whose controller is on a VM: its keys alone."""

from __future__ import annotations

from pathlib import Path

from ...controller.remote_controller.result_sync import Sync
from ...protocol import layout
from ...spec import ClusterSpec
from . import certificates
from .state import DaskState


class DaskSync(Sync[DaskState]):
    """Creates the keys of Dask clusters before they begin, and deletes them at their end."""

    kind = "dask"

    @classmethod
    def before_sending(cls, directory: Path, spec: ClusterSpec, name: str) -> None:
        """Create the keys here: clients on this machine need them, and so would its controller."""
        certificates.make(directory / layout.DASKS / name, name, certificates.until(spec))

    def tidy(self, work: DaskState) -> None:
        """Delete the keys of a Dask cluster that is over."""
        if work.over:
            certificates.forget(self.folder(work.name))


SYNC = DaskSync
