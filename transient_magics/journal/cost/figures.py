"""The types of costs: Projection, Cost and Bill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ... import markup
from ...spec import render_money


@dataclass(frozen=True, slots=True)
class Projection:
    """The cost of work at its end, in US dollars: the mean, and the ends of the 90 % interval. `provided`: the
    condition of all three, as a clause; empty where there is none."""

    mean: float
    low: float
    high: float
    provided: str = ""

    def __str__(self) -> str:
        low, high = render_money(self.low), render_money(self.high)
        between = f" ({low} to {high})" if low != high else ""
        return f"{render_money(self.mean)} at its end{between}{self.provided}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Cost:
    """The cost of a run, study, job, bag, Dask cluster or cluster.

    Attributes
    ----------
    subject : str
        Its name.
    total : float
        US dollars until now; its final cost where it is `over`.
    lines : Mapping[str, float]
        What `total` consists of, in US dollars: they sum to it.
    over : bool
        Whether it has ended.
    projected : Projection or None
        Its cost at its end; None where it is over, or no forecast can be made.
    note : str
        Why no forecast can be made, where the user has to do something about it; else empty.
    """

    subject: str
    total: float
    lines: Mapping[str, float] = field(default_factory=dict[str, float])
    over: bool = False
    projected: Projection | None = None
    note: str = ""

    @property
    def words(self) -> str:
        """`$0.05 so far, $0.42 at its end ($0.38 to $0.46)`, or `$1.07` once it is over."""
        total = render_money(self.total)
        if self.over:
            return total
        more = self.projected or self.note
        return f"{total} so far, {more}" if more else f"{total} so far"

    def __repr__(self) -> str:
        return f"{self.subject}: {self.words}"

    @property
    def _figures(self) -> dict[str, str]:
        """What is shown below its words: each line and its cost."""
        return {name: render_money(dollars) for name, dollars in self.lines.items()}

    def _repr_html_(self) -> str:
        return markup.facts(repr(self), self._figures, numbers=[1])


@dataclass(frozen=True, kw_only=True, repr=False)
class Bill(Cost):
    """The cost of a cluster: until now, per hour at this moment, and at on-demand prices.

    `by_vm` in US dollars. `work`: the cost of each piece of work, by its name. `transfer` and `transfer_hourly`: what
    of these is data transfer between zones; hours are those of the emulated clock, but for transfer.
    """

    hourly: float = 0.0
    on_demand: float = 0.0
    by_vm: Mapping[str, float] = field(default_factory=dict[str, float])
    work: Mapping[str, Cost] = field(default_factory=dict[str, Cost])
    source: str = ""
    transfer: float = 0.0
    transfer_hourly: float = 0.0

    @property
    def saved(self) -> float:
        """The share of the on-demand cost that was saved, 0 to 1."""
        return 1 - self.total / self.on_demand if self.on_demand > 0 else 0.0

    @property
    def _figures(self) -> dict[str, str]:
        figures = super()._figures
        if not self.over:
            figures["per hour now"] = render_money(self.hourly)
        if self.on_demand > 0:
            figures["at on-demand prices"] = render_money(self.on_demand)
        return figures

    def __str__(self) -> str:
        return markup.lines(repr(self), self._figures)
