"""Plans for bags: hours, dollars and failed jobs before declaration, by policy and VM type."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...catalog import ACCELERATORS, ZONES, region
from ...client.declaring.declaration import Declaration
from ...client.declaring.specification import specify
from ...client.planning.revocations import foreseen
from ...client.text import money, number, table
from ...errors import DeclarationError, PlanError, unknown
from ...protocol.outputs import MOST_JOBS
from ...spec import (
    JOBS,
    PARAMETER_SERVER,
    WorkerGroup,
    if_capacity_lasts,
    parse_duration,
    parse_groups,
    price_kind,
    render_groups,
)
from ...spec.cluster import lines_of

if TYPE_CHECKING:
    from .policy.placement import Policy
    from .policy.simulate import Bag, Courses

POLICIES = ("reuse", "memoryless")
COURSES = 200
HEADER = ("TYPE", "POLICY", "HOURS", "COST", "FAILED JOBS", "ON DEMAND")
_LEVEL = 0.9
_WIDTH = 79
_HOUR = 3600.0


@dataclass(frozen=True)
class BagRow:
    """A bag on VMs of one `kind` by one `policy`.

    Properties are means over the courses; `interval` returns their middle 90 %.
    `on_demand_dollars` is the cost of the bag on the same machines, rented on demand.
    """

    kind: str
    policy: str
    courses: Courses
    on_demand_dollars: float

    @property
    def hours(self) -> float:
        """The mean."""
        return float(self.courses.hours.mean())

    @property
    def dollars(self) -> float:
        """The mean, with what is on demand beside the VMs."""
        return float(self.courses.dollars.mean())

    @property
    def failed(self) -> float:
        """The mean number of attempts lost with their VM."""
        return float(self.courses.failed.mean())

    def interval(self, what: str = "hours", level: float = _LEVEL) -> tuple[float, float]:
        """Return the middle `level` of the `hours`, `dollars` or `failed` jobs.

        Raises PlanError for other names.
        """
        if what not in ("hours", "dollars", "failed") or not 0 < level < 1:
            raise PlanError(
                "An interval needs hours, dollars or failed, and a level between 0 and 1",
                fix='For example: row.interval("dollars", 0.9)',
            )
        from ...planner.ranges import middle

        return middle(getattr(self.courses, what), level)


@dataclass(frozen=True, repr=False)
class BagPlan:
    """The plan for a bag of `jobs`: a row for each VM type and policy; `best` is the cheapest."""

    jobs: int
    rows: tuple[BagRow, ...]
    risk: str
    notes: tuple[str, ...] = ()
    provisioning: str = "standard"
    """The provisioning model of its VMs."""

    @property
    def best(self) -> BagRow:
        """The one that costs least; of equal ones the first."""
        return min(self.rows, key=lambda row: row.dollars)

    @property
    def title(self) -> str:
        """The planned bag and the basis of the plan."""
        lasts = if_capacity_lasts(self.provisioning)
        return f"A bag of {self.jobs} jobs{lasts}, {self.risk}."

    @property
    def spread(self) -> str:
        """The meaning of the interval after a mean."""
        return f"where 90% of {COURSES} simulated bags lie"

    @property
    def lines(self) -> tuple[tuple[BagRow, tuple[str, ...]], ...]:
        """Each row with its cells under HEADER."""
        return tuple(
            (
                row,
                (
                    row.kind,
                    row.policy,
                    _between(row, "hours", number),
                    _between(row, "dollars", money),
                    _between(row, "failed", _few),
                    money(row.on_demand_dollars),
                ),
            )
            for row in self.rows
        )

    def __str__(self) -> str:
        best = self.best
        lines = table(
            ("", *HEADER), [(">" if row is best else "", *cells) for row, cells in self.lines]
        )
        notes = (line for note in self.notes for line in textwrap.wrap(note, _WIDTH))
        return "\n".join(
            [
                *textwrap.wrap(f"{self.title} In brackets {self.spread}.", _WIDTH),
                "",
                *lines,
                "",
                *notes,
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from ...panels.static.markup import COLOURS, FAINT, FONT, escape, row, table

        cheapest = f"<span style='color:{COLOURS['good']}'>●</span>"
        lines = [row(("", *(escape(title.capitalize()) for title in HEADER)), "th")]
        for planned, cells in self.lines:
            mark = cheapest if planned is self.best else ""
            lines.append(row([mark, *map(_in_two_lines, cells)]))
        notes = "".join(f"<div>{escape(note)}</div>" for note in self.notes)
        legend = f"{cheapest} costs least" if len(self.rows) > 1 else ""
        head = f"{escape(self.title)} Below each mean: {escape(self.spread)}."
        return (
            f"<div style='{FONT}'><div>{head}</div>{table(lines)}"
            f"<div style='{FAINT};font-size:12px'>{legend}{notes}</div></div>"
        )


def bag_plan(
    spec: str,
    *,
    jobs: int | None = None,
    job_time: str | float | None = None,
    spare: float = 0.1,
    policy: str | None = None,
    save_time: float | None = None,
    zone: tuple[str, ...] = (),
    provisioning_model: str = "spot",
    revocations: int | str = "published",
    ps_cores: int | None = None,
    seed: int = 0,
) -> BagPlan:
    """Return the plan for a bag on each group of SPEC alone, by both policies or the named one.

    Costs are those of a cluster for jobs only, with its default machine for the scheduler unless
    `ps_cores` is given.

    `job_time` is the duration of one job, as `2h`, `1h:3h` or `cpu=2h,k80=20m` (a number: hours).
    `save_time` is the duration of a checkpoint in seconds (None: jobs cannot be saved). The other
    options are those of `plan`. Raises DeclarationError or PlanError.
    """
    if spec:
        groups = parse_groups(spec, ACCELERATORS, ZONES)
    else:
        groups = []
    if not groups:
        raise DeclarationError(
            "A plan for a bag needs VMs", fix="Name a SPEC: cpux8, or cpux8 + t4x4."
        )
    if jobs is None or not 0 < jobs <= MOST_JOBS:
        raise DeclarationError(
            f"A plan for a bag needs --jobs, 1 to {MOST_JOBS:,}", fix="For example: --jobs 200."
        )
    if isinstance(revocations, int) or str(revocations).isdigit():
        raise DeclarationError(
            "A plan for a bag needs lifetimes, not a number of revocations",
            where="--revocations",
            fix="Choose published, own, none or a CSV file.",
        )
    if policy not in (None, *POLICIES):
        raise unknown("policy", str(policy), POLICIES, where="--policy")
    if not 0 <= spare <= 1:
        raise DeclarationError("--spare must be from 0 to 1", fix="For example: --spare 0.1.")
    times = parse_job_time(job_time)
    _, _, risk = foreseen(revocations)
    rows: list[BagRow] = []
    rests_on: list[str] = []
    for group in groups:
        if group.accelerator not in times and "" not in times:
            raise DeclarationError(
                f"--job-time has no time for the {group.accelerator.upper()}",
                fix=f"Add {group.accelerator}=1h.",
            )
        shortest, longest = times.get(group.accelerator, times.get("", (0.0, 0.0)))
        bag, on_demand_hourly, notes = _bag(
            group=group if group.zone else replace(group, zone=zone[0] if zone else None),
            jobs=jobs,
            times=(shortest, longest),
            spare=spare,
            save=None if save_time is None else save_time / _HOUR,
            model=provisioning_model,
            revocations=revocations,
            ps_cores=ps_cores,
        )
        name = f"{group.accelerator}x{group.count}"
        rests_on += notes
        rows += _rows(name, bag, on_demand_hourly, (policy,) if policy else POLICIES, seed)
    every = dict.fromkeys((*_notes(rows, provisioning_model, save_time), *filter(None, rests_on)))
    return BagPlan(jobs, tuple(rows), risk, tuple(every), provisioning_model)


def parse_job_time(text: str | float | None) -> Mapping[str, tuple[float, float]]:
    """Return the least and the most hours of a job by GPU (empty: any).

    Raises DeclarationError.
    """
    if text is None:
        raise DeclarationError(
            "A plan for a bag needs --job-time", fix="For example: --job-time 2h, or 1h:3h."
        )
    if not isinstance(text, str):
        text = f"{text}h"
    found = {}
    for part in text.split(","):
        gpu, _, span = (piece.strip() for piece in part.rpartition("="))
        low, _, high = span.partition(":")
        hours = [
            parse_duration(bound, "--job-time", unit="h") / _HOUR for bound in (low, high or low)
        ]
        if hours[0] > hours[1]:
            raise DeclarationError(
                f"The range {span} is empty",
                where="--job-time",
                fix="Write SHORTEST:LONGEST, such as 1h:3h.",
            )
        found[gpu.lower()] = (hours[0], hours[1])
    return found


def _bag(
    *,
    group: WorkerGroup,
    jobs: int,
    times: tuple[float, float],
    spare: float,
    save: float | None,
    model: str,
    revocations: int | str,
    ps_cores: int | None,
) -> tuple[Bag, float, list[str]]:
    """Return the bag, the on-demand price of a VM per hour, and the sources of the data."""
    from ...catalog.published import LAST_HOUR, startup
    from ...planner.lifetimes.kaplan_meier import Capped
    from ...planner.lifetimes.sources import stand_in
    from .policy.simulate import Bag

    gpu = group.accelerator
    named = render_groups((group,))
    spec = specify(
        Declaration(named, name="bag", ps_cores=ps_cores, provisioning_model=model, purpose=JOBS)
    )
    home = spec.home_zone
    transient = model != "standard"
    worker = spec.price(gpu, home)
    server = spec.price(price_kind(PARAMETER_SERVER, ""), home)
    if transient:
        lifetimes = foreseen(revocations)[0](gpu, region(home))
    else:
        lifetimes = None
    if lifetimes is not None and model == "preemptible":
        lifetimes = Capped(lifetimes, LAST_HOUR)
    price = lines_of(spec, [gpu]).worker_price(gpu, home)
    boot = sum(startup(gpu, transient, region(home))[1:3]) / _HOUR
    bag = Bag(
        jobs,
        *times,
        group.count,
        worker.hourly,
        lifetimes,
        spare=spare,
        server_hourly=server.hourly,
        boot=boot,
        save=save,
        price_error=price.drift if transient else 0.0,
    )
    if transient:
        notes = [stand_in(lifetimes), price.age_words]
    else:
        notes = []
    return bag, worker.on_demand_hourly, notes


def _rows(
    name: str, bag: Bag, on_demand_hourly: float, policies: Sequence[str], seed: int
) -> list[BagRow]:
    from .policy.simulate import on_demand, simulate

    safe = simulate(
        on_demand(bag, on_demand_hourly), "memoryless", courses=COURSES, seed=seed, uncertain=False
    )
    dollars = float(safe.dollars.mean())
    chosen: list[Policy] = ["reuse" if policy == "reuse" else "memoryless" for policy in policies]
    if bag.model is None:  # where nothing is revoked, both do the same
        chosen = chosen[:1]
    return [
        BagRow(
            name,
            policy if bag.model else "any",
            simulate(bag, policy, courses=COURSES, seed=seed),
            dollars,
        )
        for policy in chosen
    ]


def _notes(rows: Sequence[BagRow], model: str, save_time: float | None) -> list[str]:
    notes = [
        "More jobs start than results are needed, so the bag does not wait for the slowest. A "
        "lost job starts again."
    ]
    if save_time is None:
        notes.append(
            "This plan assumes that jobs do not save. With --save-time 20s, a lost job continues "
            "from its last checkpoint."
        )
    if model == "spot" and any(row.policy == "reuse" for row in rows):
        notes.append(
            "Spot VMs have no time limit, and old ones are the safest: there the policies differ "
            "little."
        )
    return notes


def _between(row: BagRow, what: str, words: Callable[[float], str]) -> str:
    low, high = row.interval(what)
    return f"{words(getattr(row, what))} ({words(low)} to {words(high)})"


def _in_two_lines(cell: str) -> str:
    """Return HTML of `6.91 (6.1 to 8.02)` with the range on a line of its own: a narrow table."""
    from ...panels.static.markup import FAINT, escape

    mean, _, between = cell.partition(" (")
    if not between:
        return escape(mean)
    style = f"{FAINT};font-size:12px;white-space:nowrap"
    return f"{escape(mean)}<br/><span style='{style}'>{escape(between.rstrip(')'))}</span>"


def _few(jobs: float) -> str:
    """Return the text of a mean number of jobs: 0.5, 12."""
    return f"{jobs:.1f}".removesuffix(".0")
