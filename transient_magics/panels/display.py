"""The life of a panel in a notebook: shown once per cell, updated, and stored as a static picture.

There is one `Display` per cluster, and one per run that is shown alone. The follower's thread calls
it with new states and metrics. It draws at most ten snapshots a second, fewer if the page is
slower, and one every few seconds if nothing happens, because any message may be lost. Actions of
the page are only accepted here and carried out by threads of their own, because they take time.
Nothing is printed.

In JupyterLab the page puts the panel before its static picture (`in_place`), and the notebook
stores the picture alone: a stored view of a widget is an error line when the notebook is opened
again, and hides the picture. Other front ends get both, and show the view.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..client import text
from ..client.folders import Identity
from ..errors import TransientError
from ..journal import Bill, ClusterState, Event, RunState, bill
from ..protocol import layout
from ..spec import ClusterSpec
from .actions import Action, ActionCluster, find_action
from .feeds import Beside, Forecasts, Measured, Outlook, no_forecast
from .sections import Sections, pace, sections
from .snapshot.contract import Split
from .snapshot.curves import curves, split_lines
from .snapshot.view import shown_run, view
from .static.markup import picture
from .static.panel import html

if TYPE_CHECKING:
    from .widget import ClusterPanel, Panel

log = logging.getLogger(__name__)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_FRAME_SECONDS = 0.1
_SLOWEST_FRAME_SECONDS = 2.0
_CURVES_SECONDS = 1.0
_HEARTBEAT_SECONDS = 5.0
_TWIN_SECONDS = 5.0
_BEHIND_PANEL_SECONDS = 20.0
_PAGE_SECONDS = 3.0  # within which an open page has sent a message
_NOTICE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 5.0  # for the metrics of a cluster that is gone already
_PAGES = 8


class Followed(ActionCluster, Protocol):
    """The part of a cluster's handle that a display uses."""

    name: str

    @property
    def identity(self) -> Identity:
        """The identity of the cluster."""
        ...

    @property
    def directory(self) -> Path:
        """The folder of the cluster."""
        ...


class Feed(Protocol):
    """The part of the follower that a display uses."""

    def subscribe(
        self, cluster: Identity | str, callback: Callable[[ClusterState, list[Event]], None]
    ) -> Callable[[], None]:
        """Call `callback` with states and new events; return a function that ends that."""
        ...

    def rows(
        self, path: Path, callback: Callable[[list[dict[str, Any]]], None]
    ) -> Callable[[], None]:
        """Call `callback` with new rows of a metrics file; return a function that ends that."""
        ...

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a function on the follower's thread."""
        ...

    def every(self, seconds: float, function: Callable[[], Any]) -> Callable[[], None]:
        """Call a function periodically in the follower's thread; return one that ends that."""
        ...

    def at_end(self, function: Callable[[], Any]) -> Callable[[], None]:
        """Call a function in the follower's thread at exit; return one that cancels it."""
        ...


def latest_state(cluster: Followed) -> ClusterState:
    """Return the cluster's state; before its controller begins the journal, its declaration."""
    state = cluster.state
    if state.spec is None:
        try:
            spec = ClusterSpec.from_dict(
                json.loads((cluster.directory / layout.SPEC).read_text(encoding="utf-8"))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return replace(state, name=cluster.name)
        return replace(state, name=spec.name, spec=spec)
    return state


def live_view(panel: Panel) -> dict[str, Any]:
    """Return the part of a MIME bundle for a live panel."""
    return {WIDGET_VIEW: {"version_major": 2, "version_minor": 0, "model_id": panel.model_id}}


class Display:
    """The panel of one cluster, or of one of its runs, in this process."""

    def __init__(
        self, cluster: Followed, run: str | None, feed: Feed, forecasts: Forecasts = no_forecast
    ) -> None:
        self.display_id = f"transient-{uuid.uuid4().hex[:12]}"
        self._cluster = cluster
        self._run = run
        self._feed = feed
        self._state = latest_state(cluster)
        self._notice: dict[str, str] = {}
        self._question: dict[str, str] = {}
        drawn = partial(feed.call, self._draw_curves_soon)
        self._measured = Measured(cluster.directory, feed.rows, drawn)
        self._beside = Beside(cluster.directory, feed.rows, drawn)
        self._outlook = Outlook(cluster.name, forecasts, feed.call, self._draw_soon)
        self._curves_of: object = None
        self._speeds_of: object = ()
        self._paces: dict[str, float] = {}
        self._panel: ClusterPanel | None = None
        self._publish: Callable[[dict[str, Any]], None] | None = None
        self._page_seen = self._in_place = False
        self._drawn_at = self._curves_at = self._twin_at = self._shown_at = 0.0
        self._twin_of = self._state
        """The state that the stored picture shows."""
        self._received = ""
        self._drawing_later = self._curves_later = self._ending = False
        self._ends: list[Callable[[], None]] = []

    @property
    def state(self) -> ClusterState:
        """The state that was shown last."""
        return self._state

    def bundle(self, *, live: bool = True) -> dict[str, Any]:
        """Return the MIME bundle: text, a static picture, and with `live` the live view.

        A panel in place (`in_place`) has no view in the bundle, because the page makes it.
        """
        now = time.time()
        account = bill(self._state, now)
        snapshot = view(self._state, account, now, self._run, self._forecast)
        page_html = html(snapshot, self._curves(), self._sections(now))
        data: dict[str, Any] = {"text/plain": self._text(account, now), "text/html": page_html}
        panel = None
        if live or self._in_place:
            panel = self._live_panel(snapshot)
        if panel:
            # The picture names the place of its panel, so that the page can replace it.
            data["text/html"] = picture(page_html, panel.place)
        if panel and not self._in_place:
            data |= live_view(panel)
        return data

    def show(
        self, publish: Callable[..., None], *, page: bool = False, in_place: bool = False
    ) -> None:
        """Put the panel into the running cell.

        Parameters
        ----------
        publish
            `publish(bundle, update=...)` sends a bundle under the display_id.
        page
            Whether a page will draw it. A page cannot send that while a cell keeps the kernel busy.
        in_place
            Whether the page puts the panel before the picture.
        """
        self._page_seen |= page
        self._in_place = in_place
        self._state = latest_state(self._cluster)
        publish(self.bundle(), update=False)
        self._shown_at = self._twin_at = time.monotonic()
        self._twin_of = self._state
        self._publish = lambda data: publish(data, update=True)
        self._feed.call(self._start)

    def _text(self, account: Bill, now: float) -> str:
        if self._run and (run := self._state.of(RunState).get(self._run)):
            if self._forecast:
                ends = f", {self._forecast}"
            else:
                ends = ""
            spent = text.work_cost(account.work[run.name])
            line = (
                f"{run.name} on {self._state.name}: "
                f"{text.work_words(run, self._state)}{spent}{ends}"
            )
            return "\n".join([line, *split_lines(self._split())])
        run = shown_run(self._state, None)
        if run and self._forecast:
            ends = f"{run.name}  {self._forecast}"
        else:
            ends = ""
        return "\n".join(
            [text.status(self._state, account, now, ends), *split_lines(self._split())]
        )

    def _split(self) -> Split | None:
        return self._curves().get("split")

    @property
    def _forecast(self) -> str:
        return self._outlook.of(shown_run(self._state, self._run))

    def _live_panel(self, shown: Mapping[str, Any]) -> ClusterPanel | None:
        if self._panel is None:
            try:
                from .widget import ClusterPanel
            except ImportError as error:
                # A kernel without ipywidgets still gets the picture.
                log.warning("no live panel: %s", error)
                return None
            now = time.time()
            self._panel = ClusterPanel(shown, self._curves(), self._sections(now), self.ask)
        return self._panel

    def _curves(self) -> Mapping[str, Any]:
        run = shown_run(self._state, self._run)
        if run is None:
            return {}
        series = self._measured.series_of(run.name)
        return curves(self._state, run, series, whole=bool(self._run))

    def _sections(self, now: float) -> Sections:
        if self._run:
            return {}
        return sections(self._state, now)

    # From here on: the follower's thread.

    def _start(self) -> None:
        if not self._ends:
            self._ends = [
                self._feed.subscribe(self._cluster.identity, self._on_state),
                self._feed.every(_HEARTBEAT_SECONDS, self._beat),
                self._feed.at_end(self._store_last),
            ]
            self._follow_run()

    def _follow_run(self) -> None:
        run = shown_run(self._state, self._run)
        self._measured.follow(run)
        if not self._run:
            # The panel of one run has no lanes, which show the speeds of other runs.
            runs = self._state.of(RunState).values()
            others = [other for other in runs if other.started_at and other is not run]
            self._beside.follow(others)
        self._outlook.follow(run)

    def _end(self) -> None:
        for end in self._ends:
            end()
        self._ends.clear()
        # It may be shown again.
        self._ending = False
        self._measured.end()
        self._beside.end()

    def _soon(self, seconds: float, function: Callable[[], None]) -> None:
        """Call `function` once after some seconds, unless the display ends first."""

        def once() -> None:
            cancel()
            if cancel in self._ends:
                self._ends.remove(cancel)
                function()

        cancel = self._feed.every(seconds, once)
        self._ends.append(cancel)

    def _on_state(self, state: ClusterState, new: list[Event]) -> None:
        if state.spec is None:
            return
        # The follower may be behind the state that the panel was shown with. A lower number alone
        # does not mean that: a journal that lost its end uses its numbers again.
        if state.seq < self._state.seq and state.seq < self._cluster.state.seq:
            return
        self._state = state
        # Called later, so that an error while drawing does not end the subscription.
        self._feed.call(self._beat)

    def _beat(self) -> None:
        # The folder of the run may exist by now.
        self._follow_run()
        self._draw_soon()

    def _draw_soon(self) -> None:
        pace = min(self._paces.values(), default=_FRAME_SECONDS)
        wait = pace - (time.monotonic() - self._drawn_at)
        if wait <= 0:
            self._draw()
        elif not self._drawing_later:
            self._drawing_later = True
            self._soon(wait, self._draw_later)

    def _draw_later(self) -> None:
        # If it is not set, the panel was drawn in the meantime.
        if self._drawing_later:
            self._drawing_later = False
            self._draw_soon()

    def _draw(self) -> None:
        now = time.time()
        self._drawn_at = time.monotonic()
        self._drawing_later = False
        shown = view(self._state, bill(self._state, now), now, self._run, self._forecast)
        if self._panel:
            self._panel.show(
                {
                    **shown,
                    "notice": self._notice,
                    "question": self._question,
                    "received": self._received,
                }
            )
            self._draw_curves_soon()
        self._refresh_twin()
        if self._state.over and not self._ending:
            self._ending = True
            self._soon(_LAST_WORDS_SECONDS, self._end)

    def _draw_curves_soon(self) -> None:
        wait = _CURVES_SECONDS * pace(self._state) - (time.monotonic() - self._curves_at)
        if wait <= 0 or self._state.over:
            self._send_curves()
        elif not self._curves_later:
            self._curves_later = True
            self._soon(wait, self._send_curves)

    def _send_curves(self) -> None:
        self._curves_later = False
        run = shown_run(self._state, self._run)
        far = self._measured.newest if self._measured.rows else run and run.step
        marks = run and (
            run.name,
            run.phase,
            run.checkpoints[-1:],
            run.evaluations[-1:],
            self._state.revocations,
        )
        news = (far, marks)
        if self._panel and news != self._curves_of:
            self._curves_of = news
            self._curves_at = time.monotonic()
            self._panel.show_curves(self._curves())
        if self._panel and (newest := self._beside.newest) != self._speeds_of:
            self._speeds_of = newest
            self._curves_at = time.monotonic()
            self._panel.speeds = self._beside.speeds()
        if self._panel:
            snapshots = self._sections(time.time())
            if any(snapshots.values()) or any(self._panel.sections.values()):
                self._curves_at = time.monotonic()
                self._panel.sections = dict(snapshots)

    def _refresh_twin(self) -> None:
        """Store the picture again if it is due.

        In JupyterLab that is at turning points, every `_BEHIND_PANEL_SECONDS`, and at the kernel's
        end. For a page that shows a view of the panel it is at the end of runs, bags and the
        cluster only, because such an update draws the panel again. Without a page (a notebook that
        runs headless) it is every few seconds, and without the view, so that exports have the
        picture. A page that appears later gets the view back (`_resync`).
        """
        turned = self._turning_point(self._state) != self._turning_point(self._twin_of)
        now = time.monotonic()
        if self._in_place:
            old = (
                self._state.seq != self._twin_of.seq
                and now - self._twin_at >= _BEHIND_PANEL_SECONDS
            )
            due = turned or old
        elif self._page_seen:
            due = turned
        else:
            due = turned or now - self._twin_at >= _TWIN_SECONDS
            due = due and (self._state.over or now - self._shown_at >= _PAGE_SECONDS)
        if due:
            self._store_twin()

    def _store_twin(self) -> None:
        self._twin_of = self._state
        self._twin_at = time.monotonic()
        if self._publish:
            stored = self.bundle(live=self._page_seen)
            self._publish(stored)
            if self._in_place and self._panel:
                self._panel.picture = stored

    def _store_last(self) -> None:
        """Store the picture at the end of the kernel, which JupyterLab still receives."""
        if self._in_place:
            self._store_twin()

    def _turning_point(self, state: ClusterState) -> object:
        """Return what must be in the stored picture soon; less if a page draws the panel."""
        runs = [
            (run.name, run.phase, bool(run.metrics))
            for run in state.of(RunState).values()
            if run.over
        ]
        ended = (
            runs,
            [
                work.name
                for work in state.works.values()
                if work.over and not work.trains and not work.takes_workers
            ],
        )
        if self._page_seen:
            return (ended, state.over)
        return (ended, state.phase, state.revocations)

    def _act(self, message: Mapping[str, Any]) -> None:
        asked = find_action(self._cluster, self._run, message)
        self._question = {}
        self._received = str(message.get("asked") or "")[:80]
        if asked is None:
            self._draw()
            return
        self._say(asked.notice, "busy")
        name = f"transient-{message['do']}"
        threading.Thread(target=self._carry_out, args=(asked,), name=name, daemon=True).start()

    def _carry_out(self, asked: Action) -> None:
        try:
            answer = asked.do()
        except TransientError as error:
            self._feed.call(self._say, text.plain(str(error)), "bad")
        else:
            if answer:
                self._feed.call(self._answer, answer)

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if "question" in answer:
            self._question = answer["question"]
            self._draw()
        elif self._panel:
            self._panel.log = answer["log"]

    def _say(self, words: str, tone: str) -> None:
        self._notice = {"text": words, "tone": tone}
        if (
            words and tone == "busy"
        ):  # what was asked for shows in the events soon; a failure stays to be read
            self._soon(_NOTICE_SECONDS, lambda: self._unsay(words))
        self._draw()

    def _unsay(self, words: str) -> None:
        if self._notice.get("text") == words:
            self._notice = {}
            self._draw()

    def _set_pace(self, page: str, seconds: object) -> None:
        """Draw at the pace of the fastest of the latest pages; keep at most `_PAGES` paces."""
        if isinstance(seconds, int | float):
            self._paces.pop(page, None)
            self._paces[page] = min(max(float(seconds), _FRAME_SECONDS), _SLOWEST_FRAME_SECONDS)
            for old in list(self._paces)[:-_PAGES]:
                del self._paces[old]

    def _resync(self) -> None:
        if not self._page_seen:
            self._page_seen = True
            if self._twin_at > self._shown_at and not self._in_place:
                self._store_twin()  # the view was left out of it
            else:
                self._refresh_twin()
        if self._panel:
            self._panel.resend()

    # Any thread.

    def ask(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the page; runs on any thread."""
        action = message.get("do")
        if action == "resync":
            self._feed.call(self._resync)
        elif action == "pace":
            self._feed.call(self._set_pace, str(message.get("page")), message.get("seconds"))
        elif isinstance(action, str):
            self._feed.call(self._act, dict(message))
