"""Models that are planned before they ever ran: their graph is built here once, and what it
computes is counted.

A process of its own builds one training step, as a run's check does: it imports TensorFlow, and
runs the code.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import TrainingError
from ...protocol import layout
from .. import cell
from ..declaring.claims import write_record
from ..declaring.including import included
from ..declaring.payload import Payload
from ..declaring.runs import specified
from ..programs import ask_model

if TYPE_CHECKING:
    from ...protocol.run import RunSpec

_SECONDS = 300.0
_OTHERWISE = "or train it for a minute on a cluster, then plan with that run."


def model_of(
    source: str, options: Mapping[str, Any], include: tuple[str, ...] = (), line_offset: int = 0
) -> RunSpec:
    """The declaration of a run of the code in `source` with these options (fields of RunSpec),
    checked as a cell of training is. Raises CellError or DeclarationError.
    """
    named = {key: value for key, value in options.items() if value}
    paths = included(include)
    if source or not named.get("model"):
        cell.check(
            source,
            line_offset=line_offset,
            include=paths,
            own_model=not named.get("model"),
            params=dict.fromkeys(named.get("params", ()), "--param"),
        )
    whole = {"name": "planned", "train_steps": 1, "line_offset": line_offset, **named}
    payload = Payload.of(
        source, paths, whole.pop("pip", None) or (), build=bool(whole.get("pip_build"))
    )
    return specified(None, whole, None, payload)


def counted(source: str, spec: RunSpec, include: tuple[str, ...] = ()) -> Mapping[str, float]:
    """What was counted of the model: `parameters`, `gigaflops` of an example, `batch_size`, and
    whether that is in `tokens`; the size of a `vocabulary` that stands in. Takes some ten seconds
    the first time that this process is asked about it. Raises CellError, TrainingError or
    ClusterError.
    """
    paths = included(include)
    ages = tuple(
        each.stat().st_mtime_ns for path in paths for each in (Path(path), *Path(path).rglob("*"))
    )
    return _counted(
        source, json.dumps({**spec.to_dict(), "declared_at": 0.0}, sort_keys=True), paths, ages
    )


@lru_cache(maxsize=16)
def _counted(
    source: str, declared: str, paths: tuple[str, ...], ages: tuple[int, ...]
) -> Mapping[str, float]:
    what = "Counting what the model computes"
    with tempfile.TemporaryDirectory(prefix="transient-") as temporary:
        folder = Path(temporary) / "planned"
        try:
            folder.mkdir(mode=0o700)
            Payload(source, paths).fill(folder)
            write_record(folder / layout.RUN, json.loads(declared))
        except OSError as error:
            raise TrainingError(
                f"{what} failed: {error.strerror or error}", where=str(folder)
            ) from error
        found = ask_model(
            what,
            "--planned",
            "--run",
            str(folder),
            program="check",
            otherwise=_OTHERWISE,
            timeout=_SECONDS,
        )
    if not isinstance(model := found.get("model"), dict):
        raise TrainingError(f"{what} failed: {found.get('note') or 'it says nothing'}")
    return {name: float(value) for name, value in model.items()}
