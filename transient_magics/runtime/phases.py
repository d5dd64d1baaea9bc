"""The phases of a run whose cell calls `fit` several times, stored beside its checkpoints.

Each call is a phase. `phases.json` says at which step each phase after the first began, and which
values its call of `fit` returns. `phase-1.npz` has the weights with which the first phase ended. A
process that executes the cell loads them where the cell called `fit`, so the code up to the present
phase sees trained weights. The files are copied with the checkpoints. The chief writes
`phases.json` last, when a phase begins: from then on, checkpoints are of that phase.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import TrainingError
from ..files import write_atomically
from ..protocol import checks
from ..protocol.checks import Amount, Count
from ..protocol.run import FitDeclaration, RunSpec
from .folder import RunFolder

NAME = "phases.json"
_WEIGHTS = re.compile(r"phase-[1-9]\d{0,5}\.npz", re.ASCII)


@dataclass(frozen=True)
class Phase:
    """One phase: the step at which it began, and what its call of `fit` declares.

    `history` has the metrics of the phase before it by name, one value per epoch. `rate` is the
    factor by which callbacks have changed the learning rate at its end. `total` is the number of
    steps of the run that is expected as this phase begins.
    """

    begin: Count
    fit: FitDeclaration
    history: Mapping[str, tuple[float, ...]]
    total: Count = 0
    rate: Amount = 1.0


@dataclass(frozen=True)
class _Kept:
    """The content of the file: the hash of the cell, and the phases after the first."""

    cell: str
    phases: tuple[Phase, ...]


def is_phase_file(name: str) -> bool:
    """Return whether a file among the checkpoints is about phases."""
    return name == NAME or _WEIGHTS.fullmatch(name) is not None


def phase_files(checkpoints: Path) -> list[Path]:
    """Return the files about phases in a folder of checkpoints."""
    if not checkpoints.is_dir():
        return []
    return sorted(path for path in checkpoints.iterdir() if is_phase_file(path.name))


class Phases:
    """The phases of the run in a folder; those of another cell do not count."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def later(self) -> list[Phase]:
        """Return the phases after the first that have begun. Raises TrainingError."""
        path = self._folder.checkpoints / NAME
        if not path.exists():
            return []
        try:
            kept = checks.built(_Kept, checks.parsed_object(path.read_bytes()))
            if kept.cell != self._cell():
                return []
            return list(kept.phases)
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"the phases of the run cannot be read: {error}", where=str(path)
            ) from error

    def until(self, step: int | None) -> list[Phase]:
        """Return the later phases that had begun before the checkpoint of `step` (None: all)."""
        return [phase for phase in self.later() if step is None or phase.begin < step]

    def begin(self, phase: Phase) -> None:
        """Store that a phase begins. Raises OSError."""
        phases = [asdict(begun) for begun in (*self.later(), phase)]
        content = json.dumps({"cell": self._cell(), "phases": phases})
        write_atomically(self._folder.checkpoints / NAME, content)

    def completed(self, declared: FitDeclaration) -> RunSpec:
        """Return the run's declaration with its present phase.

        `declared` is what the cell's calls of `fit` declare, as the check of the run found.
        """
        spec = self._folder.spec()
        most = spec.train_steps
        later = self.later()
        if not declared.phase_steps and not later:
            return declared.applied(spec)
        begin = 0
        fit = declared
        steps = declared.phase_steps
        if later:
            begin = later[-1].begin
            fit = later[-1].fit
            steps = fit.steps
        end = begin + steps
        if 0 < most <= end:
            end = most
            steps = 0  # no phase follows
        completed = fit.applied(spec)
        return replace(completed, train_steps=end, phase_begin=begin, phase_steps=steps)

    def weights(self, number: int) -> Path:
        """Return the path of the weights with which the phase `number` ended."""
        return self._folder.checkpoints / f"phase-{number}.npz"

    def _cell(self) -> str:
        return hashlib.sha256(self._folder.cell.read_bytes()).hexdigest()
