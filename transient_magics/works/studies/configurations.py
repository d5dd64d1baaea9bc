"""What `--on` says: the machines on which the runs of a study train, and on which cluster those
are.
"""

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
from ...protocol.machines import parse_machines, render_machines
from ...protocol.names import LONGEST_NAME
from ...protocol.space import count_points
from ...spec import ClusterSpec, parse_groups, render_duration, render_money
from .plans import Expectations, Expected
from .spec import StudySpec

_TAKES = [field.name for field in fields(Expected)]
MOST = 100
MOST_OWN = 16
"""Configurations, and those of them that have a cluster of their own: each has a controller, which
waits here.
"""


def parse_configurations(on: str | Sequence[str]) -> tuple[str, ...]:
    """Read `k80x1,k80x4,k80x2+p100`, or a sequence of these. Raises DeclarationError."""
    if isinstance(on, str):
        texts = on.split(",")
    else:
        texts = [str(each) for each in on]
    if not any(each.strip() for each in texts):
        raise DeclarationError(
            "There is no configuration", where="--on", fix="For example: --on k80x1,k80x4"
        )
    if not all(each.strip() for each in texts):
        raise DeclarationError(
            "A configuration between two commas is empty",
            where="--on",
            fix="For example: --on k80x1,k80x4",
        )
    if len(texts) > MOST:
        raise DeclarationError(f"{len(texts)} configurations are more than {MOST}", where="--on")
    found: list[str] = []
    for each in texts:
        machines = _machines(each)
        if twice := next((known for known in found if parse_machines(known) == machines), None):
            fix = "--repeat 5 trains each point five times."
            raise DeclarationError(f"{twice} is there twice", where="--on", fix=fix)
        found.append(render_machines(machines))
    return tuple(found)


def _machines(said: str) -> Counter[str]:
    try:
        groups = parse_groups(said, ACCELERATORS)
    except DeclarationError as error:
        raise DeclarationError(error.what, where="--on", fix=error.fix) from None
    found: Counter[str] = Counter()
    for group in groups:
        if group.zone:
            what = f"'{said.strip()}' names a zone, and a configuration takes its workers wherever they are"
            raise DeclarationError(
                what, where="--on", fix=f"Write {group.accelerator}x{group.count}."
            )
        found[group.accelerator] += group.count
    return found


@dataclass(frozen=True)
class Part:
    """What of a study one cluster trains: `configurations`, on a running cluster or on one that it
    is to have for itself. `spec` is the cluster's declaration.
    """

    spec: ClusterSpec
    configurations: tuple[str, ...]
    own: bool

    @property
    def hourly(self) -> float:
        """What the cluster costs per hour, in US dollars: a running one costs it anyway."""
        return self.spec.hourly


def parts(
    configurations: Sequence[str],
    running: ClusterSpec | None,
    study: str,
    *,
    max_cost: float | None,
    max_hours: float,
) -> list[Part]:
    """On which cluster each configuration is tried: those that the running one holds are parts of
    it, and each other one has a cluster of its own, declared like the running one, within the
    study's limits.

    In the order in which they have their turns. Raises DeclarationError where such a cluster cannot
    be.
    """
    here = tuple(
        configuration
        for configuration in configurations
        if running and running.holds(configuration)
    )
    if (many := len(configurations) - len(here)) > MOST_OWN:
        what = f"{many} configurations would need clusters of their own, and {MOST_OWN} at most are taken"
        raise DeclarationError(
            what, where="--on", fix="Try fewer, or declare a cluster that holds more of them first."
        )
    if running and here:
        found = [Part(running, here, own=False)]
    else:
        found = []
    for number, each in enumerate((each for each in configurations if each not in here), 1):
        name = cluster_name(study, each, number)
        machines = _machine_types(running, each)
        declaration = replace(
            _like(running),
            spec=each,
            name=name,
            machine_type=machines,
            max_cost=max_cost,
            max_hours=max_hours,
        )
        found.append(Part(specify(declaration), (each,), own=True))
    return found


def cluster_name(study: str, configuration: str, number: int) -> str:
    """What the study's own cluster for this configuration is called, its `number`-th one."""
    name = f"{study}-{configuration.replace('+', '-')}"
    if len(name) <= LONGEST_NAME:
        return name
    return f"{study}-c{number}"


def _machine_types(running: ClusterSpec | None, configuration: str) -> str | None:
    """The machines that the running cluster has for those GPUs of a configuration which it has,
    too.
    """
    known = running.worker_machines if running else {}
    return (
        ",".join(f"{gpu}={known[gpu]}" for gpu in parse_machines(configuration) if gpu in known)
        or None
    )


def _like(running: ClusterSpec | None) -> Declaration:
    """A declaration of the same project, network and ways, for other workers."""
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
    """What a study would train where, and for how much: the answer of `--dry-run`. Nothing was
    declared.
    """

    spec: StudySpec
    parts: tuple[Part, ...]
    source: str = ""
    """The cell."""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per configuration: on (None: any workers), cluster, own, zone, workers, trials,
        runs, at_once (how many of these runs train at the same time), hourly (US dollars of the
        whole cluster); and what its runs take if each is trained to its end: hours, low, high,
        dollars, least, most (None where no run of the model tells it, or runs are chosen as they
        come).
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
        """Whether nobody knows yet how many runs a configuration has."""
        return bool(self.spec.on) and self.spec.sampler != "grid"

    def __str__(self) -> str:
        spec = self.spec
        if spec.repeat > 1:
            runs = f", each trained {spec.repeat} times"
        else:
            runs = ""
        revoked = any(part.spec.provisioning_model != "standard" for part in self.parts)
        takes = revoked and any(row["hours"] is not None for row in self.rows)
        if takes:
            lasts = "; its hours and dollars are for as long as Spot capacity lasts"
        else:
            lasts = ""
        lines = [f"{spec.name} would try {text.count(spec.trials, 'point')}{runs}{lasts}:"]
        for row in self.rows:
            if row["own"]:
                where = f"its own cluster {row['cluster']} in {row['zone']}"
            else:
                where = f"part of {row['cluster']}"
            if self._chosen:
                many = "as many as are chosen"
            else:
                many = text.count(row["runs"], "run")
            lines.append(
                f"  {row['on'] or text.count(row['workers'], 'worker'):16} {where}: {many}, {row['at_once']} at once, "
                f"{text.money(row['hourly'])} per hour for the cluster{_takes(row)}"
            )
        lines += [self._source(), *self._stand_ins()]
        own = [part for part in self.parts if part.own]
        if own:
            lines.append(
                "Its own clusters have their turns one after the other, each is deleted at its end, and what they cost "
                "is the study's."
            )
        lines.append(self._ends(own))
        if self.parts[0].spec.emulated:
            where = "on the emulator (nothing is billed)"
        else:
            where = f"in project {self.parts[0].spec.project}"
        return "\n".join([*lines, f"All of it {where}. Nothing was declared."])

    def _source(self) -> str:
        if self._chosen:
            return "How long it takes is not known: how many runs a configuration has is chosen as they come."
        if self.spec.per_vm > 1:
            return "How long it takes is not known: runs that share a VM slow each other down."
        if any(row["hours"] is None for row in self.rows) and self._expectations.unread:
            return f"How long it takes is not known. {self._expectations.unread}"
        if any(row["hours"] is None for row in self.rows):
            return "How long it takes is not known where it is not said: no run of this model here tells it."
        if self.spec.pruner != "none":
            pruned = "; pruned runs take less"
        else:
            pruned = ""
        return f"Hours are by what this model's runs were measured at, if each run is trained to its end{pruned}."

    def _stand_ins(self) -> list[str]:
        """A sentence for each GPU and region without published lifetimes, where hours rest on them."""
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
        if self.spec.max_cost is not None:
            limits = [render_money(self.spec.max_cost)]
        else:
            limits = []
        limits += (
            [render_duration(3600 * self.spec.max_hours)] if self.spec.max_hours is not None else []
        )
        if limits:
            return f"It ends after {' or '.join(limits)} at the latest, with what is done kept."
        if own:
            ends = render_duration(own[0].spec.max_seconds)
            return f"It has no limit of money (--max-cost); each of its own clusters ends after {ends} at the latest."
        return "It has no limits of its own (--max-cost, --max-hours): those of its cluster hold."


def _takes(row: Mapping[str, Any]) -> str:
    """`; about 2 h (1.5 to 3 h), $1.20 ($0.90 to $1.80)`, where it is known."""
    if row["hours"] is None:
        return ""
    low, high = (render_duration(_rough(3600 * row[each])) for each in ("low", "high"))
    about = render_duration(_rough(3600 * row["hours"]))
    dollars, least, most = (text.money(row[each]) for each in ("dollars", "least", "most"))
    return f"; about {about} ({low} to {high}), {dollars} ({least} to {most})"


def _rough(seconds: float) -> float:
    """In whole minutes, or from ten hours on in tens of minutes."""
    if seconds < 36_000:
        return max(60.0, round(seconds / 60) * 60)
    return round(seconds / 600) * 600


def _at_once(cluster: ClusterSpec, machines: str | None, workers: int, per_vm: int) -> int:
    """How many runs of such a configuration train at the same time, where nothing else does."""
    if not machines:
        return max(1, cluster.worker_count // workers) * per_vm
    declared: Counter[str] = Counter()
    for group in cluster.groups:
        declared[group.accelerator] += group.count
    return min(declared[gpu] // count for gpu, count in parse_machines(machines).items())
