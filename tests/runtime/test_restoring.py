"""The part of a checkpoint that each parameter server restores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server import variables as keeping
from transient_magics.runtime.parameter_server.variables import Keeper
from transient_magics.runtime.tf import placement
from transient_magics.runtime.training.graph import variables

SPEC = RunSpec("run-1", 100, token="secret", ps_shards=3)
SERVERS = ("127.0.0.1:2222", "127.0.0.1:2223", "127.0.0.1:2224")
ASSIGNMENT = Assignment("run-1", "ps", "ps-0", "127.0.0.1", SERVERS, "127.0.0.1:2221")
TABLE = numpy.arange(20.0).reshape(10, 2)
BIAS = numpy.array([7.0, 8.0])
PARTS = (slice(0, 4), slice(4, 7), slice(7, 10))
COLUMNS = slice(0, 2)


@dataclass(frozen=True)
class Shape:
    """The shape of a placeholder."""

    sizes: tuple[int, ...]

    def is_compatible_with(self, other: tuple[int, ...]) -> bool:
        return self.sizes == other

    def as_list(self) -> list[int]:
        return list(self.sizes)


@dataclass(frozen=True, eq=False)
class Placeholder:
    """The value of one part of a variable."""

    shape: Shape


class Model:
    """A model that is trained in one phase."""

    def keep_vocabularies(self, checkpoints: Path) -> None: ...

    def continued(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        return values


class Servers:
    """A session on empty parameter servers that records which values were loaded."""

    def __init__(self) -> None:
        self.held: dict[str, numpy.ndarray] = {}

    def run(self, fetches: Any, feeds: dict[Placeholder, numpy.ndarray] | None = None) -> Any:
        if fetches == "uninitialised":
            return ["every variable"]
        if fetches == "finite":
            return [True] * (1 + len(PARTS))
        if fetches == "step":
            return 40
        if feeds:
            self.held |= {name: feeds[placeholder] for name, placeholder in fetches}
        return None


def loading(part_name: str, name: str, part: tuple[slice, ...] | None, *sizes: int) -> variables.Loading:
    """Return the loading of one part; its operation names the part and the placeholder that it reads."""
    placeholder = Placeholder(Shape(sizes))
    return variables.Loading((part_name, placeholder), placeholder, name, part)


def test_each_server_restores_its_own_part_of_a_variable_that_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loadings = [loading("bias", "bias", None, 2)]
    for index, rows in enumerate(PARTS):
        loadings.append(loading(f"table/part_{index}", "table", (rows, COLUMNS), rows.stop - rows.start, 2))
    names = ("graph", "step", "uninitialised", "finite", "initialise", "ready", "not_ready", "save", "file_name")
    graph = variables.VariablesGraph(
        **{name: name for name in names}, batch=32, written=[], loadings=loadings, trained=frozenset({"table", "bias"})
    )
    servers = Servers()
    monkeypatch.setattr(variables, "build", lambda *_: graph)
    monkeypatch.setattr(keeping, "load_model", lambda *_: Model())
    monkeypatch.setattr(placement, "transient_errors", lambda: (ConnectionError,))
    monkeypatch.setattr(Keeper, "another_session", lambda _: servers)
    monkeypatch.setattr(Checkpoints, "newest", lambda *_: (40, {"table": TABLE, "bias": BIAS}))

    keeper = Keeper(RunFolder(tmp_path), SPEC, ASSIGNMENT)
    keeper.define()
    keeper.build()
    assert keeper.prepare() == 40
    parts = [servers.held[f"table/part_{index}"] for index in range(len(PARTS))]
    assert numpy.concatenate(parts).tolist() == TABLE.tolist()
    assert servers.held["bias"].tolist() == BIAS.tolist()
