"""Sources of lifetimes: the user's own journals, the published tables, or a file.

The user's own lifetimes are those of VMs in the journals of all clusters of this machine. Every
transient VM that ran is one: revoked, or not revoked when it was deleted or when its journal ends.
Hours count on the cluster's clock, from RUNNING to the preemption notice, because after the notice
time passes at its normal rate. A revocation without a notice happened between the journal's
previous line and its discovery: half-way is assumed. A revocation that the user requested, or of a
VM that the cluster chose, is unrelated to natural lifetimes, so the VM counts as not revoked. For a
VM that was stopped and started again, its life since the last start counts.
"""

from __future__ import annotations

import csv
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ... import places
from ...catalog import published, region
from ...catalog import region as region_of
from ...catalog.published import (
    CPUS_LAUNCHED_TOGETHER,
    LAST_HOUR,
    LAUNCHED_TOGETHER,
    Lifetimes,
    lifetimes,
    stand_in_tables,
    stand_in_words,
    tables,
)
from ...clock import SECONDS_PER_HOUR
from ...errors import DeclarationError, JournalError, PlanError, reason_of, unknown
from ...journal import Event, events, read, replay
from ...protocol import layout
from .kaplan_meier import BLOCKS, Capped, Continued, KaplanMeier, Resampled, blocks, continued
from .observations import CAP_HOURS, CAPPED_BY, Observations
from .parametric import LifetimeModel

NAMES = ("own", "emulated", "published")
MODELS = ("spot", "preemptible")
_SAME_LAUNCH_SECONDS = 3600.0
_TRUE = ("1", "yes", "true", "revoked", "preempted")
_FALSE = ("0", "no", "false")

_HOURS = np.arange(LAST_HOUR + 1.0)


@dataclass(frozen=True)
class Question:
    """The VMs in question.

    Attributes
    ----------
    gpu
        The catalog's name; None: any.
    region
        None: any.
    provisioning_model
        `spot` or `preemptible`.
    """

    gpu: str | None = None
    region: str | None = None
    provisioning_model: str = "spot"

    def __post_init__(self) -> None:
        if self.provisioning_model not in MODELS:
            what = f"VMs with the model '{self.provisioning_model}' are not revoked"
            raise DeclarationError(
                what, where="--provisioning-model", fix=f"Choose from {', '.join(MODELS)}."
            )

    @property
    def capped(self) -> bool:
        """Whether the VMs end at 24 hours."""
        return self.provisioning_model == "preemptible"

    def counted(self, observed: Observations) -> Observations:
        """Return the observations, in which an end at the 24-hour limit is not a revocation."""
        if self.capped:
            return observed.without_cap()
        return observed

    def words(self, every: str = "of every kind") -> str:
        """Return the VMs in words: `K80 in us-west1`; `every` stands for any GPU."""
        gpu = self.gpu.upper() if self.gpu else every
        if self.region:
            return f"{gpu} in {self.region}"
        return gpu


@dataclass(frozen=True)
class Source:
    """Observations and their origin.

    Attributes
    ----------
    title, dated
        The origin, and its dates.
    observed
        All observations.
    caveats
        Limitations, in sentences.
    earlier, latest
        Earlier VMs and the `latest` ones to compare with them; None without any.
    fix
        What to do if there are too few.
    kind
        Observations of the same GPU in all regions.
    """

    title: str
    dated: str
    observed: Observations
    caveats: tuple[str, ...] = ()
    earlier: Observations | None = None
    latest: Observations | None = None
    fix: str = ""
    kind: Observations | None = None


def found(source: str, question: Question) -> Source:
    """Return the observations of a source: one of NAMES, or the path of a CSV file.

    Raises DeclarationError for an unreadable file, PlanError without such observations.
    """
    if source in ("own", "emulated"):
        return _own(question, emulated=source == "emulated")
    if source == "published":
        return _published(question)
    return _file(Path(source).expanduser(), question)


def _own(question: Question, *, emulated: bool) -> Source:
    every = own_lives()
    chosen = [life for life in every if life.emulated == emulated and _fits(life, question)]
    others = sum(life.emulated != emulated and _fits(life, question) for life in every)
    where = "on the emulator" if emulated else "on Compute Engine"
    other = ""
    if others:
        elsewhere = "On Compute Engine" if emulated else "On the emulator"
        other = f" {elsewhere} there were {others} more."
    if not chosen:
        what = (
            f"No {question.provisioning_model} VM of your own ({question.words()}) has run {where}"
        )
        raise PlanError(what + other, fix="Use the published ones: --source published.")
    caveats = []
    if emulated:
        caveats.append(
            "Emulated: they follow the configured weather, and are never mixed with Compute "
            "Engine's."
        )
        rate = max(life.rate for life in chosen)
        if rate > 1:
            caveats.append(
                f"Their clock ran up to {rate:,.0f} times as fast: a delay of a second counts "
                f"{rate / 3600:.2g} h."
            )
    begin, end = blocks(len(chosen))
    dates = [
        time.strftime("%Y-%m-%d", time.localtime(life.started)) for life in (chosen[0], chosen[-1])
    ]
    return Source(
        f"Your own {question.provisioning_model} VMs {where}, {question.words()}",
        " to ".join(dict.fromkeys(dates)),
        _observed(chosen),
        tuple(caveats),
        _observed(chosen[:begin]),
        _observed(chosen[begin:end]),
        f"Use the published ones: --source published.{other}",
        _observed(
            [
                life
                for life in every
                if life.emulated == emulated and _fits(life, replace(question, region=None))
            ]
        ),
    )


def _fits(life: Life, question: Question) -> bool:
    return life.of(question.gpu, question.region, question.provisioning_model)


def _observed(lives: Sequence[Life]) -> Observations:
    """Return lifetimes; VMs of one GPU and zone that began within an hour form a cohort."""
    cohorts = [0]
    began: dict[tuple[str, str], tuple[float, int]] = {}
    for life in lives:
        since, cohort = began.get((life.gpu, life.zone), (-math.inf, 0))
        if life.started - since > _SAME_LAUNCH_SECONDS:
            since = life.started
            cohort = len(cohorts)
            began[life.gpu, life.zone] = since, cohort
            cohorts.append(0)
        cohorts[cohort] += 1
    return Observations.of(
        [life.hours for life in lives], [life.revoked for life in lives]
    ).in_cohorts(cohorts)


def _published(question: Question) -> Source:
    tables = published.tables()
    of_gpu = [
        table
        for table in tables
        if table.gpu == question.gpu or (question.gpu is None and table.gpu != "cpu")
    ]
    chosen = [table for table in of_gpu if question.region in (None, table.region)]
    if not chosen:
        available = sorted({table.gpu for table in tables})
        fix = f"Published are: {', '.join(available)}."
        if of_gpu:
            available = sorted({table.region for table in of_gpu})
            fix = f"Published for the {question.gpu} are: {', '.join(available)}."
        raise PlanError(f"Lifetimes of {question.words()} were never published", fix=fix)
    caveats = [
        "Preemptible VMs of 2018 and 2019, known by the hour: an example, not a forecast for "
        "today's.",
        "Many ended in the same minute: together they count less than independent ones, which "
        "widens the band.",
    ]
    label = "{0.region}" if question.gpu else "{0.gpu} in {0.region}"
    shares = sorted((table.revoked[-1] / table.launched, label.format(table)) for table in chosen)
    if len(shares) > 1:
        least, here = shares[0]
        most, there = shares[-1]
        caveats.append(
            f"Places differ: from {least:.0%} revoked within 24 h ({here}) to {most:.0%} ({there})."
        )
    own = [life for life in own_lives() if not life.emulated and _fits(life, question)]
    seen = Observations.together([counts(table) for table in chosen])
    return Source(
        f"Published lifetimes of preemptible VMs, {question.words('all GPUs')}",
        "2018 and 2019; CM-DARE, ICDCS 2020, and ICAC'19",
        seen,
        tuple(caveats),
        seen,
        _observed(own[slice(*blocks(len(own)))]) if own else None,
        "Without --region there are more." if question.region else "",
        Observations.together([counts(table) for table in of_gpu]),
    )


def _file(path: Path, question: Question) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if not path.suffix and not path.exists():
            fix = f"Name a CSV file, or one of {', '.join(NAMES)}."
            raise unknown(
                "source of lifetimes", str(path), NAMES, where="--source", otherwise=fix
            ) from None
        reason = reason_of(error)
        raise DeclarationError(f"{path} cannot be read: {reason}", where="--source") from None
    rows = _rows(path.name, text, question)
    if not rows:
        raise PlanError(f"{path.name} has no rows of {question.words()}", where="--source")
    observed = _lived(rows)
    kind = _lived(_rows(path.name, text, replace(question, region=None)))
    caveats = []
    if not question.capped and CAP_HOURS <= max(hours for hours, _ in rows) <= CAPPED_BY:
        observed = observed.without_cap()
        kind = kind.without_cap()
        caveats.append(
            "No VM of the file lived beyond 24 h, as preemptible ones: an end at that age does "
            "not count."
        )
    fix = ""
    which = ""
    if question.gpu or question.region:
        fix = "Without --gpu and --region there may be more."
        which = f", {question.words()}"
    return Source(f"{path.name}{which}", "", observed, tuple(caveats), fix=fix, kind=kind)


def _lived(rows: Sequence[tuple[float, bool]]) -> Observations:
    return Observations.of([hours for hours, _ in rows], [revoked for _, revoked in rows])


def _rows(name: str, text: str, question: Question) -> list[tuple[float, bool]]:
    """Return lifetimes of the VMs in question (hours), and whether a revocation ended them."""
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.startswith("#")
    ]
    table = csv.DictReader((line for _, line in lines), skipinitialspace=True)
    columns = [column.strip().lower() for column in table.fieldnames or ()]
    table.fieldnames = columns
    if "lifetime_hours" not in columns:
        fix = "Add it; revoked (1 or 0), gpu and zone are optional."
        raise DeclarationError(f"{name} has no column lifetime_hours", where="--source", fix=fix)
    filters: dict[str, Callable[[str], bool]] = {}
    if question.gpu:
        filters["gpu"] = lambda gpu: gpu.lower() == question.gpu
    if question.region:
        filters["zone"] = lambda zone: region_of(zone.lower()) == question.region
    missing = [column for column in filters if column not in columns]
    if missing:
        what = f"{name} has no column {missing[0]}, by which the plan selects rows"
        option = "--gpu" if missing[0] == "gpu" else "--region"
        raise DeclarationError(what, where="--source", fix=f"Add it, or leave out {option}.")
    rows = []
    for row in table:
        number, _ = lines[table.line_num - 1]  # its line in the file, with comments and blank lines
        if all(test((row[column] or "").strip()) for column, test in filters.items()):
            rows.append(
                _row(
                    name,
                    number,
                    {key: (value or "").strip() for key, value in row.items() if key in columns},
                )
            )
    return rows


def _row(name: str, number: int, row: dict[str, str]) -> tuple[float, bool]:
    try:
        hours = float(row["lifetime_hours"])
    except ValueError:
        hours = math.nan
    revoked = row.get("revoked", "1").lower()
    if not 0 <= hours < math.inf:
        what = f"lifetime_hours must be a number of at least 0, not '{row['lifetime_hours']}'"
        fix = ""
    elif revoked not in (*_TRUE, *_FALSE):
        what = f"revoked must be 1 or 0, not '{revoked}'"
        fix = "Use 0 for a VM that lived at least this long."
    else:
        return hours, revoked in _TRUE
    raise DeclarationError(f"{name}, line {number}: {what}", where="--source", fix=fix)


_SAME_ROUND_SECONDS = 5.0


@dataclass(frozen=True)
class Life:
    """The life of a VM: its start in seconds since 1970, and its `hours` on the cluster's clock.

    The clock runs at `rate`.
    """

    gpu: str
    zone: str
    provisioning_model: str
    emulated: bool
    started: float
    hours: float
    revoked: bool
    rate: float = 1.0

    def of(self, gpu: str | None, place: str | None, provisioning_model: str) -> bool:
        """Return whether it had this GPU, in this region, with this provisioning model."""
        return (
            (gpu is None or self.gpu == gpu)
            and (place is None or region(self.zone) == place)
            and self.provisioning_model == provisioning_model
        )


def own_lives() -> list[Life]:
    """Return the lives of VMs of all clusters of this machine, deleted ones too, by start."""
    found: list[Life] = []
    for folder in (places.clusters(), places.past()):
        for journal in folder.glob(f"[a-z]*/{layout.JOURNAL}"):
            try:
                found += lives(read(journal))
            # Unreadable journals are skipped.
            except JournalError:
                continue
    return sorted(found, key=lambda life: life.started)


def lives(history: Iterable[Event]) -> Iterator[Life]:
    """Yield the lives of the transient VMs of one journal."""
    recorded = list(history)
    state = replay(recorded)
    if state.spec is None or not recorded:
        return
    moments = sorted(event.at for event in recorded)
    noticed: dict[str, float] = {}
    ended: dict[str, tuple[float, bool]] = {}
    asked: set[str] = set()
    for event in recorded:
        match event:
            case events.VmPreemptionAsked():
                asked.add(event.vm)
            case events.ReclaimAnswered():
                asked.update(event.vms)
            case events.VmPreemptionNotice():
                noticed.setdefault(event.vm, (event.noticed or event.time) / 1e9)
            case events.VmRevoked():
                before = bisect_left(moments, event.at - _SAME_ROUND_SECONDS) - 1
                found_late = (moments[max(before, 0)] + event.at) / 2
                ended.setdefault(
                    event.vm, (noticed.get(event.vm, found_late), event.vm not in asked)
                )
            case events.VmDeleted():
                at = noticed.get(event.vm, event.at)
                ended.setdefault(event.vm, (at, event.vm in noticed and event.vm not in asked))
    for name, vm in state.vms.items():
        if vm.running_at and vm.provisioning_model != "standard":
            end, revoked = ended.get(
                name, (noticed.get(name, moments[-1]), name in noticed and name not in asked)
            )
            # Compute Engine's own times, if it reported them.
            begin = vm.ran.since
            end = vm.stopping_at or end
            last = vm.stretches[-1]
            # The controller stopped it.
            if not last.runs:
                end = last.since
                revoked = False
            hours = state.clock.between(begin, max(end, begin)) / SECONDS_PER_HOUR
            yield Life(
                vm.accelerator,
                vm.zone,
                vm.provisioning_model,
                state.spec.emulated,
                vm.running_at,
                hours,
                revoked,
                state.clock.rate,
            )


# Published lifetimes, for plans without better data.
#
# They are of preemptible VMs in 2018 and 2019, which ended after 24 hours in any case. Spot VMs
# have no such wall: beyond the last observed hour, the mean rate of hours 12 to 24 continues,
# combined with that of the GPU's other regions.


@dataclass(frozen=True, eq=False)
class Pooled:
    """Lifetimes without a published table: those of all VMs of the tables that stand in.

    The tables differ by more than chance, so any of them may apply. Simulated courses are cut into
    blocks, each with the lifetimes of one table. If a single table stands in, the hazard differs
    from it as much as the hazards of all tables with a GPU differ from each other.
    """

    words: str
    """The sentences on what stands in."""
    tables: tuple[Continued, ...]
    together: Continued
    clause: str = ""
    """Their short form."""

    @classmethod
    def of(cls, used: Sequence[Lifetimes], words: str = "", clause: str = "") -> Self:
        """Return the pooled VMs of the tables `used`."""
        together = continued(KaplanMeier(_every(used)), LAST_HOUR)
        return cls(words, tuple(_continued(table, used) for table in used), together, clause)

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.together.name

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        return self.together.survival(hours)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        return self.together.quantile(share, age)

    def resampled(self, seed: int) -> Resampled:
        """Return the model with the lifetimes of one table in each block.

        Tables are not bootstrapped: the differences between them cover the uncertainty of few VMs.
        """
        random = np.random.default_rng(seed)
        chosen = random.permutation(np.arange(BLOCKS) % len(self.tables))
        shares = np.stack([table.survival(_HOURS) for table in self.tables], axis=1)[:, chosen]
        rates = np.array([table.rate for table in self.tables])[chosen]
        if len(self.tables) == 1:
            hazard = np.exp(_between_tables() * random.normal(size=BLOCKS))
            shares = shares**hazard
            rates = rates * hazard
        return Resampled(self.name, _HOURS, shares, rates)


@cache
def published_lifetimes(gpu: str, region: str) -> LifetimeModel:
    """Return the lifetimes of VMs with a GPU in a region, `Pooled` if they were not published."""
    used = stand_in_tables(gpu, region)
    if used:
        return Pooled.of(used, stand_in_words(gpu, region), stand_in_words(gpu, region, short=True))
    return _continued(lifetimes(gpu, region), [table for table in tables() if table.gpu == gpu])


@cache
def emulated_lifetimes(gpu: str, region: str) -> LifetimeModel:
    """Return the lifetimes of VMs on an emulator whose weather has published revocations.

    They are those of one table, of another GPU or region if none was published
    (`catalog.published.lifetimes`).
    """
    used = lifetimes(gpu, region)
    return _continued(used, [table for table in tables() if table.gpu == used.gpu])


def stand_in(model: LifetimeModel | None, *, short: bool = False) -> str:
    """Return sentences on what stands in for unpublished lifetimes; empty if nothing does.

    With `short`, return their short form.
    """
    inner = model.model if isinstance(model, Capped) else model
    if not isinstance(inner, Pooled):
        return ""
    return inner.clause if short else inner.words


def _continued(table: Lifetimes, kind: Sequence[Lifetimes]) -> Continued:
    """Return the lifetimes of a table, continued with those of its `kind` beyond observed ages."""
    return continued(KaplanMeier(counts(table)), LAST_HOUR, _every(kind))


def _every(used: Sequence[Lifetimes]) -> Observations:
    return Observations.together([counts(table) for table in used])


@cache
def _between_tables() -> float:
    """Return the standard deviation of log cumulative hazards at 24 hours among GPU tables."""
    lost = np.array(
        [table.revoked[-1] / table.launched for table in tables() if table.gpu != "cpu"]
    )
    return float(np.log(-np.log(1 - lost)).std(ddof=1))


def counts(table: Lifetimes) -> Observations:
    """Return the hourly counts of a table, whose VMs were launched several at a time."""
    if table.gpu == "cpu":
        together = CPUS_LAUNCHED_TOGETHER
    else:
        together = LAUNCHED_TOGETHER
    return Observations.hourly(table.launched, table.revoked).in_cohorts([together])
