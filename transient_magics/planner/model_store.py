"""What was learnt of models by running them, one file per model and problem, which grows with every
run.

The files lie in `models/` of the user's data directory and outlive the clusters. Their names end
with the version of what they hold; files of other versions are not read. A workload is fitted again
from all runs of its file for each request.
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
from .stalls.terms import Terms

_VERSION = 2
"""Version of what the files hold. Increase it with every change after which earlier files cannot be
read.
"""
_OWN = "cell-"
"""Begins the name of a model that a cell defines itself; its text's digest follows."""
_EMULATED = (
    "Emulated workers are processes of this machine, not GPUs: on Compute Engine hours and dollars will be others. "
    "--project plans for that."
)
_DISTANT = (
    "Its seconds on {gpus} were measured only with workers in another region than their parameter servers: the "
    "distance is in them, and counts once more where such workers are planned."
)
_NOT_COUNTED = "Its parameters were not counted: the limit of the parameter servers and data transfer between zones are left out."
_MEASURED = 30.0
"""For how many seconds of training each speed counts that a measure of stalls tells."""


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
        """That of what a run trains; of a cell's own model, by the cell's text."""
        if spec.model:
            return cls(spec.model, spec.problem, spec.hparams_set)
        return cls(f"{_OWN}{hashlib.sha256(cell).hexdigest()[:12]}", "")

    @property
    def own(self) -> bool:
        """Whether a cell defines the model."""
        return self.key["model"].startswith(_OWN)

    def records(self, source: Source) -> dict[str, Record]:
        """Return the records by run (`cluster/run@moment of its declaration`), with the seconds of
        one source only.

        The run that was declared last comes last. Runs of other sources keep what holds anywhere
        (`measured.CROSSING`). Raises StoreError for a broken file.
        """
        return {name: record.of(source) for name, record in self._records().items()}

    def record(self, run: str) -> Record | None:
        """Return what was kept of a run, whatever its source; None: nothing. Raises StoreError for
        a broken file.
        """
        return self._records().get(run)

    @property
    def newest_source(self) -> Source | None:
        """The source of the run that was declared last, of those that trained and those that
        measured stalls; None where there is none. Raises StoreError for a broken file.
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

    def stalls(self, source: Source) -> Mapping[str, Mapping[str, Terms]]:
        """Return the measures of stalls on VMs of that source, by run and kind of worker, the
        latest run last. Raises StoreError for a broken file.
        """
        return {
            run: found
            for run, kinds in self._all_stalls().items()
            if (found := {kind: terms for kind, terms in kinds.items() if terms.source == source})
        }

    def has_seconds(self, source: Source) -> bool:
        """Return whether runs or measures of stalls on VMs of that source tell how long steps take."""
        return any(record.observations for record in self.records(source).values()) or bool(
            self.stalls(source)
        )

    def _records(self) -> dict[str, Record]:
        kept = self._read().get("runs", {})
        try:
            return {run: Record.from_dict(kept[run]) for run in sorted(kept, key=_declared_at)}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def _all_stalls(self) -> Mapping[str, Mapping[str, Terms]]:
        kept = self._read().get("stalls", {})
        try:
            return {
                run: {
                    kind: Terms.from_dict(_called(run), terms) for kind, terms in kept[run].items()
                }
                for run in sorted(kept, key=_declared_at)
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._broken(error) from error

    def keep_stalls(self, run: str, found: Mapping[str, Terms]) -> None:
        """Keep what a measure of stalls came to; a later one of the same run takes its place."""
        known = self._read()
        told = {kind: each.to_dict() for kind, each in found.items()}
        self._write({**known, "stalls": {**known.get("stalls", {}), run: told}})

    def learn(self, run: str, record: Record) -> None:
        """Keep what a run tells; a later record of the same run takes the place of an earlier one."""
        known = self._read()
        self._write({**known, "runs": {**known.get("runs", {}), run: record.to_dict()}})

    def _write(self, known: Mapping[str, Any]) -> None:
        places.private(self.path.parent)
        write_atomically(self.path, json.dumps({**self.key, **known}, indent=1), durable=False)

    def workload(
        self, name: str, source: Source, wire: str = "fp32", *, among: Container[str] | None = None
    ) -> Workload:
        """Return the workload that these runs (`among`: only those) were on VMs of a source, called
        `name`.

        Raises PlanError where no stretch of them is long enough.
        """
        known = {
            run: each for run, each in self.records(source).items() if among is None or run in among
        }
        records = {run: each for run, each in known.items() if each.mode == "async"}
        stalls = self._terms(source, wire)
        untrained = ""
        every = [
            (run, observation)
            for run, record in records.items()
            for observation in record.observations
        ]
        # A stretch with a distant worker has the way in it: it counts for the kinds that nothing
        # else measured.
        near = {kind for _, each in every if not each.distant for kind in each.workers}
        seen = [
            (run, each)
            for run, each in every
            if not each.distant or not near.issuperset(each.workers)
        ]
        far = dict.fromkeys(
            gpu_of(kind).upper() for _, each in seen for kind in each.workers if kind not in near
        )
        runs = len({run for run, _ in seen})
        measured = f"measured in {runs} run{'' if runs == 1 else 's'}"
        if not seen and stalls:
            seen = [(terms.run, _observed(kind, terms)) for kind, terms in stalls.items()]
            measured = (
                f"measured by {', '.join(dict.fromkeys(stall.run for stall in stalls.values()))}"
            )
            untrained = "it never trained: its stalls alone were measured"
        if not seen:
            raise PlanError(
                f"{name} has not trained long enough {PLACES[source]} to plan with",
                fix="Some twenty seconds with the same workers are needed.",
            )
        batches = [record.batch_size for record in records.values() if record.batch_size]
        batches = batches or [each.stalls.examples for each in stalls.values()]
        told = [*records.values(), *stalls.values()]
        parameters = max((each.parameters for each in told), default=0)
        gigaflops = max((each.gigaflops for each in told), default=0.0)
        cells = [
            Cell(each.workers, each.servers, each.steps_per_second, each.seconds, run)
            for run, each in seen
        ]
        single = min(sum(cell.workers.values()) / cell.steps_per_second for cell in cells)
        assumed = min(service_by_size(parameters), single / 2)
        found = fit(cells, service_seconds=assumed)
        waits, preparation = waiting(record.waits for record in records.values())
        if bound := {kind: each for kind, each in stalls.items() if each.waited > 0}:
            waits = {**waits, **{kind: each.waited for kind, each in bound.items()}}
            preparation = statistics.fmean(each.input * each.place.vcpus for each in bound.values())
        joins = [statistics.median(record.joins) for record in records.values() if record.joins]
        if source == "emulated":
            notes = [_EMULATED]
        else:
            notes = []
        if far:
            notes.append(_DISTANT.format(gpus=" and ".join(far)))
        if not parameters:
            notes.append(_NOT_COUNTED)
        if not found.apart:
            notes.append(
                f"Its GPUs trained together only: in another mix each may be {BY_PEAK_ERROR:.0%} off."
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

    def _terms(self, source: Source, wire: str) -> dict[str, Terms]:
        """By kind of worker the latest measure of stalls with that wire."""
        return {
            kind: each
            for kinds in self.stalls(source).values()
            for kind, each in kinds.items()
            if each.wire == wire
        }

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._broken(error) from error
        return known if isinstance(known, Mapping) else {}  # type: ignore[return-value]

    def _broken(self, error: Exception) -> StoreError:
        what = f"What earlier runs measured cannot be read: {type(error).__name__}: {error}"
        return StoreError(what, where=str(self.path), fix="Delete that file.")


def _observed(kind: str, terms: Terms) -> Observation:
    """What a measure of stalls tells of the speed of workers of a kind, as many as took part."""
    return Observation({kind: terms.workers}, terms.servers, terms.workers / terms.step, _MEASURED)


def _called(run: str) -> str:
    """The name of a run by what it is kept under."""
    return run.rpartition("/")[2].partition("@")[0]


def _declared_at(run: str) -> float:
    """When a run was declared, in seconds since 1970, by what it is kept under. Raises ValueError."""
    return float(run.rpartition("@")[2])


def family_of(model: str) -> str:
    """The family of networks that was measured to which a Tensor2Tensor model belongs by its name;
    empty: to none.
    """
    return next(
        (family for family in throughput.families() if family.replace("-", "_") in model), ""
    )
