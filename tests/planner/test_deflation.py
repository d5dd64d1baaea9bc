"""What it means to lose a worker or to shrink some: the model, and what a run is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.panels import stories
from transient_magics import places
from transient_magics.client import Cluster
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.journal import Event, Journal, events
from transient_magics.planner.deflation import advise, shrunk

parts = st.lists(st.floats(0, 0.9), min_size=1, max_size=12)


@given(parts)
def test_mini_batches_that_follow_are_never_slower_than_waiting_for_the_slowest(deflated: list[float]) -> None:
    balanced = shrunk(1.0, deflated, mode="sync", balanced=True)
    assert 1.0 - 1e-9 <= balanced <= shrunk(1.0, deflated, mode="sync", balanced=False) + 1e-9
    assert balanced == pytest.approx(1 / (1 - sum(deflated) / len(deflated)))
    assert shrunk(1.0, deflated, mode="async", balanced=False) == balanced


@given(st.integers(2, 40), st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_to_shrink_never_loses_against_a_loss_where_mini_batches_follow(count: int, workers: float) -> None:
    if workers >= count:
        return
    told = advise(2.0, [0.3] * count, 0.1, workers, mode="sync", balanced=True)
    assert {round(each.seconds, 9) for each in told.choices} == {round(2.0 * count / (count - workers), 9)}
    for each in told.choices:
        if each.what.startswith("lose"):
            assert each.dollars == min(choice.dollars for choice in told.choices), "what is gone costs nothing"


def test_without_them_one_slow_worker_is_worse_than_none() -> None:
    told = advise(1.0, [1.0] * 4, 0.0, 1.0, mode="sync", balanced=False)
    assert [each.what for each in told.choices] == ["shrink all by 25%", "lose one", "shrink 2 by 50%"]
    assert [each.seconds for each in told.choices] == pytest.approx([4 / 3, 4 / 3, 2.0])
    text = str(told)
    assert "as it is" in text
    assert "33%" in text


def told(home: Path, rates: list[tuple[float, float, float]], history: list[Event], **more: Any) -> Cluster:
    """A cluster whose run made so many steps per second in these seconds: (from, to, rate)."""
    cluster = Cluster("k80x4")
    directory = places.private(places.cluster(cluster.name))
    with Journal(directory / "journal.jsonl") as journal:
        for _, chapter in [*stories.life(stories.declaration())][:8]:
            for event in chapter:
                journal.append(event)
        for event in history:
            journal.append(event)
    run = places.private(directory / "runs" / "run-1")
    step, lines = 0.0, list[str]()
    for since, until, rate in rates:
        for second in range(int(since), int(until)):
            step += rate
            row = {"time": second * 10**9, "worker": "worker-0", "step": int(step), "steps": int(rate)}
            lines.append(json.dumps(row))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return cluster


def test_a_run_is_told_by_its_speed_and_what_came_of_it_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    history: list[Event] = [
        events.VmDeflated(vm="worker-1", cpu=0.5, network=1.0, time=1_000 * 10**9),
        events.VmInflated(vm="worker-1", cpu=1.0, network=1.0, cpu_before=0.5, time=1_060 * 10**9),
    ]
    cluster = told(tmp_path, [(900, 1000, 10), (1000, 1060, 5), (1060, 1200, 10)], history)
    run = cluster.run("run-1")
    advice = run.advice("reclaim 1")
    assert [each.what for each in advice.choices] == ["shrink all by 25%", "lose one", "shrink 2 by 50%"]
    assert advice.now.seconds == pytest.approx(1 / run.state.steps_per_second)
    (seen,) = advice.measured
    assert (seen.what, seen.before, seen.after) == (
        "worker-1 shrank to 50%",
        pytest.approx(0.1, 0.05),
        pytest.approx(0.2, 0.05),
    )
    assert "worker-1 shrank to 50%: measured 0.1" in str(advice)
    with pytest.raises(PlanError, match="4 workers, so it cannot release 4"):
        run.advice("reclaim 4")
    for wrong in ("", "reclaim", "reclaim 0", "lose 1", "reclaim -1"):
        with pytest.raises(DeclarationError, match="Invalid question"):
            run.advice(wrong)


@pytest.mark.parametrize(("asked", "ready"), [(1_010, 1_100), (900, 1_010)])
def test_what_was_measured_while_another_worker_became_another_machine_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: int, ready: int
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    history: list[Event] = [
        events.VmDeflated(vm="worker-1", cpu=0.5, network=1.0, time=1_000 * 10**9),
        events.VmMachineAsked(
            vm="worker-2", machine_type="n1-standard-1", hourly=0.1, on_demand_hourly=0.2, disk_hourly=0.01,
            part=0.25, reason="asked", time=asked * 10**9,
        ),
        events.VmReady(vm="worker-2", time=ready * 10**9),
    ]  # fmt: skip
    history.sort(key=lambda each: each.time)
    cluster = told(tmp_path, [(850, 1000, 10), (1000, 1200, 5)], history)
    assert cluster.run("run-1").advice("reclaim 1").measured == ()
