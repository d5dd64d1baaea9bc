"""The machines of a study's runs (`--on`), and the clusters on which they train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from ...catalog import ACCELERATORS, region
from ...catalog.published import stand_in_words
from ...client import text
from ...client.declaring import Declaration, specify
from ...errors import DeclarationError
from ...protocol.checks import LONGEST_NAME
from ...protocol.machines import parse_machines, render_machines
from ...protocol.space import count_points
from ...spec import ClusterSpec, parse_groups, render_duration, render_money
from .plans import Expectations, Expected
from .spec import StudySpec

_TAKES = [field.name for field in fields(Expected)]
MOST = 100
MOST_OWN = 16
"""The most configurations, and the most of them with a cluster of their own.

Each cluster has a controller, which waits on this machine.
"""


def parse_configurations(on: str | Sequence[str]) -> tuple[str, ...]:
    """Read `k80x1,k80x4,k80x2+p100`, or a sequence of these. Raises DeclarationError."""
    if isinstance(on, str):
        texts = on.split(",")
    else:
        texts = [str(words) for words in on]
    if not any(words.strip() for words in texts):
        raise DeclarationError(
            "--on needs at least one configuration",
            where="--on",
            fix="For example: --on k80x1,k80x4",
        )
    if not all(words.strip() for words in texts):
        raise DeclarationError(
            "A configuration between two commas is empty",
            where="--on",
            fix="For example: --on k80x1,k80x4",
        )
    if len(texts) > MOST:
        raise DeclarationError(
            f"{len(texts)} configurations exceed the limit of {MOST}",
            where="--on",
            fix="Try fewer.",
        )
    configurations: list[str] = []
    for words in texts:
        machines = _machines(words)
        same = [written for written in configurations if parse_machines(written) == machines]
        if same:
            fix = "To train each point five times, use --repeat 5."
            raise DeclarationError(
                f"The configuration {same[0]} occurs twice", where="--on", fix=fix
            )
        configurations.append(render_machines(machines))
    return tuple(configurations)


def _machines(configuration: str) -> Counter[str]:
    try:
        groups = parse_groups(configuration, ACCELERATORS)
    except DeclarationError as error:
        raise DeclarationError(error.what, where="--on", fix=error.fix) from None
    counts: Counter[str] = Counter()
    for group in groups:
        if group.zone:
            what = (
                f"'{configuration.strip()}' names a zone, but a configuration uses workers of "
                "any zone"
            )
            fix = f"Write {group.accelerator}x{group.count}."
            raise DeclarationError(what, where="--on", fix=fix)
        counts[group.accelerator] += group.count
    return counts


@dataclass(frozen=True)
class Part:
    """The part of a study that one cluster trains.

    `spec` is the declaration of the cluster: one that runs, or the study's own (`own`).
    """

    spec: ClusterSpec
    configurations: tuple[str, ...]
    own: bool

    @property
    def hourly(self) -> float:
        """The cost of the cluster per hour, in US dollars; a running cluster costs it anyway."""
        return self.spec.hourly


def parts(
    configurations: Sequence[str],
    running: ClusterSpec | None,
    study: str,
    *,
    max_cost: float | None,
    max_hours: float,
) -> list[Part]:
    """Return on which cluster each configuration trains, in the order of their turns.

    Configurations that fit the running cluster train on parts of it. Each other one has a cluster
    of its own, declared like the running one, within the limits of the study.

    Parameters
    ----------
    configurations
        The machines of each configuration.
    running
        The declaration of the running cluster; None: there is none.
    study
        The name of the study.
    max_cost, max_hours
        The limits of the study, in US dollars and hours.

    Raises
    ------
    DeclarationError
        A cluster for a configuration cannot be declared.
    """
    here = tuple(
        configuration
        for configuration in configurations
        if running and running.holds(configuration)
    )
    count = len(configurations) - len(here)
    if count > MOST_OWN:
        what = f"{count} configurations need separate clusters, but the limit is {MOST_OWN}"
        raise DeclarationError(
            what, where="--on", fix="Try fewer, or declare a cluster that holds more of them first."
        )
    found = []
    if running and here:
        found.append(Part(running, here, own=False))
    elsewhere = [configuration for configuration in configurations if configuration not in here]
    for number, configuration in enumerate(elsewhere, 1):
        declaration = replace(
            _like(running),
            spec=configuration,
            name=cluster_name(study, configuration, number),
            machine_type=_machine_types(running, configuration),
            max_cost=max_cost,
            max_hours=max_hours,
        )
        found.append(Part(specify(declaration), (configuration,), own=True))
    return found


def cluster_name(study: str, configuration: str, number: int) -> str:
    """Return the name of the study's own cluster for a configuration, its `number`-th one."""
    name = f"{study}-{configuration.replace('+', '-')}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{study}-c{number}"


def _machine_types(running: ClusterSpec | None, configuration: str) -> str | None:
    """Return the machine types of the running cluster for the GPUs of a configuration."""
    machines = running.worker_machines if running else {}
    named = [f"{gpu}={machines[gpu]}" for gpu in parse_machines(configuration) if gpu in machines]
    return ",".join(named) or None


def _like(running: ClusterSpec | None) -> Declaration:
    """Return a declaration with the project, network and options of the running cluster."""
    if running is None:
        return Declaration("")
    return Declaration(
        "",
        ps=running.parameter_servers,
        ps_cores=None if running.parameter_server_machine else running.parameter_server_cores,
        ps_machine=running.parameter_server_machine or None,
        disk=f"{running.disk_gb}GB:{running.disk_type.removeprefix('pd-')}"
        if running.disk_gb
        else None,
        provisioning_model=running.provisioning_model,
        preemption_notice=running.notice_seconds if running.provisioning_model == "spot" else None,
        replace=running.replace,
        fallback_seconds=running.fallback_seconds,
        chief=running.chief,
        idle=running.idle_seconds,
        project=running.project,
        bucket=running.bucket or ("none" if running.project else None),
        image=running.image,
        service_account=running.service_account,
        network=running.network,
        subnet=running.subnet,
        external_ip=running.external_ip,
        firewall=running.firewall,
        ssh_from=running.ssh_from,
        controller=running.controller,
    )


@dataclass(frozen=True)
class StudyPreview:
    """The runs of a study, their clusters and their cost: the answer of `--dry-run`.

    Nothing was declared.
    """

    spec: StudySpec
    parts: tuple[Part, ...]
    source: str = ""
    """The code of the cell."""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A dict for each configuration.

        The keys are on (None: any workers), cluster, own, zone, workers, trials, runs, at_once
        (runs that train at the same time) and hourly (US dollars of the whole cluster). If each run
        is trained to its end, they take hours, low, high, dollars, least and most; all six are None
        where that is unknown.
        """
        spec = self.spec
        rows = []
        for part in self.parts:
            for configuration in part.configurations or (None,):
                workers = spec.workers_of(configuration or "")
                if configuration and spec.sampler == "grid":
                    trials = max(1, count_points(spec.space))
                else:
                    trials = spec.trials
                runs = trials * spec.repeat
                at_once = _at_once(part.spec, configuration, workers, spec.per_vm)
                unknown = (configuration and self._chosen) or spec.per_vm > 1
                if unknown:
                    takes = None
                else:
                    takes = self._expectations.of(part.spec, configuration, workers, runs, at_once)
                rows.append(
                    {
                        "on": configuration,
                        "cluster": part.spec.name,
                        "own": part.own,
                        "zone": part.spec.home_zone,
                        "workers": workers,
                        "trials": trials,
                        "runs": runs,
                        "at_once": at_once,
                        "hourly": part.hourly,
                        **(asdict(takes) if takes else dict.fromkeys(_TAKES)),
                    }
                )
        return rows

    @cached_property
    def _expectations(self) -> Expectations:
        return Expectations(self.spec, self.source)

    @property
    def _chosen(self) -> bool:
        """Whether a sampler decides later how many runs each configuration has."""
        return bool(self.spec.on) and self.spec.sampler != "grid"

    def __str__(self) -> str:
        own = [part for part in self.parts if part.own]
        lines = [
            self._heading(),
            *map(self._line, self.rows),
            self._duration_source(),
            *self._stand_ins(),
        ]
        if own:
            lines.append(
                "Its own clusters run one after the other. Each is deleted at its end, and the "
                "study pays for it."
            )
        where = f"in project {self.parts[0].spec.project}"
        if self.parts[0].spec.emulated:
            where = "on the emulator (nothing is billed)"
        lines += [self._ends(own), f"All of it {where}. Nothing was declared."]
        return "\n".join(lines)

    def _heading(self) -> str:
        spec = self.spec
        heading = f"{spec.name} would try {text.count(spec.trials, 'point')}"
        if spec.repeat > 1:
            heading += f", each trained {spec.repeat} times"
        revoked = any(part.spec.provisioning_model != "standard" for part in self.parts)
        if revoked and any(row["hours"] is not None for row in self.rows):
            heading += "; its hours and dollars hold while Spot capacity lasts"
        return f"{heading}:"

    def _line(self, row: Mapping[str, Any]) -> str:
        where = f"part of {row['cluster']}"
        if row["own"]:
            where = f"its own cluster {row['cluster']} in {row['zone']}"
        runs = "as many as are chosen" if self._chosen else text.count(row["runs"], "run")
        machines = row["on"] or text.count(row["workers"], "worker")
        hourly = f"{text.money(row['hourly'])} per hour for the cluster"
        return f"  {machines:16} {where}: {runs}, {row['at_once']} at once, {hourly}{_takes(row)}"

    def _duration_source(self) -> str:
        unknown = any(row["hours"] is None for row in self.rows)
        if self._chosen:
            why = "the sampler chooses how many runs a configuration has"
        elif self.spec.per_vm > 1:
            why = "runs that share a VM slow each other down"
        elif unknown and self._expectations.unread:
            return f"The duration is unknown. {self._expectations.unread}"
        elif unknown:
            return "No run of this model was measured where the duration is missing."
        else:
            pruned = "; pruned runs take less" if self.spec.pruner != "none" else ""
            trained = f"if each run is trained to its end{pruned}"
            return f"Hours are estimated from measured runs of this model, {trained}."
        return f"The duration is unknown: {why}."

    def _stand_ins(self) -> list[str]:
        """Return a sentence for each GPU and region without published lifetimes."""
        if all(row["hours"] is None for row in self.rows):
            return []
        specs = [part.spec for part in self.parts if not part.spec.emulated]
        revoked = [spec for spec in specs if spec.provisioning_model != "standard"]
        places = [
            (group.accelerator, region(spec.home_zone)) for spec in revoked for group in spec.groups
        ]
        return list(dict.fromkeys(filter(None, [stand_in_words(*place) for place in places])))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _ends(self, own: list[Part]) -> str:
        limits = []
        if self.spec.max_cost is not None:
            limits.append(render_money(self.spec.max_cost))
        if self.spec.max_hours is not None:
            limits.append(render_duration(3600 * self.spec.max_hours))
        if limits:
            return f"It ends after {' or '.join(limits)} at the latest and keeps its results."
        if own:
            ends = f"each of its own clusters ends after {render_duration(own[0].spec.max_seconds)}"
            return f"It has no cost limit (--max-cost); {ends} at the latest."
        return "It has no limits (--max-cost, --max-hours): those of its cluster apply."


def _takes(row: Mapping[str, Any]) -> str:
    """Return `; about 2 h (1.5 to 3 h), $1.20 ($0.90 to $1.80)`; empty where it is unknown."""
    if row["hours"] is None:
        return ""
    low, high = (render_duration(_rough(3600 * row[name])) for name in ("low", "high"))
    about = render_duration(_rough(3600 * row["hours"]))
    dollars, least, most = (text.money(row[name]) for name in ("dollars", "least", "most"))
    return f"; about {about} ({low} to {high}), {dollars} ({least} to {most})"


def _rough(seconds: float) -> float:
    """Round to minutes, from ten hours on to ten minutes."""
    if seconds < 36_000:
        return max(60.0, round(seconds / 60) * 60)
    return round(seconds / 600) * 600


def _at_once(cluster: ClusterSpec, machines: str | None, workers: int, per_vm: int) -> int:
    """Return how many such runs train at the same time on an otherwise idle cluster."""
    if not machines:
        return max(1, cluster.worker_count // workers) * per_vm
    declared: Counter[str] = Counter()
    for group in cluster.groups:
        declared[group.accelerator] += group.count
    return min(declared[gpu] // count for gpu, count in parse_machines(machines).items())
