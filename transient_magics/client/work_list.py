"""Lists of work of all kinds, shown as a table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, overload

from .. import markup
from ..journal import ClusterState, costs, now
from . import focus, text

if TYPE_CHECKING:
    import pandas

COLUMNS = ("kind", "name", "cluster", "phase", "since", "cost")


@dataclass(frozen=True, slots=True)
class WorkRow:
    """One piece of work in a list.

    Attributes
    ----------
    kind : str
        `run`, `study`, `job`, `bag`, `dask`, or `stalls`.
    name : str
        Its name on its cluster.
    cluster : str
        The name of its cluster.
    phase : str
        `declared`, `running`, `finished`, `failed` or `stopped`.
    since : float
        The time of its declaration, in seconds since 1970.
    cost : float
        Its cost so far, in US dollars.
    """

    kind: str
    name: str
    cluster: str
    phase: str
    since: float
    cost: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as text, in the order of COLUMNS."""
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since))
        return self.kind, self.name, self.cluster, self.phase, since, text.money(self.cost)


class WorkList(Sequence[Any]):
    """Handles of all work of some clusters, shown as a table.

    Runs of a study and Dask clusters of a bag are left out: they are parts of that study or bag.

    Attributes
    ----------
    rows : list of WorkRow
        The present values of the table.
    data : list of dict
        The rows as values that JSON can express.

    Examples
    --------
    >>> for work in tm.work("k80x4"):
    ...     print(work.name, work.cost().total)
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        self._handles = list(handles)

    @property
    def rows(self) -> list[WorkRow]:
        """The present values of the table, one row per piece of work."""
        clusters = {handle.cluster.identity: handle.cluster for handle in self._handles}
        states = {identity: cluster.state for identity, cluster in clusters.items()}
        by_name = {identity: costs(state, now()) for identity, state in states.items()}
        rows: list[WorkRow] = []
        for handle in self._handles:
            state = states[handle.cluster.identity]
            work = state.of_kind(handle.kind)[handle.name]
            rows.append(
                WorkRow(
                    kind=handle.word,
                    name=handle.name,
                    cluster=handle.cluster.name,
                    phase=text.work_phase(work, state),
                    since=work.declared_at,
                    cost=by_name[handle.cluster.identity][handle.name].total,
                )
            )
        return rows

    @property
    def data(self) -> list[dict[str, Any]]:
        """The rows as values that JSON can express."""
        return [asdict(row) for row in self.rows]

    def frame(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame; `since` is a time in UTC."""
        import pandas

        frame = pandas.DataFrame(self.data, columns=list(COLUMNS))
        frame["since"] = pandas.to_datetime(frame["since"], unit="s", utc=True)
        return frame

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any | list[Any]:
        return self._handles[index]

    def __len__(self) -> int:
        return len(self._handles)

    def __repr__(self) -> str:
        rows = [row.cells for row in self.rows]
        if rows:
            return "\n".join(text.table([name.upper() for name in COLUMNS], rows))
        return "No work."

    def _repr_html_(self) -> str:
        rows = self.rows
        if not rows:
            return markup.block("No work.")
        head = markup.cells(COLUMNS, "th")
        return markup.table(
            [head, *(markup.cells([markup.escape(cell) for cell in row.cells]) for row in rows)]
        )


def listed_names(state: ClusterState) -> list[str]:
    """Return the names of all work without parts of other work, oldest first."""
    own = [work for work in state.works.values() if not focus.is_part(work, state)]
    return [work.name for work in sorted(own, key=lambda work: work.declared_at)]
