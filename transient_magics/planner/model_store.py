"""Measurements of trained models: one file per model and problem, which grows with every run.

The files are in `models/` of the user's data directory and outlive the clusters. Their names end
with a version; files of other versions are ignored. Each request fits the workload to all runs of
its file.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Self

from .. import places
from ..errors import PlanError, StoreError
from ..files import write_atomically
from ..protocol.run import RunSpec
from ..spec import Source
from .run_records import Observation, Record
from .speeds import throughput
from .speeds.fitting import BY_PEAK_ERROR, Cell, fit
from .speeds.throughput import SERVICE_ERROR, gpu_of, service_by_size, waiting
from .speeds.workloads import PLACES, Estimate, Workload
from .stalls.terms import StallMeasurement

_VERSION = 2
"""The version of the files. Increase it with every change that makes earlier files unreadable."""
_OWN = "cell-"
"""Prefix of the name of a model that a cell defines, before the digest of its text."""
_EMULATED = (
    "Emulated workers are processes of this machine, not GPUs: on Compute Engine hours and "
    "dollars differ. --project plans for Compute Engine."
)
_DISTANT = (
    "Its seconds on {gpus} were measured only with workers in another region than their parameter "
    "servers. They include the distance, which counts twice if such workers are planned."
)
_NOT_COUNTED = (
    "Its parameters were not counted: the plan omits the limit of the parameter "
    "servers and data transfer between zones."
)
_MEASURED = 30.0
"""Seconds of training that each speed from a stall measurement counts as."""


class ModelStore:
    """The runs of one model on one problem."""

    def __init__(
        self, model: str, problem: str, hparams_set: str = "", directory: Path | None = None
    ) -> None:
        self.key = {"model": model, "problem": problem, "hparams_set": hparams_set}
        name = re.sub(r"[^a-z0-9_.]+", "-", "-".join(filter(None, self.key.values())).lower())[:80]
        digest = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:8]
        self.path = (directory or places.home() / "models") / f"{name}-{digest}.v{_VERSION}.json"

    @classmethod
    def of(cls, spec: RunSpec, cell: bytes) -> Self:
        """Return the store of what a run trains; for a cell's own model by the cell's text."""
        if spec.model:
            return cls(spec.model, spec.problem, spec.hparams_set)
        return cls(f"{_OWN}{hashlib.sha256(cell).hexdigest()[:12]}", "")

    @property
    def own(self) -> bool:
        """Whether a cell defines the model."""
        return self.key["model"].startswith(_OWN)

    def records(self, source: Source) -> dict[str, Record]:
        """Return the records by run, with the seconds of one source only.

        Keys are `cluster/run@moment of its declaration`, the latest run last. Runs of other sources
        keep what holds anywhere (`run_records.CROSSING`). Raises StoreError for a broken file.
        """
        return {name: record.of(source) for name, record in self._records().items()}

    def record(self, run: str) -> Record | None:
        """Return the record of a run from any source, or None.

        Raises StoreError for a broken file.
        """
        return self._records().get(run)

    @property
    def newest_source(self) -> Source | None:
        """The source of the latest run that trained or measured stalls; None without runs.

        Raises StoreError for a broken file.
        """
        runs: dict[str, Source] = {run: record.source for run, record in self._records().items()}
        runs |= {
            run: terms.source
            for run, measured in self._all_stalls().items()
            for terms in measured.values()
        }
        newest = sorted(runs, key=_declared_at)[-1:]
        if newest:
            return runs[newest[0]]
        return None

    def stalls(self, source: Source) -> Mapping[str, Mapping[str, StallMeasurement]]:
        """Return the stall measurements on VMs of a source, by run and kind of worker.

        The latest run comes last. Raises StoreError for a broken file.
        """
        found: dict[str, Mapping[str, StallMeasurement]] = {}
        for run, kinds in self._all_stalls().items():
            of_source = {kind: terms for kind, terms in kinds.items() if terms.source == source}
            if of_source:
                found[run] = of_source
        return found

    def has_seconds(self, source: Source) -> bool:
        """Return whether runs or stall measurements on VMs of that source contain step times."""
        trained = any(record.observations for record in self.records(source).values())
        return trained or bool(self.stalls(source))

    def _records(self) -> dict[str, Record]:
        kept = self._read().get("runs", {})
        try:
            return {run: Record.from_dict(kept[run]) for run in sorted(kept, key=_declared_at)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def _all_stalls(self) -> Mapping[str, Mapping[str, StallMeasurement]]:
        kept = self._read().get("stalls", {})
        try:
            return {
                run: {
                    kind: StallMeasurement.from_dict(_called(run), terms)
                    for kind, terms in kept[run].items()
                }
                for run in sorted(kept, key=_declared_at)
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def keep_stalls(self, run: str, found: Mapping[str, StallMeasurement]) -> None:
        """Store the result of a stall measurement; it replaces an earlier one of the same run."""
        stored = self._read()
        values = {kind: terms.to_dict() for kind, terms in found.items()}
        self._write({**stored, "stalls": {**stored.get("stalls", {}), run: values}})

    def learn(self, run: str, record: Record) -> None:
        """Store the record of a run; it replaces an earlier one of the same run."""
        stored = self._read()
        self._write({**stored, "runs": {**stored.get("runs", {}), run: record.to_dict()}})

    def _write(self, stored: Mapping[str, Any]) -> None:
        places.private(self.path.parent)
        write_atomically(self.path, json.dumps({**self.key, **stored}, indent=1), durable=False)

    def workload(
        self, name: str, source: Source, wire: str = "fp32", *, among: Container[str] | None = None
    ) -> Workload:
        """Return the workload of these runs on VMs of a source.

        Parameters
        ----------
        name
            Its name.
        source
            Where the runs trained.
        wire
            The format of gradients, for stalls.
        among
            Only these runs.

        Raises
        ------
        PlanError
            If no stretch of the runs is long enough.
        """
        chosen = {
            run: record
            for run, record in self.records(source).items()
            if among is None or run in among
        }
        records = {run: record for run, record in chosen.items() if record.mode == "async"}
        stalls = self._terms(source, wire)
        untrained = ""
        every = [
            (run, observation)
            for run, record in records.items()
            for observation in record.observations
        ]
        # A stretch with a distant worker includes the distance: it counts only for kinds that
        # nothing else measured.
        near = {
            kind
            for _, observation in every
            if not observation.distant
            for kind in observation.workers
        }
        seen = [
            (run, observation)
            for run, observation in every
            if not observation.distant or not near.issuperset(observation.workers)
        ]
        far = dict.fromkeys(
            gpu_of(kind).upper()
            for _, observation in seen
            for kind in observation.workers
            if kind not in near
        )
        runs = len({run for run, _ in seen})
        measured = f"measured in {runs} run{'' if runs == 1 else 's'}"
        if not seen and stalls:
            seen = [(terms.run, _observed(kind, terms)) for kind, terms in stalls.items()]
            names = ", ".join(dict.fromkeys(stall.run for stall in stalls.values()))
            measured = f"measured by {names}"
            untrained = "it never trained: only its stalls were measured"
        if not seen:
            raise PlanError(
                f"{name} has not trained long enough {PLACES[source]} for a plan",
                fix="Train it for at least 20 seconds with the same workers.",
            )
        batches = [record.batch_size for record in records.values() if record.batch_size]
        batches = batches or [terms.stalls.examples for terms in stalls.values()]
        measured_runs = [*records.values(), *stalls.values()]
        parameters = max((done.parameters for done in measured_runs), default=0)
        gigaflops = max((done.gigaflops for done in measured_runs), default=0.0)
        cells = [
            Cell(stretch.workers, stretch.servers, stretch.steps_per_second, stretch.seconds, run)
            for run, stretch in seen
        ]
        single = min(sum(cell.workers.values()) / cell.steps_per_second for cell in cells)
        assumed = min(service_by_size(parameters), single / 2)
        found = fit(cells, service_seconds=assumed)
        waits, preparation = waiting(record.waits for record in records.values())
        bound = {kind: terms for kind, terms in stalls.items() if terms.input_wait_seconds > 0}
        if bound:
            waits = {**waits, **{kind: terms.input_wait_seconds for kind, terms in bound.items()}}
            inputs = (terms.input_seconds * terms.place.vcpus for terms in bound.values())
            preparation = statistics.fmean(inputs)
        joins = [statistics.median(record.joins) for record in records.values() if record.joins]
        notes = [_EMULATED] if source == "emulated" else []
        if far:
            notes.append(_DISTANT.format(gpus=" and ".join(far)))
        if not parameters:
            notes.append(_NOT_COUNTED)
        if not found.apart:
            notes.append(
                f"Its GPUs only trained together: in another mix each may be {BY_PEAK_ERROR:.0%} "
                "off."
            )
        return Workload(
            name=name,
            source=source,
            compute={
                gpu: Estimate(seconds, 0.0, measured, gpu)
                for gpu, seconds in found.compute_seconds.items()
            },
            service_seconds=found.service_seconds,
            scaling=found.scaling,
            batch_size=round(statistics.median(batches)) if batches else 0,
            parameters=parameters,
            gigaflops=gigaflops,
            family=family_of(self.key["model"]),
            join_seconds=statistics.median(joins) if joins else 0.0,
            wire=wire,
            notes=tuple(notes),
            speed_error=found.between,
            draws=found.draws,
            limit_error=0.05 if found.limited else SERVICE_ERROR,
            limit_measured=found.limited or not assumed,
            waits=waits,
            preparation=preparation,
            stalls=stalls,
            guess=untrained or ("it has not trained for long" if found.guessed else ""),
        )

    def _terms(self, source: Source, wire: str) -> dict[str, StallMeasurement]:
        """Return the latest stall measurement with that wire, by kind of worker."""
        return {
            kind: terms
            for kinds in self.stalls(source).values()
            for kind, terms in kinds.items()
            if terms.wire == wire
        }

    def _read(self) -> dict[str, Any]:
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._broken(error) from error
        return stored if isinstance(stored, Mapping) else {}  # type: ignore[return-value]

    def _broken(self, error: Exception) -> StoreError:
        what = f"Earlier measurements cannot be read: {type(error).__name__}: {error}"
        return StoreError(what, where=str(self.path), fix="Delete that file.")


def _observed(kind: str, terms: StallMeasurement) -> Observation:
    """Return the speed of the workers of a kind in a stall measurement."""
    return Observation(
        {kind: terms.workers}, terms.servers, terms.workers / terms.step_seconds, _MEASURED
    )


def _called(run: str) -> str:
    """Return the name of a run from its key."""
    return run.rpartition("/")[2].partition("@")[0]


def _declared_at(run: str) -> float:
    """Return when a run was declared (seconds since 1970) from its key. Raises ValueError."""
    return float(run.rpartition("@")[2])


def family_of(model: str) -> str:
    """Return the measured family of networks of a Tensor2Tensor model by its name; '' for none."""
    return next(
        (family for family in throughput.families() if family.replace("-", "_") in model), ""
    )
