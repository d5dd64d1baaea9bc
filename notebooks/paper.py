"""What icac19.ipynb counts with: the published figures, the scale, and how hours and dollars follow from a run's steps.

Published: Li, Walls, Xu, Guo, "Speeding up Deep Learning with Transient Servers", ICAC 2019 (arXiv 1903.00045), and its
data set (github.com/cake-lab/transient-deep-learning, Apache-2.0). Hours are those of 64,000 steps of ResNet-32 on
CIFAR-10, from the first step to the last; accuracy in percent.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

STEPS = 64_000
"""Of each of their runs, over all workers; the learning rate falls at 32,000 and 48,000."""
ALONE = 3.911
"""Hours of one K80 without a parameter server: the mean of ten runs, and what the scale is chosen from."""
MEGABYTES = 7.43
"""What a worker pulls, and pushes, in a step: 1,857,722 parameters in fp32."""
SERVER_STEPS = 47.43
"""Steps per second that one parameter server carried at most, of the same network on seven P100: CM-DARE's data set
(ICDCS 2020). What its machine's network may carry is several times as much: what held it was its handling of bytes, and
the emulator has a link for it."""


@dataclass(frozen=True)
class Row:
    """A published configuration: its mean hours, dollars and accuracy (None: not published) over `n` runs."""

    n: int
    hours: float
    dollars: float | None
    accuracy: float | None


CLUSTERS = {
    "k80": Row(10, 3.911, None, 93.07),  # on demand; a transient one was not measured
    "k80x2": Row(26, 1.962, 1.28, 91.90),
    "k80x4": Row(21, 0.976, 1.14, 91.06),
    "k80x8": Row(27, 0.507, 1.11, 88.76),
    "p100": Row(33, 1.505, 0.829, 93.11),
    "v100": Row(24, 1.232, 1.061, 92.98),
    "p100x4": Row(10, 0.470, 1.104, 91.35),
    "v100x4": Row(10, 0.433, 1.554, 91.04),
}
"""Transient workers and no revocation; several have one parameter server, on demand."""

ON_DEMAND = {1: (3.911, 2.828), 2: (1.992, 3.166), 4: (0.995, 3.019), 8: (0.508, 3.013)}
"""K80 on demand: workers, their hours and dollars (ten runs each)."""

SERVERS = {
    ("v100", 2, 1): (2423, 1.255), ("v100", 4, 1): (1623, 1.617), ("v100", 8, 1): (1424, 2.780),
    ("v100", 2, 2): (1960, 1.093), ("v100", 4, 2): (1070, 1.109), ("v100", 8, 2): (812, 1.618),
}  # fmt: skip
"""GPU, workers, parameter servers: seconds and dollars (five runs each)."""

LOST = {
    "k80x2": (((4602,), 9651), ((4999,), 9231), ((1421,), 12979), ((2815,), 11344)),
    "k80x4": (((1454,), 4323), ((2981,), 3841), ((635,), 4565), ((1615,), 4264)),
    "k80x8": (((501,), 2016), ((2218,), 1840)),
}
"""Runs that lost one worker: seconds from its creation to its revocation, and seconds of the 64,000 steps."""
LOST_TWO = {"k80x4": (((786, 857), 6505), ((3397, 3432), 3963))}
"""Likewise two."""
BEFORE_TRAINING = 150.0
"""Seconds from a VM's creation to its first step: two to four minutes in their data."""

GROWING = {"static": (3.85, 93.01), "naive": (2.28, 91.84), "adaptive": (2.28, 92.83)}
"""One K80; one to four of them, another one every 16,000 steps, with the learning rate divided by the root of the
number of slots (naive) or of those that train (adaptive): hours without the gaps of their restarts, and accuracy."""

PRICES = {"k80": (0.723, 0.256), "p100": (1.43, 0.551), "v100": (2.144, 0.861)}
"""Dollars per hour of a worker's whole VM: on demand, transient."""
SERVER_PRICE = 0.143
"""Of a parameter server with 4 vCPUs, on demand."""


@dataclass(frozen=True)
class Scale:
    """How the study is made small: `steps` for the 64,000, each of `pace` seconds on a K80. The rest follows."""

    steps: int
    pace: float

    @property
    def rate(self) -> float:
        """Seconds of the paper in one of ours."""
        return ALONE * 3600 / (self.steps * self.pace)

    @property
    def hours_per_minute(self) -> float:
        """How fast the emulator's time passes."""
        return self.rate / 60

    @property
    def gpu_speed(self) -> str:
        """How many times as fast as a K80 the others were, each alone."""
        return ",".join(f"{gpu}={ALONE / CLUSTERS[gpu].hours:.3f}" for gpu in PRICES)

    def link(self, parameters: int) -> float:
        """Bits per second with which a step's bytes take the part of its time that theirs took, at this many
        parameters of fp32 (SERVER_STEPS says whose)."""
        per_step = ALONE * 3600 / STEPS / self.pace
        return SERVER_STEPS * 8 * 4 * parameters * per_step

    def hours(self, seconds: float) -> float:
        """Hours of the paper in so many seconds of ours."""
        return seconds * self.rate / 3600

    def seconds(self, theirs: float) -> float:
        """Seconds of ours in so many of the paper's."""
        return theirs / self.rate


@dataclass(frozen=True)
class Made:
    """What one run came to, in its own seconds.

    `training`: its mean worker's, of those that were there at the end, from its own first step to the run's last one;
    `joining`: what the run as a whole took longer, because workers came one after the other. `of_workers`: how long
    each trained, by its name.
    """

    training: float
    joining: float
    of_workers: Mapping[str, float]


def made(rows: Iterable[Mapping[str, float | str]], steps: int, lost: Collection[str] = ()) -> Made:
    """From the lines of a run's metrics: `time` (seconds), `worker`, `step`, `steps` and `seconds` since the line
    before. `lost` are the workers that were revoked.

    A worker's first step takes as long as its machine needs to make the graph ready; it counts with the seconds of the
    worker's usual one. Raises ValueError where the last step is not in the lines.
    """
    of: dict[str, list[Mapping[str, float | str]]] = {}
    for row in sorted(rows, key=lambda row: float(row["time"])):
        of.setdefault(str(row["worker"]), []).append(row)
    ends = [float(row["time"]) for lines in of.values() for row in lines if int(row["step"]) >= steps]
    if not ends:
        raise ValueError(f"The run did not come to step {steps}")
    end = min(ends)
    begins = {worker: _began(lines) for worker, lines in of.items() if float(lines[0]["time"]) <= end}
    until = {worker: float(of[worker][-1]["time"]) if worker in lost else end for worker in begins}
    of_workers = {worker: max(until[worker] - begun, 0.0) for worker, begun in begins.items()}
    training = statistics.fmean(seconds for worker, seconds in of_workers.items() if worker not in lost)
    return Made(training, end - min(begins.values()) - training, of_workers)


def _began(lines: Sequence[Mapping[str, float | str]]) -> float:
    first = lines[0]
    usual = statistics.median(float(row["seconds"]) / float(row["steps"]) for row in lines[1:] or lines)
    return float(first["time"]) - usual * float(first["steps"])


def dollars(run: Made, scale: Scale, gpu: str, servers: int, on_demand: bool = False) -> float:
    """As the paper counts: each worker while it trained, and its parameter servers (none beside a single worker)."""
    price = PRICES[gpu][0 if on_demand else 1]
    workers = sum(scale.hours(seconds) for seconds in run.of_workers.values()) * price
    return workers + (scale.hours(run.training) * SERVER_PRICE * servers if len(run.of_workers) > 1 else 0.0)


def moments(lost: Sequence[float], scale: Scale) -> list[float]:
    """How many of our seconds after the first step workers are lost that were so many of the paper's old."""
    return [max(scale.seconds(seconds - BEFORE_TRAINING), 0.0) for seconds in lost]


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return statistics.fmean(values) if values else math.nan


def error(values: Sequence[float]) -> float:
    """The standard error of the mean; NaN for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def words(values: Sequence[float], digits: int = 2) -> str:
    """`0.51 ± 0.01 (4)`: mean, standard error, how many."""
    if not values:
        return "not measured"
    more = f" ± {error(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{more} ({len(values)})"


def percent(shares: Sequence[float]) -> str:
    """Return the mean of shares in percent; nothing where none was measured."""
    return f"{mean(shares):.0%}" if shares else ""


def losses(spec: str, repeats: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the published runs that lost workers: their moments and the whole, in seconds; at most `repeats` each."""
    return [*LOST[spec][:repeats], *LOST_TWO.get(spec, ())[:repeats]]


def lost_at(spec: str, moments: Sequence[int]) -> str:
    """Return the name under which a run that loses workers at these moments is kept."""
    return "-".join([spec, *map(str, moments)])


@dataclass(frozen=True)
class Kept:
    """One run, as it is kept: what it was of, hours and dollars of the paper, accuracy in percent, real seconds that
    joining took, and the share of this machine's cores that was busy meanwhile."""

    what: str
    hours: float
    dollars: float
    accuracy: float
    joining: float
    busy: float


class Rows:
    """The runs so far, in a file with a line for each: what is broken off has them all the same."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self, row: Kept) -> None:
        """Keep one more."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")

    def missing(self, wanted: Mapping[str, T]) -> dict[str, T]:
        """Return the configurations without a row, by their names, in the order in which they were given."""
        return {what: configuration for what, configuration in wanted.items() if not self.of(what)}

    def of(self, what: str) -> list[Kept]:
        """All runs of this, in the order in which they were made."""
        rows = (Kept(**json.loads(line)) for line in self.path.read_text(encoding="utf-8").splitlines())
        return [row for row in rows if row.what == what]


def cores() -> tuple[float, float]:
    """Seconds that this machine's cores were busy, and seconds of them in all, since it was started (Linux)."""
    ticks = [float(each) for each in Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def busy(before: tuple[float, float], after: tuple[float, float]) -> float:
    """The share of the cores that was busy between two moments."""
    return (after[0] - before[0]) / max(after[1] - before[1], 1e-9)


def lines(history: pandas.DataFrame) -> list[dict[str, float | str]]:
    """What `made` takes, from `run.history()`."""
    return [
        {
            "time": row.time.timestamp(), "worker": row.worker, "step": row.step, "steps": row.steps,
            "seconds": row.compute_seconds + row.wait_seconds,
        }
        for row in history.itertuples()
    ]  # fmt: skip
