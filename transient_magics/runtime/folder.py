"""One run's folder on a VM: what the controller put there, and where the roles write.

`run.json` (the declaration and the run's token), `cell.py`, `include/`, `wheels/` and, on the
chief's VM, the tokens for buckets come from the controller. Events, metrics, checkpoints, data and
logs are written here by the roles. Every line of a file is written with one call, so that a reader
following it never sees two writers' lines mixed. As long as `standby` is there, which the agent
removes, the run goes on elsewhere: the role here gets all ready, leaves `prepared`, and waits. As
long as `ahead` is, another run has the worker of this VM: the one here waits for its end.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import TrainingError
from ..protocol import jsonl, layout
from ..protocol.run import RunSpec


class RunFolder:
    """The paths of one run below an agent's root, its declaration, and its append-only files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cell = path / layout.CELL
        self.include = path / layout.INCLUDE
        self.wheels = path / layout.WHEELS
        self.packages = path / "packages"
        self.events = path / layout.EVENTS
        self.metrics = path / layout.METRICS
        self.checkpoints = path / layout.CHECKPOINTS
        self.data = path / "data"
        self.graphs = path / "graphs"
        self.variables = path / "variables.graph"
        self.logs = path / layout.LOGS
        self.chief = path / "chief.json"
        self.standby = path / layout.STANDBY
        self.prepared = path / "prepared"
        self.ahead = path / "ahead"
        self.bucket_token = path / "bucket-token.json"
        self.records_token = path / "records-token.json"
        self.input_address = path / "input-address"

    def shared_input(self, study: str) -> RunFolder:
        """The folder, on this VM, of what the trials of a study read together."""
        return RunFolder(self.path.with_name(layout.shared_input(study)))

    def spec(self) -> RunSpec:
        """Read run.json."""
        declared = self.path / layout.RUN
        try:
            return RunSpec.from_dict(json.loads(declared.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"the declaration of the run cannot be read: {error}", where=str(declared)
            ) from error

    def graph_file(self, gpu: bool, servers: int) -> Path:
        """Where the graph of workers with a GPU is, or of those without, for so many parameter
        servers.
        """
        return self.graphs / f"{'gpu' if gpu else 'cpu'}-{servers}.graph"

    def data_directory(self, spec: RunSpec) -> str:
        """Where the problem's records are: the declared place, or the run's own folder."""
        return spec.data_folder or str(self.data)


class Lines:
    """Lines that must not be lost when the disk is full for a while: they wait, in order, until
    they can be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._last = 0

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append an event, now or as soon as there is room. It is later than those before, also
        where the clock is set back: who hears them twice knows by their times which are new.
        """
        self._last = max(time.time_ns(), self._last + 1)
        self._waiting.append({"time": self._last, "kind": kind, **values})
        self.flush()

    @property
    def waiting(self) -> bool:
        """Whether some could not be written yet."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Try again what waits."""
        while self._waiting:
            try:
                jsonl.append(self._path, self._waiting[0])
            except OSError as error:
                print(f"{self._path.name} cannot be written: {error}", file=sys.stderr, flush=True)
                return
            self._waiting.popleft()
