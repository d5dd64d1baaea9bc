"""A machine whose clock is not Compute Engine's makes no cluster, and ends none that is there too early or too late."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_api import PROJECT, ZONE, Api, refusal

from transient_magics.cloud import ComputeEngine
from transient_magics.cloud.calling.clients import ServerClock
from transient_magics.controller.cluster import Controller
from transient_magics.controller.decisions.core import Situation
from transient_magics.controller.programs import preflight
from transient_magics.controller.programs.measure import _look
from transient_magics.controller.record import Recorder
from transient_magics.controller.setup import Setup
from transient_magics.controller.vms import lookup
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.errors import AccessError
from transient_magics.journal import Journal, events, read, replay
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup
from transient_magics.spec.measurement import LIFE_SECONDS, MeasureSpec

HOUR = 3600.0
PRICE = PriceLine("n1-standard-4", 0.2, 0.7, "test")


def declared(folder: Path, at: float) -> ClusterSpec:
    """A cluster of two hours at the very begin of its journal."""
    spec = ClusterSpec(
        name="one", id="1a2b3c4d", groups=(WorkerGroup("cpu", 1),), zones=("us-west1-b",), project=PROJECT, image="own",
        prices={"cpu": PRICE, "parameter-server": PRICE}, declared_at=at, max_seconds=2 * HOUR,
    )  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        journal.append(events.ClusterDeclared(spec=spec.to_dict()))
    return spec


@pytest.mark.parametrize(
    ("ahead", "dated", "why"),
    [
        (0.0, 0.0, "^$"), (40.0, 0.0, "^$"), (-40.0, 0.0, "^$"), (0.0, 5 * HOUR, "by a clock that was 5 h ahead"),
        (75.0, 0.0, "clock is 7[0-9] s behind Compute Engine's.*set-ntp true"),
        (-12 * HOUR, 0.0, "clock is 12 h ahead of Compute Engine's.*set-ntp true"),
    ],
)  # fmt: skip
async def test_no_cluster_is_made_by_a_clock_that_is_far_off(
    api: Api, engine: ComputeEngine, tmp_path: Path, ahead: float, dated: float, why: str
) -> None:
    api.ahead = ahead
    api.on("GET", "aggregated/instances", {"items": {}})
    declared(tmp_path, time.time() + dated)
    access = cast(Access, SimpleNamespace(engine=engine))
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, replay(read(journal.path)))
        await Setup(tmp_path, recorder, access).prepare()
    assert recorder.state.phase == ("provisioning" if why == "^$" else "deleting")
    assert re.search(why, recorder.state.reason)


@pytest.mark.parametrize(("jump", "ends"), [(12 * HOUR, False), (-12 * HOUR, True)])
async def test_limits_of_a_cluster_that_is_there_go_by_compute_engines_clock(
    api: Api, engine: ComputeEngine, tmp_path: Path, jump: float, ends: bool
) -> None:
    """Declared an hour ago, or three hours, by a clock that was right; since then it has jumped."""
    api.ahead = -jump
    api.on("GET", "", {"name": PROJECT})
    await engine.check()
    declared(tmp_path, time.time() - jump - (3 * HOUR if ends else HOUR))
    controller, asked = Controller(tmp_path), list[Any]()
    fleet = cast(Fleet, SimpleNamespace(request=lambda decisions, _: asked.extend(decisions)))
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = controller._recorder = Recorder(journal, replay(read(journal.path)))
        controller._apply(fleet, Situation(lookup.corrected_now(engine.ahead), recorder.state))
    assert recorder.state.phase == ("deleting" if ends else "provisioning")
    assert [each.vm for each in asked] == ([] if ends else ["ps-0", "worker-0"])


async def test_the_dry_run_says_so_too(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    api.ahead = -12 * HOUR
    monkeypatch.setattr("transient_magics.emulator.ensure", lambda **_: api.url)
    spec = replace(declared(tmp_path, time.time()), project=None)
    monkeypatch.setattr("transient_magics.controller.vms.access._ask", lambda _: {"relay": "nowhere", "isolated": True})
    findings, _ = await preflight.examine(spec)
    assert "12 h ahead of" in next(each.text for each in findings if each.subject == "clock")


def test_answers_are_heard_in_threads_while_somebody_asks_for_the_clock() -> None:
    heard, over = ServerClock(), threading.Event()
    session = SimpleNamespace(hooks={"response": []})
    (hear,) = heard.listen(session).hooks["response"]
    answer = SimpleNamespace(headers={"Date": formatdate(usegmt=True)}, elapsed=timedelta(0))

    def listen() -> None:
        while not over.is_set():
            hear(answer)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=listen) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        assert all(abs(heard.ahead) < 60 for _ in range(1000))
    finally:
        over.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_a_vm_that_measures_capacity_ends_by_compute_engines_clock(
    api: Api, engine: ComputeEngine, ahead: float
) -> None:
    api.ahead = ahead
    api.on("GET", "", {"name": PROJECT})
    api.on("POST", f"zones/{ZONE}/instances", refusal(403, "forbidden", "Required 'compute.instances.create'"))
    spec = MeasureSpec(
        name="t4-1", gpu="t4", zones=(ZONE,), hourly={ZONE: 0.3}, budget=1.0, every_seconds=600.0, max_seconds=3600.0,
        declared_at=1000.0, id="a1",
    )  # fmt: skip
    opened = SimpleNamespace(engine=engine, reopen=_nothing)
    with pytest.raises(AccessError):
        await _look(cast(Access, opened), spec)
    ((_, body),) = api.asked("POST", f"zones/{ZONE}/instances")
    ends = datetime.fromisoformat(body["scheduling"]["terminationTime"]).timestamp()
    assert ends == pytest.approx(time.time() + ahead + LIFE_SECONDS, abs=30)


async def _nothing() -> None: ...
