"""The life of a panel: how often it draws, when its twin is refreshed, what its buttons do, without a front end."""

from __future__ import annotations

import inspect
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import transient_magics.panels.display
from transient_magics.client import Cluster, Run
from transient_magics.client.folders import Identity
from transient_magics.client.following.follower import Follower
from transient_magics.errors import ClusterError
from transient_magics.journal import RunState, encode, events
from transient_magics.panels import feeds
from transient_magics.panels.display import WIDGET_VIEW, Display
from transient_magics.panels.feeds import Beside, Outlook
from transient_magics.protocol.vm_events import TrainStarted

from . import stories
from .long_story import LongStory
from .stories import TRAIN


class Page:
    """What arrives at a front end."""

    def __init__(self, display: Display, *, in_place: bool = False) -> None:
        self.shown: list[dict[str, Any]] = []
        self.updates: list[dict[str, Any]] = []
        display.show(self._publish, page=in_place, in_place=in_place)

    def _publish(self, data: dict[str, Any], *, update: bool) -> None:
        (self.updates if update else self.shown).append(data)


def widgets_of(page: Page) -> list[Any]:
    """The live panels that were shown."""
    import ipywidgets

    names = [data[WIDGET_VIEW]["model_id"] for data in page.shown]
    return [ipywidgets.widget._instances[name] for name in names]  # the registry that the front end's messages go by


def panels() -> list[Any]:
    """All live panels of this process."""
    import ipywidgets

    return [each for each in ipywidgets.widget._instances.values() if hasattr(each, "place")]


def eventually(true: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("stand_in", "real"), [(stories.StoryCluster, (Cluster, Run)), (stories.StoryFeed, (Follower,))]
)
def test_what_stands_in_for_a_cluster_here_is_asked_as_a_real_one_is(stand_in: type, real: tuple[type, ...]) -> None:
    """What a panel asks of real ones is checked by its types; this is what the other tests of panels rest on."""
    for name, method in inspect.getmembers(stand_in, inspect.isfunction):
        asked = [_parameters(getattr(each, name)) for each in real if hasattr(each, name)]
        assert name.startswith("_") or asked
        assert name.startswith("_") or all(each == _parameters(method) for each in asked), name


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; what may be given by its name alone, and is not here, does not count."""
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.kind is not inspect.Parameter.KEYWORD_ONLY
    ]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def displayed(journal: Path, cluster: stories.StoryCluster | None = None) -> tuple[Display, Page]:
    display = Display(cluster or stories.StoryCluster(journal), None, stories.StoryFeed(journal))
    return display, Page(display)


def test_a_panel_comes_with_its_twin_and_its_text(journal: Path) -> None:
    stories.tell(journal, "ready")
    _, page = displayed(journal)
    (bundle,) = page.shown
    assert set(bundle) == {WIDGET_VIEW, "text/html", "text/plain"}
    assert "k80x4  ready" in bundle["text/plain"]


def test_the_twin_ends_with_the_truth(journal: Path) -> None:
    stories.tell(journal, "ready")
    display, page = displayed(journal)
    stories.tell(journal, "deleted", after="ready")
    eventually(lambda: display.state.over)
    eventually(lambda: page.updates and "deleted: asked by the user" in page.updates[-1]["text/html"])


def test_a_page_that_turns_up_late_gets_the_live_view_back(journal: Path) -> None:
    stories.tell(journal, "ready")
    display, page = displayed(journal)
    stories.tell(journal, "deleted", after="ready")
    eventually(lambda: page.updates)
    assert WIDGET_VIEW not in page.updates[-1]
    display.ask({"do": "resync"})
    eventually(lambda: WIDGET_VIEW in page.updates[-1])


def test_a_page_whose_first_word_comes_after_the_end_of_a_run_finds_that_end_stored(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient_magics.panels.display, "_PAGE_SECONDS", 600.0)
    stories.tell(journal, "training")
    display, page = displayed(journal)
    stories.tell(journal, "finished", after="training")
    eventually(lambda: display.state.run and display.state.run.over)
    assert not page.updates, "a page may be coming, and draw it live"
    display.ask({"do": "resync"})
    eventually(lambda: page.updates and "run-1 finished" in page.updates[-1]["text/html"])
    assert WIDGET_VIEW in page.updates[-1]


def test_a_page_that_puts_the_panel_in_its_place_gets_pictures_alone(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient_magics.panels.display, "_BEHIND_PANEL_SECONDS", 0.0)
    stories.tell(journal, "ready")
    display = Display(stories.StoryCluster(journal), None, stories.StoryFeed(journal))
    page = Page(display, in_place=True)
    (bundle,) = page.shown
    assert set(bundle) == {"text/html", "text/plain"}
    (place,) = [panel.place for panel in panels() if f"class='transient-picture {panel.place}'" in bundle["text/html"]]
    stories.tell(journal, "short", after="ready", pace=0.01)
    eventually(lambda: page.updates and "worker-3 was revoked" in page.updates[-1]["text/html"])
    assert all(place in update["text/html"] and WIDGET_VIEW not in update for update in page.updates)
    assert all(len(update["text/html"]) < 20_000 for update in page.updates)
    assert "; the run continued." in page.updates[-1]["text/html"]


def test_the_page_hears_that_it_was_heard(journal: Path) -> None:
    stories.tell(journal, "ready")
    display, page = displayed(journal)
    (panel,) = widgets_of(page)
    display.ask({"do": "revoke", "worker": "worker-1", "asked": "page 7"})
    eventually(lambda: panel.view.get("received") == "page 7")


@pytest.mark.slow
def test_many_events_make_few_frames(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transient_magics.panels import widget

    frames: list[float] = []
    real = widget.ClusterPanel.show
    monkeypatch.setattr(
        widget.ClusterPanel, "show", lambda self, shown: (frames.append(time.monotonic()), real(self, shown))
    )
    stories.tell(journal, "ready")
    display, _ = displayed(journal)
    began = time.monotonic()
    stories.tell(journal, "finished", after="ready", pace=0.01)
    eventually(lambda: display.state.run and display.state.run.over)
    time.sleep(0.2)
    assert 1 < len(frames) <= 12 * (time.monotonic() - began) + 2


def test_a_cluster_that_is_over_is_followed_no_longer_each_time_it_is_shown(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transient_magics.panels.display, "_LAST_WORDS_SECONDS", 0.1)
    followed: list[Identity | str] = []

    class Feed(stories.StoryFeed):
        def subscribe(self, cluster: Identity | str, callback: Callable[..., None]) -> Callable[[], None]:
            followed.append(cluster)
            end = super().subscribe(cluster, callback)

            def ended() -> None:
                followed.remove(cluster)
                end()

            return ended

    stories.tell(journal)
    display = Display(stories.StoryCluster(journal), None, feed := Feed(journal))
    for _ in range(2):
        Page(display)
        began = threading.Event()
        feed.call(began.set)
        assert began.wait(60)
        eventually(lambda: not followed)


def test_a_snapshot_that_cannot_be_made_is_not_the_last(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stories.tell(journal, "ready")
    _, page = displayed(journal)
    (panel,) = widgets_of(page)
    view, failed = transient_magics.panels.display.view, threading.Event()

    def fails(*_: object) -> None:
        failed.set()
        raise ValueError("this state cannot be drawn")

    monkeypatch.setattr(transient_magics.panels.display, "view", fails)
    stories.tell(journal, "training", after="ready")
    assert failed.wait(60)
    monkeypatch.setattr(transient_magics.panels.display, "view", view)
    stories.tell(journal, "deleted", after="training")
    eventually(lambda: panel.view["over"])


def test_what_the_page_asks_for_is_done_elsewhere(journal: Path) -> None:
    done_by: list[str] = []

    class Slow(stories.StoryCluster):
        def delete(self, timeout: float | None = 300.0) -> None:
            done_by.append(threading.current_thread().name)
            super().delete()

    stories.tell(journal, "ready")
    cluster = Slow(journal)
    display, _ = displayed(journal, cluster)
    display.ask({"do": "revoke", "worker": "worker-1"})
    display.ask({"do": "delete"})
    display.ask({"do": "format the disk"})
    eventually(lambda: len(cluster.asked) == 2)
    assert sorted(cluster.asked) == [("delete",), ("revoke", "worker-1")]
    assert done_by == ["transient-delete"]


def test_a_failure_is_said_on_the_panel(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transient_magics.panels import widget

    notices: list[str] = []
    monkeypatch.setattr(
        widget.ClusterPanel, "show", lambda self, shown: notices.append(shown["notice"].get("text", ""))
    )

    class Refusing(stories.StoryCluster):
        def revoke(self, worker: str, seconds: float = 0.0) -> None:
            raise ClusterError("worker-1 is not running yet")

    stories.tell(journal, "ready")
    display, _ = displayed(journal, Refusing(journal))
    display.ask({"do": "revoke", "worker": "worker-1"})
    eventually(lambda: "worker-1 is not running yet." in notices)


def test_nothing_is_printed(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stories.tell(journal, "ready")
    display, _ = displayed(journal)
    stories.tell(journal, "deleted", after="ready")
    eventually(lambda: display.state.over)
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_the_page_says_how_often_it_wants_to_draw(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transient_magics.panels import widget

    frames: list[float] = []
    stories.tell(journal, "ready")
    feed, settled = stories.StoryFeed(journal), threading.Event()
    display = Display(stories.StoryCluster(journal), None, feed)
    (panel,) = widgets_of(Page(display))  # those of other tests still beat
    display.ask({"do": "pace", "page": "slow", "seconds": 1.0})
    display.ask({"do": "pace", "page": "odd", "seconds": "soon"})
    feed.call(settled.set)
    assert settled.wait(60)
    began = time.monotonic()
    show = lambda self, shown: frames.append(time.monotonic()) if self is panel else None  # noqa: E731
    monkeypatch.setattr(widget.ClusterPanel, "show", show)
    stories.tell(journal, "finished", after="ready", pace=0.05)
    eventually(lambda: display.state.run and display.state.run.over)
    eventually(lambda: len(frames) > 1)
    drawn = len(frames)
    # Draws are a second apart; that one takes long on a busy machine moves its frame, not the number of them.
    assert drawn <= (time.monotonic() - began) / 1.0 + 2


@pytest.mark.slow
def test_metrics_become_curves_as_they_come(journal: Path) -> None:
    LongStory(0.1, 2, end=time.time()).tell(journal.parent / "long")
    cluster = stories.StoryCluster(journal.parent / "long" / "journal.jsonl", "long")
    _, page = displayed(cluster.path, cluster)
    panel = widgets_of(page)[0]
    eventually(lambda: "worker-1" in panel.curves.get("workers", {}))
    shown = len(panel.curves["time"])
    story = LongStory(0.1, 2, end=time.time())
    with (cluster.directory / "runs" / "run-1" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(story.metrics(story.end, story.end + 60))
    eventually(lambda: len(panel.curves["time"]) > shown + 20)
    assert panel.curves["speed"][-2] == pytest.approx(8.0, rel=0.2)


def test_the_speeds_of_all_runs_that_go_on_are_followed_before_those_of_later_ones_that_are_over(
    tmp_path: Path,
) -> None:
    followed = set[str]()

    def rows(path: Path, _: object) -> Callable[[], None]:
        followed.add(path.parent.name)
        return lambda: followed.discard(path.parent.name)

    run = stories.state_at("training", began=1.0).of(RunState)["run-1"]
    going = [replace(run, name=f"search-{at}", started_at=float(at)) for at in range(10)]
    over = [replace(run, name=f"search-{at}", started_at=float(at), phase="finished") for at in range(10, 30)]
    for each in (*going, *over):
        (tmp_path / "runs" / each.name).mkdir(parents=True)
    beside = Beside(tmp_path, rows, lambda: None)
    beside.follow([*going, *over])
    assert followed == {each.name for each in going}
    beside.follow([*going[:2], *over])
    assert followed == {each.name for each in (*going[:2], *over[-6:])}
    beside.end()
    assert not followed


@pytest.mark.slow
def test_of_runs_beside_the_one_that_is_drawn_the_workers_speeds_come_too(journal: Path) -> None:
    story = LongStory(0.1, 2, end=time.time())
    path = story.tell(journal.parent / "long")
    with path.open("ab") as file:
        begun = [events.WorkDeclared(of="run", work="run-2", spec=TRAIN), TrainStarted(run="run-2", step=0)]
        first = len(path.read_bytes().splitlines()) + 1
        moment = int(story.end * 1e9)
        file.writelines(encode(replace(each, seq=seq, time=moment)) for seq, each in enumerate(begun, first))
    _, page = displayed(path, stories.StoryCluster(path, "long"))
    panel = widgets_of(page)[0]
    eventually(lambda: "worker-1" in panel.curves.get("workers", {}))
    assert panel.speeds == [], "nothing is measured yet"
    shutil.copytree(path.parent / "runs" / "run-1", path.parent / "runs" / "run-2")
    eventually(lambda: panel.speeds)
    (other,) = panel.speeds
    assert (panel.curves["run"], other["run"]) == ("run-1", "run-2")
    assert other["workers"].keys() == panel.curves["workers"].keys()
    assert {*map(len, other["workers"].values()), len(other["time"])} == {len(other["time"])}
    assert 20 < len(other["time"]) <= 120


def test_resizing_is_a_question_first_and_a_mistake_is_said(journal: Path) -> None:
    stories.tell(journal, "ready")
    cluster = stories.StoryCluster(journal)
    display, page = displayed(journal, cluster)
    (panel,) = widgets_of(page)
    display.ask({"do": "resize", "spec": "k80x6"})
    eventually(lambda: panel.view.get("question", {}).get("text") == "Change to k80x6 for $1.68 per hour, not $1.17?")
    assert cluster.asked == []
    display.ask({"do": "resize", "spec": "k80x6", "agreed": True})
    eventually(lambda: cluster.asked == [("resize", "k80x6")])
    assert panel.view["question"] == {}
    display.ask({"do": "resize", "spec": "k81"})
    eventually(lambda: "k80" in panel.view["notice"].get("text", ""))


def test_a_log_is_brought_as_plain_text(journal: Path) -> None:
    class Talkative(stories.StoryCluster):
        def logs(self, worker: str, lines: int = 200) -> str:
            return "\x1b[31mred\x1b[0m\n" + "x" * 10**6 + "\n" + "y\n" * 10**5

    stories.tell(journal, "training")
    display, page = displayed(journal, Talkative(journal))
    (panel,) = widgets_of(page)
    display.ask({"do": "logs", "worker": "worker-1"})
    eventually(lambda: panel.log)
    assert panel.log["worker"] == "worker-1"
    assert panel.log["text"] == "\n".join(["y"] * 200)


def test_how_the_run_ends_is_said_while_it_goes_on(journal: Path) -> None:
    asked: list[tuple[str, str]] = []
    answer = threading.Event()

    def forecasts(cluster: str, run: str) -> str:
        asked.append((cluster, run))
        answer.wait(120)
        return "ends about 14:32 (14:20 to 14:55), for $0.610 ($0.553 to $0.704)"

    stories.tell(journal, "ready")
    display = Display(stories.StoryCluster(journal), None, stories.StoryFeed(journal), forecasts)
    page = Page(display)
    (panel,) = widgets_of(page)
    stories.tell(journal, "short", after="ready", pace=0.01)
    eventually(lambda: display.state.revocations == 1)  # though nobody has answered yet
    eventually(lambda: asked == [("k80x4", "run-1")])
    eventually(lambda: panel.view["training"] and panel.view["training"]["forecast"] == "")
    answer.set()
    eventually(lambda: panel.view["training"]["forecast"].startswith("ends about 14:32"))
    shown = display.bundle()
    assert "ends about 14:32 (14:20 to 14:55)" in shown["text/html"]
    assert "run-1  ends about 14:32" in shown["text/plain"]
    assert "this run $" in shown["text/plain"]
    assert len(asked) == 1  # however much happens
    stories.tell(journal, "finished", after="short")
    eventually(lambda: panel.view["training"]["forecast"] == "")
    assert "ends about" not in display.bundle()["text/plain"]


def test_other_workers_are_a_reason_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "_YOUNG_SECONDS", 0.0)
    asked: list[str] = []
    told: list[int] = []

    def forecasts(cluster: str, run: str) -> str:
        asked.append(run)
        return f"answer {len(asked)}"

    one = Outlook("demo", forecasts, lambda do, *what: do(*what), lambda: told.append(len(asked)))
    before, after = (stories.state_at(chapter, began=0.0).run for chapter in ("training", "short"))
    for answers, run in ((1, before), (1, before), (2, after), (2, after)):
        one.follow(run)
        eventually(lambda answers=answers: len(told) == answers)
    assert asked == ["run-1", "run-1"]
    assert one.of(after) == "answer 2"
    assert after
    assert one.of(replace(after, step=after.train_steps)) == "", "its steps are made, it is being evaluated"
    assert one.of(stories.state_at("finished", began=0.0).run) == ""
