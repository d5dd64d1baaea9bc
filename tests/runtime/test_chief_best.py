"""The best checkpoint of a run (`--keep-best`) across chiefs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until
from tests.runtime.machine_room import free_ports, lines
from transient_magics.protocol.agent_commands import Assignment
from transient_magics.protocol.objective import Best
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.files.checkpoints import Checkpoints, Saved
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import chief as chiefs
from transient_magics.runtime.parameter_server.chief import events
from transient_magics.runtime.parameter_server.variables import Keeper

SPEC = RunSpec("run-1", 100, token="secret", eval_steps=10, keep_best="max accuracy")
BEST = Best("max accuracy", 0.7, 40)
TOLD = {"kind": "train.best", "run": "run-1", "step": 40, "metric": "accuracy", "value": 0.7}


def write_checkpoint(checkpoints: Checkpoints, step: int) -> Saved:
    """Write a checkpoint that holds no variables."""

    def write_files(prefix: str) -> None:
        for ending in (".data-00000-of-00001", ".index"):
            Path(prefix + ending).write_text("values", encoding="utf-8")

    return checkpoints.write(step, write_files)


def replace_variables(monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints) -> None:
    """Let the chief train at step 50 without TensorFlow, and evaluate an accuracy of 0.6."""

    def do_nothing(*_: object) -> None:
        """Stand in for what only TensorFlow can do."""

    def at_step(_: Keeper) -> int:
        return 50

    def save(_: Keeper) -> Saved:
        return write_checkpoint(checkpoints, 50)

    def no_fingerprint(_: Keeper) -> dict[str, str]:
        return {}

    def no_records(_: Keeper) -> list[Path]:
        return []

    async def evaluate(_: RunFolder, step: int, **__: object) -> events.EvaluationDone:
        return events.EvaluationDone(step, {"accuracy": 0.6})

    for name in ("serve", "define", "build", "keep_graph", "generate"):
        monkeypatch.setattr(Keeper, name, do_nothing)
    monkeypatch.setattr(Keeper, "prepare", at_step)
    monkeypatch.setattr(Keeper, "step", at_step)
    monkeypatch.setattr(Keeper, "save", save)
    monkeypatch.setattr(Keeper, "record_files", no_records)
    monkeypatch.setattr(Keeper, "fingerprint", no_fingerprint)
    monkeypatch.setattr(Keeper, "batch", 32)
    monkeypatch.setattr(Keeper, "parameters", 650)
    monkeypatch.setattr(chiefs, "evaluate", evaluate)


@pytest.mark.parametrize("events_before", [[], [TOLD]], ids=["a run that resumes", "a chief that starts again"])
async def test_the_best_checkpoint_stays_the_best_when_a_chief_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events_before: list[dict[str, Any]]
) -> None:
    folder = RunFolder(tmp_path)
    folder.events.write_text("".join(json.dumps(event) + "\n" for event in events_before), encoding="utf-8")
    checkpoints = Checkpoints(folder.checkpoints)
    write_checkpoint(checkpoints, 40)
    checkpoints.keep_best(BEST)
    replace_variables(monkeypatch, checkpoints)
    server_port, chief_port = free_ports(2)
    servers = (f"127.0.0.1:{server_port}",)
    assignment = Assignment("run-1", "ps", "ps-0", "127.0.0.1", servers, f"127.0.0.1:{chief_port}")
    chief = chiefs.Chief(folder, SPEC, assignment)

    def happened(kind: str) -> list[dict[str, Any]]:
        return [event for event in lines(folder.events) if event["kind"] == kind]

    running = asyncio.create_task(chief.run())
    await until(lambda: happened("train.started") or happened("train.failed"))
    chief.evaluate_now()
    await until(lambda: happened("train.evaluated") or happened("train.failed"))
    chief.stop_now()
    await running
    assert not happened("train.failed")
    assert [(event["step"], event["value"]) for event in happened("train.best")] == [(40, 0.7)]
    assert checkpoints.best() == BEST
