"""The folder of one run on a VM.

The controller puts `run.json` (the declaration and the run's token), `cell.py`, `include/`,
`wheels/` and, on the chief's VM, the tokens for buckets there. Roles write events, metrics,
checkpoints, data and logs. Each line is written with one call, so a reader that follows a file
never sees lines of two writers mixed.

While the file `standby` is there, the run still trains elsewhere: the role prepares everything,
writes `prepared`, and waits until the agent removes `standby`. While `ahead` is there, another run
has this VM's worker, and the new worker waits for its end.
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
    """The paths in the folder of one run, and its declaration."""

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

    def of_phase(self, begin: int) -> RunFolder:
        """Return the folder with the graphs of the phase that began at the step `begin`."""
        folder = RunFolder(self.path)
        if begin:
            folder.graphs = self.path / f"graphs-{begin}"
            folder.variables = self.path / f"variables-{begin}.graph"
        return folder

    def shared_input(self, study: str) -> RunFolder:
        """Return the folder of the input that trials of a study share on this VM."""
        return RunFolder(self.path.with_name(layout.shared_input(study)))

    def spec(self) -> RunSpec:
        """Return the declaration. Raises TrainingError if it cannot be read."""
        declared = self.path / layout.RUN
        try:
            return RunSpec.from_dict(json.loads(declared.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"the declaration of the run cannot be read: {error}", where=str(declared)
            ) from error

    def graph_file(self, gpu: bool, servers: int) -> Path:
        """Return the file with the graph of workers with or without a GPU.

        `servers` is the number of parameter servers.
        """
        kind = "gpu" if gpu else "cpu"
        return self.graphs / f"{kind}-{servers}.graph"

    def data_directory(self, spec: RunSpec) -> str:
        """Return where the records are: the declared place, or the run's own folder."""
        return spec.data_folder or str(self.data)


class Lines:
    """An append-only file of events that keeps them in memory, in order, while the disk is full."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._last_time = 0

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append an event, now or as soon as the disk has room.

        Its time is later than those of the events before, even if the clock is set back. So a
        reader that receives events twice can tell by their times which are new.
        """
        self._last_time = max(time.time_ns(), self._last_time + 1)
        self._waiting.append({"time": self._last_time, "kind": kind, **values})
        self.flush()

    @property
    def waiting(self) -> bool:
        """Whether some events could not be written yet."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Write the events that wait, if the disk has room."""
        while self._waiting:
            try:
                jsonl.append(self._path, self._waiting[0])
            except OSError as error:
                print(f"{self._path.name} cannot be written: {error}", file=sys.stderr, flush=True)
                return
            self._waiting.popleft()
