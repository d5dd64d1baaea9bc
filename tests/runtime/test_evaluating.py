"""An evaluation that cannot be: its process dies or never begins, and the chief gets a reason all the same."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from transient_magics.errors import TrainingError
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.parameter_server.chief import programs
from transient_magics.runtime.parameter_server.chief.programs import evaluate
from transient_magics.runtime.programs import evaluate as program


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("kill -9 $$", "its process was killed; the parameter server's VM may be short of memory"),
        ("kill -6 $$", "its process ended by signal 6 and without an answer"),
        ("echo 7; exit 3", "its process ended with code 3 and without an answer"),
        ("""echo words of the cell; echo '{"error": "no data"}'; exit 1""", "no data"),
    ],
)
async def test_a_process_that_dies_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    folder = RunFolder(tmp_path)
    folder.logs.mkdir()
    done = await evaluate(folder, 40)
    assert (done.step, done.metrics, done.reason) == (40, {}, reason)


@pytest.mark.parametrize(("awaited", "behind"), [(True, 0), (False, 10)])
async def test_steps_come_before_an_evaluation_that_nobody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool, behind: int
) -> None:
    niced = list[int]()
    monkeypatch.setattr(program.os, "nice", niced.append)
    folder = RunFolder(tmp_path / "run-1")
    folder.logs.mkdir(parents=True)
    asked = list[str]()

    async def answer(_: str, *arguments: str, **__: object) -> dict[str, object]:
        asked.extend(arguments)
        return {"metrics": {}}

    monkeypatch.setattr(programs, "answer", answer)
    await evaluate(folder, 40, awaited=awaited)
    monkeypatch.setattr(sys, "argv", ["evaluate", *asked])
    with pytest.raises(TrainingError, match="No such file"):  # there is no run
        program.main()
    assert niced == [behind]


async def test_an_evaluation_takes_the_part_of_the_split_that_the_one_before_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "run-1")
    folder.logs.mkdir(parents=True)
    asked = list[dict[str, str]]()
    part: dict[str, object] = {"examples": 3, "complete": False, "of": 9, "drawn": 3, "among": 9}

    async def answer(_: str, *arguments: str, **__: object) -> dict[str, object]:
        asked.append(dict(zip(arguments[::2], arguments[1::2], strict=False)))
        return {"metrics": {}, **part}

    monkeypatch.setattr(programs, "answer", answer)
    done = await evaluate(folder, 40, seconds=70.4)
    assert (done.examples, done.complete, done.of, done.drawn, done.among) == (3, False, 9, 3, 9)
    lines = [{"kind": "train.evaluated", "step": 40, **part}, {"kind": "train.checkpoint", "step": 41}]
    folder.events.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    await evaluate(folder, 41)
    folder.events.write_text(json.dumps({"kind": "train.evaluated", "step": 41}) + "\n", encoding="utf-8")
    await evaluate(folder, 42)
    assert [each["--seconds"] for each in asked] == ["70", "60", "60"]
    assert [json.loads(each["--before"]) for each in asked] == [
        {}, {"complete": False, "of": 9, "drawn": 3, "among": 9}, {"complete": True},
    ]  # fmt: skip


async def test_a_process_that_cannot_be_started_is_a_reason(tmp_path: Path) -> None:
    done = await evaluate(RunFolder(tmp_path / "nowhere"), 40)
    assert done.reason.startswith("FileNotFoundError")


async def test_evaluations_of_runs_on_a_vm_come_one_at_a_time_and_who_asked_first_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, began, may_end = 0, list[str](), asyncio.Event()

    async def answer(*_: object, beside: RunFolder, **__: object) -> dict[str, object]:
        nonlocal under_way
        under_way += 1
        assert under_way == 1
        began.append(beside.path.name)
        await may_end.wait()
        under_way -= 1
        return {"metrics": {}}

    monkeypatch.setattr(programs, "answer", answer)
    monkeypatch.setattr(programs, "_POLL_SECONDS", 0.01)
    queue = tmp_path / ".evaluations"
    queue.mkdir()
    (queue / f"{0:020d}-7").touch()  # of one that was killed
    names = [f"run-{number}" for number in (3, 1, 4, 2)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            folder = RunFolder(tmp_path / name)
            folder.logs.mkdir(parents=True)
            given_up = group.create_task(programs.evaluate(folder, 40))
            await asyncio.sleep(0.02)
        assert began == names[:1]
        given_up.cancel()
        await asyncio.sleep(0.02)
        may_end.set()
    assert began == names[:3]
    assert list(queue.iterdir()) == []
