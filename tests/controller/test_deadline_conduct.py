"""What becomes of a decision about a run with a deadline: done, proposed, or only told; and what its panel shows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deadlines.test_deadline_decisions import story
from transient_magics.client import text
from transient_magics.client.text import time_words
from transient_magics.controller.record import Recorder
from transient_magics.deadlines import simulation
from transient_magics.deadlines.decisions import Verdict, decide
from transient_magics.deadlines.simulation import FAR
from transient_magics.deadlines.situation import Situation
from transient_magics.errors import ClusterError
from transient_magics.journal import Journal, RunState, bill, events, read, replay
from transient_magics.panels import html, view
from transient_magics.panels.actions import find_action
from transient_magics.works.runs import deadlines as conduct
from transient_magics.works.runs.deadlines import Deadlines
from transient_magics.works.runs.words import outlook_facts


class Desk:
    """A journal with a run that is due, which two workers only just make in time, and who looks after it."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.told = story()
        shift = int((time.time() - self.told.now) * 1e9)
        with Journal(path) as journal:
            for event in self.told.history:
                event = replace(event, seq=0, time=event.time + shift)
                if isinstance(event, events.WorkDeclared):
                    spec = {**event.spec, "finish_by": time.time() + 3.3 * 3600, **options}
                    event = replace(event, spec=spec)
                journal.append(event)
        self.saved: list[str] = []
        self.stopped: list[str] = []

    def deadlines(self, recorder: Recorder) -> Deadlines:
        return Deadlines(recorder, self.saved.append, self.stopped.append)


Open = Callable[..., tuple[Recorder, Deadlines, Desk]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens such a journal, of a run with these options."""
    monkeypatch.setattr(conduct, "_TICK_SECONDS", 0.0)
    monkeypatch.setattr(conduct, "_LEAST_COURSES", 1)
    monkeypatch.setattr(conduct, "_COURSES_SECONDS", 60.0)  # a busy machine may need its 30 ms for less than a course
    path = tmp_path / "journal.jsonl"
    with contextlib.ExitStack() as stack:

        def desk(**options: Any) -> tuple[Recorder, Deadlines, Desk]:
            found = Desk(path, **options)
            recorder = Recorder(stack.enter_context(Journal(path)), replay(read(path)))
            return recorder, found.deadlines(recorder), found

        yield desk


def test_by_itself_it_acts_once_and_says_why(opened: Open) -> None:
    recorder, deadlines, _ = opened()
    for second in range(3):
        deadlines.tick(time.time() + second)
    known = recorder.state.of(RunState)["run-1"].deadline
    assert known
    assert known.acted
    assert known.outlook
    assert [each.kind for each in recorder.state.recent].count("deadline.acted") == 1
    assert recorder.state.steered == known.acted.machines
    assert "$" in known.acted.reason


def test_asked_first_it_proposes_and_what_is_agreed_to_is_done(opened: Open) -> None:
    recorder, deadlines, _ = opened(adapt="ask")
    now = time.time()
    for second in range(3):
        deadlines.tick(now + second)
    state = recorder.state
    known = state.of(RunState)["run-1"].deadline
    assert known
    assert known.acted is None
    assert known.proposed
    assert [each.kind for each in state.recent].count("deadline.proposed") == 1, "once, and not each second"
    shown = view(state, bill(state, now), now)
    proposal = shown["training"]["proposal"]  # type: ignore[index]
    assert proposal is not None
    assert proposal["text"] == f"run-1: {known.proposed.reason}?"
    assert proposal["number"] == known.proposed.seq
    assert {"chance if agreed", "ends if agreed"} <= dict(shown["training"]["facts"]).keys()  # type: ignore[index]
    later = view(state, bill(state, now), now + 700)["training"]
    assert {"chance", "ends"} <= dict(later["facts"]).keys()  # type: ignore[index]
    how = f"{known.proposed.reason}. To agree: %transient_cluster agree {state.name} run-1\n"
    assert how in text.status(state, bill(state, now), now)
    assert view(state, bill(state, now), now + 700)["training"]["proposal"] is None, "it expires"  # type: ignore[index]
    for said in ("deadline", "chance", "a step", "makes one for", "Proposed for run-1"):
        assert said in html(shown), "the picture says what the panel does"
    with pytest.raises(ClusterError, match="is out of date"):
        deadlines.agree("run-1", known.proposed.seq + 1)
    deadlines.agree("run-1", known.proposed.seq)
    assert recorder.state.steered == known.proposed.machines
    with pytest.raises(ClusterError, match="is out of date"):
        deadlines.agree("run-1", known.proposed.seq)


def test_a_proposal_that_nobody_agrees_to_is_withdrawn(opened: Open) -> None:
    recorder, deadlines, _ = opened(adapt="ask")
    deadlines.tick(time.time())
    deadlines.tick(time.time() + 700)
    assert [each.kind for each in recorder.state.recent].count("deadline.proposed") == 2
    known = recorder.state.of(RunState)["run-1"].deadline
    assert known
    assert known.proposed is None


def test_off_it_only_tells(opened: Open) -> None:
    recorder, deadlines, _ = opened(adapt="off")
    deadlines.tick(time.time())
    known = recorder.state.of(RunState)["run-1"].deadline
    assert known
    assert known.outlook
    assert (known.acted, known.proposed) == (None, None)


def test_courses_of_many_workers_are_simulated_little_by_little(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A period that takes 10 ms of a controller's time is followed by other work after three."""
    periods = 0

    def counted(sight: Situation) -> Verdict:
        nonlocal periods
        periods += 1
        return decide(sight)

    recorder, deadlines, _ = opened()
    monkeypatch.setattr(simulation, "decide", counted)
    clock = SimpleNamespace(monotonic=lambda: 0.01 * periods)
    monkeypatch.setattr(conduct, "time", clock)
    monkeypatch.setattr(conduct, "_COURSES_SECONDS", 0.03)
    lasted = list[int]()
    while (known := recorder.state.of(RunState)["run-1"].deadline) and known.outlook is None and len(lasted) < 100:
        before = periods
        deadlines.tick(time.time())
        lasted.append(periods - before)
    assert max(lasted) <= 4
    assert 10 < len(lasted) < 100, "a course lasts several looks"


def test_late_is_told_once_and_money_that_is_spent_ends_it(opened: Open) -> None:
    recorder, deadlines, desk = opened(train_steps=400_000, max_cost=0.001)
    for second in range(3):
        deadlines.tick(time.time() + second)
    assert [each.kind for each in recorder.state.recent].count("deadline.late") == 1
    assert set(desk.stopped) == {"run-1"}
    assert "its limit of $0.0010 is reached" in recorder.trouble


def test_an_end_that_no_simulation_reaches_is_later_than_what_it_does(opened: Open) -> None:
    recorder, _, _ = opened()
    due, now = recorder.state.of(RunState)["run-1"].spec.finish_by, time.time()
    for low, high, later in ((now + 3600, FAR, now + 3600), (FAR, FAR, due)):
        recorder.record(
            events.DeadlineOutlook(run="run-1", chance=0.0, low=low, high=high, worth=0.1, price=0.1, gpu="cpu")
        )
        ends = dict(outlook_facts(recorder.state.of(RunState)["run-1"], now))["ends"]
        assert ends == f"later than {time_words(later, now)}"


def test_the_page_agrees_to_the_proposal_that_it_shows() -> None:
    class Asked:
        def run(self, name: str) -> Asked:
            return self

        def agree(self, proposal: int) -> None:
            agreed.append(proposal)

    agreed: list[int] = []
    asked: Any = Asked()
    found = find_action(asked, None, {"do": "agree", "run": "run-1", "number": 7})
    assert found
    found.do()
    assert agreed == [7]
    assert find_action(asked, None, {"do": "agree", "run": "run-1", "number": "7"}) is None
