"""What is sent of curves that grow: now and then all there is (a base), in between what came behind
it since (a tail).

A tail holds everything since its base, so that any one of them can be lost. A page that has another
base than a tail was made for asks for both again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .contract import Base, Curves, Figure, OfWorker, Tail

_MOST_ROWS = 27
"""Of a tail: of n rows in all, bases and tails together are least where a tail has at most the root
of 2n.
"""


def tail(base: Base, now: Curves) -> Tail | None:
    """What makes `now` of `base`; None where a new base is less, or they are of other things."""
    if base["run"] != now["run"] or base["below"] != now["below"] or base["width"] != now["width"]:
        return None
    if not base["workers"].keys() <= now["workers"].keys():
        return None
    keep = min(_alike(before, after) for before, after in _pairs(base, now))
    if len(now["time"]) - keep > _MOST_ROWS:
        return None
    workers = {name: _of_worker(each, keep) for name, each in now["workers"].items()}
    found: Tail = {
        "base": base["number"],
        "keep": keep,
        "unnamed": now["unnamed"],
        "end": now["end"],
        "split": now["split"],
        "time": now["time"][keep:],
        "step": now["step"][keep:],
        "loss": now["loss"][keep:],
        "speed": now["speed"][keep:],
        "workers": workers,
        "expected": now[
            "expected"
        ],  # is judged anew of old rows too, when a worker is faster than it ever was
    }
    if now["marks"] != base["marks"]:
        found["marks"] = now["marks"]
    return found


def _pairs(base: Curves, now: Curves) -> Iterator[tuple[Sequence[Figure], Sequence[Figure]]]:
    """The columns of both, each with what it was."""
    yield base["time"], now["time"]
    yield base["step"], now["step"]
    yield base["loss"], now["loss"]
    yield base["speed"], now["speed"]
    nothing: list[Figure] = [None] * len(base["time"])
    for name, each in now["workers"].items():
        before = base["workers"].get(name)
        for after, was in zip(
            _columns(each), _columns(before) if before else (nothing,) * 3, strict=False
        ):
            yield was, after


def _columns(of: OfWorker) -> list[list[Figure]]:
    return [
        of["speed"],
        *([of["batch"]] if "batch" in of else []),
        *([of["staleness"]] if "staleness" in of else []),
    ]


def _of_worker(of: OfWorker, keep: int) -> OfWorker:
    found: OfWorker = {"speed": of["speed"][keep:]}
    if "batch" in of:
        found["batch"] = of["batch"][keep:]
    if "staleness" in of:
        found["staleness"] = of["staleness"][keep:]
    return found


def _alike(before: Sequence[Figure], after: Sequence[Figure]) -> int:
    """How many values both begin with."""
    most = min(len(before), len(after))
    if before[:most] == after[:most]:
        return most
    return next(index for index in range(most) if before[index] != after[index])
