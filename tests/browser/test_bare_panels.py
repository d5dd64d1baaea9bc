"""What panels draw of what they are sent, without a JupyterLab around them: holes, limits, lost kernels, many VMs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.panels import stories
from tests.panels.long_story import LongStory
from transient_magics.journal import ClusterState, RunSeries, bill, kept
from transient_magics.panels import view
from transient_magics.panels.offer import FIRST, menu, offer
from transient_magics.panels.snapshot.contract import WorkLine
from transient_magics.panels.snapshot.curves import curves
from transient_magics.panels.snapshot.view import shown_run

from .bare import asked, bare
from .test_training_panel import serious_findings

pytestmark = pytest.mark.browser

DRAWN = """figure => {
    const canvas = figure.querySelector("canvas"), pen = canvas.getContext("2d");
    const { data } = pen.getImageData(0, 0, canvas.width, canvas.height), blue = [];
    for (let x = 0; x < canvas.width; x += 1) {
        blue.push(false);
        for (let y = 0; y < canvas.height; y += 1) {
            const at = 4 * (y * canvas.width + x);
            blue[x] ||= data[at + 3] > 128 && data[at + 2] > data[at] + 60;
        }
    }
    return blue;
}"""
"""Of each column of pixels, whether there is something blue."""

SMALL = """() => [...document.querySelectorAll(".transient-panel :is(button, select, input[type=search])")]
    .filter(node => node.checkVisibility() && node.getBoundingClientRect().height < 24).map(node => node.outerHTML)"""
CONTRAST = """() => {
    const panel = document.querySelector(".transient-panel"), pen = document.createElement("canvas").getContext("2d");
    const probe = panel.appendChild(document.createElement("i"));
    const ground = getComputedStyle(panel).backgroundColor;
    const light = name => {
        probe.style.color = `var(--${name})`;
        for (const colour of [ground, getComputedStyle(probe).color]) {
            pen.fillStyle = colour;
            pen.fillRect(0, 0, 1, 1);
        }
        const parts = [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const behind = light("ground");
    return Object.fromEntries(["good", "busy", "warn", "bad", "quiet", "edge", "faint", "text"].map(name => {
        const [low, high] = [light(name), behind].sort((one, other) => one - other);
        return [name, (high + 0.05) / (low + 0.05)];
    }));
}"""
"""How far each colour of the panel stands out from its ground, as WCAG 2.2 counts it."""


def sent(state: ClusterState, now: float, run: str | None = None, series: RunSeries | None = None) -> dict[str, Any]:
    """What a cluster's panel is sent."""
    shown = shown_run(state, run)
    drawn = curves(state, shown, series) if shown else {}
    return {"view": view(state, bill(state, now), now, run), "curves": drawn, "log": {}}


def long_story(
    folder: Path, workers: int, hole: tuple[float, float] = (0, 0), hours: float = 2
) -> tuple[ClusterState, float, RunSeries]:
    """So many hours of so many workers; of the time between the two shares of `hole` nothing was measured."""
    story = LongStory(hours, workers, end=time.time() // 600 * 600 - 300)  # no mark is near its end
    state = kept(story.tell(folder, metrics_every=20)).read()
    begin, end = (1e9 * (story.began + share * 3600 * hours) for share in hole)
    rows = map(json.loads, (folder / "runs" / "run-1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    series = RunSeries()
    series.add(row for row in rows if not begin <= row["time"] <= end)
    return state, story.end, series


def test_a_run_is_drawn_with_its_holes_and_of_many_workers_the_median_and_the_range(
    chrome: Browser, tmp_path: Path
) -> None:
    state, now, series = long_story(tmp_path, 12, (0.4, 0.6))
    with bare(chrome, "cluster", sent(state, now, "run-1", series)) as page:
        loss = page.get_by_role("group", name="loss")
        blue = loss.evaluate(DRAWN)
        first, last = blue.index(True), len(blue) - blue[::-1].index(True)
        hole = [blue[first + round(share * (last - first))] for share in (0.3, 0.45, 0.5, 0.55, 0.7)]
        assert hole == [True, False, False, False, True]
        batch = page.get_by_role("group", name="mini-batch")
        expect(batch).to_contain_text("median and range of 12 workers")
        batch.focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")  # the very last point is of the whole run
        expect(batch.locator(".transient-readout")).to_contain_text("median 28 · 24 (worker-")


def test_a_panel_whose_kernel_is_gone_stands_still_and_says_when_it_was_seen_last(chrome: Browser) -> None:
    state = stories.state_at("short", began=time.time() - 60)
    now = state.recent[-1].at
    with bare(chrome, "cluster", sent(state, now)) as page:
        facts = page.get_by_role("region", name="Cost").locator(".transient-facts")
        event = {"at": now, "clock": "", "text": "twice the same", "tone": "", "family": "VMs"}
        for _ in range(3):
            page.evaluate("event => model.set('view', { ...model.values.view, events: [event, event] })", event)
            page.evaluate("() => new Promise(requestAnimationFrame)")
        expect(page.get_by_role("listitem")).to_have_count(2)
        page.evaluate("() => { for (const act of model.heard['comm:close']) act(); }")
        expect(page.locator(".transient-head .transient-state")).to_contain_text(f", last seen {event_clock(now)}")
        cost = facts.inner_text()
        page.wait_for_timeout(1500)
        assert facts.inner_text() == cost
        assert serious_findings(page) == [], "what is old is read as well as what is new"
        assert page.evaluate("failures") == []


def test_what_was_refused_can_be_asked_for_again(chrome: Browser) -> None:
    state = stories.state_at("training", began=time.time() - 60)
    with bare(chrome, "cluster", sent(state, state.recent[-1].at)) as page:
        revoke = page.get_by_role("button", name="Revoke worker-1")
        say = "shown => model.set('view', { ...model.values.view, received: model.sent.at(-1).asked, notice: shown })"
        for _ in range(2):
            revoke.click()
            expect(revoke).to_be_disabled()
            page.evaluate("model.set('view', { ...model.values.view })")
            page.evaluate("() => new Promise(requestAnimationFrame)")
            expect(revoke).to_be_disabled()  # what it shows was said of the click before
            page.evaluate(say, {"text": "worker-1 will be revoked.", "tone": "busy"})
            expect(page.get_by_text("worker-1 will be revoked.")).to_be_visible()
            expect(revoke).to_be_disabled()
            page.evaluate(say, {"text": "worker-1 is not running yet.", "tone": "bad"})
            expect(page.get_by_text("worker-1 is not running yet.")).to_be_visible()
            expect(revoke).to_be_enabled()


def test_bars_of_where_a_steps_time_goes_are_all_by_the_scale_of_now(chrome: Browser, tmp_path: Path) -> None:
    state, now, series = long_story(tmp_path, 1, hours=0.2)
    whole = sent(state, now, "run-1", series)

    def measured(first: float, second: float) -> dict[str, Any]:
        bars = [{"worker": f"worker-{number}", "step": f"{seconds:g} s", "words": "", "parts": [0.0, 0.0, seconds]}
                for number, seconds in enumerate((first, second))]  # fmt: skip
        return {
            **whole["curves"],
            "split": {"names": ["input", "pull", "compute"], "words": "", "more": 0, "bars": bars},
        }

    widths = """() => [...document.querySelectorAll(".transient-split-bar")].map(bar =>
        Math.round(100 * bar.lastElementChild.getBoundingClientRect().width / bar.getBoundingClientRect().width))"""
    with bare(chrome, "cluster", {**whole, "curves": measured(0.4, 8.0)}) as page:  # the first step of a new worker
        page.wait_for_function(f"() => String(({widths})()) === '5,100'")
        page.evaluate("curves => model.set('curves', curves)", measured(0.4, 0.5))
        page.wait_for_function(f"() => String(({widths})()) === '80,100'")


def line(name: str, phase: str, words: str, step: int = 0, steps: int = 0, *, stoppable: bool = True) -> WorkLine:
    """A line of work as the kernel sends it."""
    return {"name": name, "phase": phase, "words": words, "step": step, "steps": steps, "stoppable": stoppable}


def test_runs_beside_the_one_that_is_drawn_are_listed_with_how_far_they_are(chrome: Browser) -> None:
    state = stories.state_at("short", began=time.time() - 3600)  # by a clock that is an hour behind the page's
    whole = sent(state, state.recent[-1].at)
    beside = [
        line("run-2", "running", "step 3 of 4", step=3, steps=4),
        line("run-3", "waiting", "waits for the end of run-1 or run-2"),
    ]
    cost = {**whole["view"]["cost"], "lines_words": "Of it: run-1 $0.420, idle $0.210."}
    jobs = [
        line("job-1", "running", "running on worker-1"),
        line("", "declared", "and 3 more jobs", stoppable=False),
    ]
    dasks = [line("dask-1", "running", "Dask on 4 workers")]
    work = [
        {"kind": "job", "title": "Jobs of this cluster", "lines": jobs},
        {"kind": "dask", "title": "Dask clusters of this cluster", "lines": dasks},
    ]
    training = {**whole["view"]["training"], "data": "2.1 GB in 1,011 blocks"}
    more = {"beside": beside, "cost": cost, "work": work, "training": training}
    with bare(chrome, "cluster", {**whole, "view": {**whole["view"], **more}}) as page:
        listed = page.get_by_role("list", name="Jobs of this cluster").get_by_role("listitem")
        expect(listed.locator(".transient-run-words")).to_have_text(["running on worker-1", "and 3 more jobs"])
        expect(listed.get_by_role("button", name="Stop")).to_have_count(1)
        listed = page.get_by_role("list", name="Dask clusters of this cluster").get_by_role("listitem")
        expect(listed.locator(".transient-run-words")).to_have_text(["Dask on 4 workers"])
        listed.get_by_role("button", name="Stop").click()
        expect(listed).to_contain_text("Stop dask-1?")
        listed.get_by_role("button", name="Stop").click()
        assert asked(page) == [{"do": "stop", "name": "dask-1"}]
        runs = page.get_by_role("list", name="Other runs of this cluster").get_by_role("listitem")
        expect(page.locator(".transient-axis")).to_contain_text("now")
        words = ["step 3 of 4", "waits for the end of run-1 or run-2"]
        expect(runs.locator(".transient-run-words")).to_have_text(words)
        expect(page.get_by_role("progressbar", name="Training steps of run-2")).to_have_attribute("aria-valuenow", "3")
        expect(page.get_by_role("progressbar", name="Training steps of run-3")).to_have_count(0)
        expect(page.get_by_role("region", name="Cost")).to_contain_text("Of it: run-1 $0.420, idle $0.210.")
        data = page.get_by_role("note", name="Data")
        expect(data).to_have_text("data: 2.1 GB in 1,011 blocks")
        page.evaluate(
            "() => model.set('view', { ...model.values.view, training: {...model.values.view.training, data: ''} })"
        )
        expect(data).to_have_count(0)
        page.evaluate("() => model.set('view', { ...model.values.view, beside: [] })")
        expect(runs).to_have_count(0)


def test_workers_of_every_run_have_their_speeds_on_their_lanes(chrome: Browser, tmp_path: Path) -> None:
    state, now, series = long_story(tmp_path, 4)
    whole = sent(state, now, None, series)
    names = [vm["name"] for vm in whole["view"]["vms"] if vm["name"] in whole["curves"]["workers"]]
    other = whole["curves"]["workers"].pop(names[0])["speed"]  # it trains in another run
    speeds = [{"run": "run-2", "width": whole["curves"]["width"], "time": whole["curves"]["time"],
               "workers": {names[0]: other}}]  # fmt: skip
    with bare(chrome, "cluster", whole) as page:
        line = page.get_by_role("slider", name=f"life of {names[0]}").locator(".transient-speed")
        assert line.get_attribute("d") == "M0 0"
        page.evaluate("speeds => model.set('speeds', speeds)", speeds)
        expect(line).to_have_attribute("d", re.compile(r"^M[\d.]+ [\d.]+(L[\d.]+ [\d.]+)+"))
        expect(page.get_by_role("note", name="What the bars mean")).to_contain_text("steps per second")
        page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / "lanes.png")


def test_the_lanes_say_who_was_where_and_when(chrome: Browser, tmp_path: Path) -> None:
    state, now, series = long_story(tmp_path, 8, hours=5)
    with bare(chrome, "cluster", sent(state, now, None, series)) as page:
        lane = page.get_by_role("slider", name="life of worker-8")
        expect(lane.locator(".transient-speed")).to_have_attribute("d", re.compile("L"))
        assert "M0 0" not in (lane.locator(".transient-before [data-state=revoked]").get_attribute("d") or "M0 0")
        page.get_by_role("slider", name="life of ps-0").focus()
        page.keyboard.press("ArrowDown")  # the first worker's place, which worker-8 has now
        tip = page.get_by_role("tooltip")
        expect(tip).to_contain_text("worker-8 running from")
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("worker-0 was revoked at")
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("worker-0 under notice from")
        expect(lane).to_have_attribute("aria-valuetext", re.compile("worker-0 under notice from"))
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
        lane.hover(position={"x": 20, "y": 12})
        expect(tip).to_contain_text("worker-0 running from")
        assert (
            page.evaluate("(node => node.scrollHeight - node.clientHeight)(document.querySelector('.transient-lanes'))")
            <= 0
        )


def test_events_are_filtered_by_kind_and_by_words(chrome: Browser) -> None:
    state = stories.state_at("short", began=time.time() // 86400 * 86400 + 43200)  # no night is near
    with bare(chrome, "cluster", sent(state, state.recent[-1].at)) as page:
        told = page.get_by_role("listitem")
        expect(told.filter(has_text="saved a checkpoint")).to_have_count(1)
        page.get_by_label("Which events").select_option("trouble")
        expect(told).to_have_count(2)
        expect(told.first).to_contain_text("worker-3 was revoked")
        page.get_by_label("Which events").select_option("")
        page.get_by_label("Only events with these words").fill("joined")
        expect(told).to_have_count(1)
        moment = told.get_by_role("time")
        expect(moment).to_have_text(re.compile(r"^\d\d:\d\d"))
        page.evaluate("() => model.set('view', { ...model.values.view, at: model.values.view.at + 86400 })")
        expect(moment).to_have_text(re.compile(r"^\d+ \w+ \d\d:\d\d"))  # a day later with its day


@pytest.mark.parametrize(("workers", "named"), [(12, ["lowest to highest", "median"]), (4, ["worker-0", "worker-3"])])
def test_the_downloaded_picture_says_what_its_lines_and_marks_are(
    chrome: Browser, tmp_path: Path, workers: int, named: list[str]
) -> None:
    state, now, series = long_story(tmp_path, workers)
    written = """() => { globalThis.written = []; const write = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            written.push(text); return write.call(this, text, ...place); }; }"""
    with bare(chrome, "cluster", sent(state, now, "run-1", series)) as page:
        page.evaluate(written)
        with page.expect_download() as picture:
            page.get_by_role("button", name="Download the charts as PNG").click()
        picture.value.save_as(Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"picture-{workers}.png")
        said = page.evaluate("() => written")
        assert {"run-1: loss", "slow to expected", *named} <= set(said)
        assert "▲ checkpoint" in said[-1]


def test_curves_that_cannot_be_put_together_are_named_and_take_nothing_else_with_them(chrome: Browser) -> None:
    state = stories.state_at("short", began=time.time() - 60)
    whole = sent(state, state.recent[-1].at)
    with bare(chrome, "cluster", whole) as page:
        page.evaluate("() => model.set('tail', {keep: 1, time: 5})")
        expect(page.get_by_role("alert").filter(has_text="could not be drawn in full: curves (")).to_be_visible()
        page.evaluate("view => model.set('view', view)", {**whole["view"], "about": "and on it goes"})
        expect(page.locator(".transient-about").first).to_have_text("and on it goes")
        page.evaluate("() => model.set('tail', {})")
        expect(page.get_by_role("alert").filter(has_text="could not be drawn")).to_have_count(0)


def test_what_cannot_be_drawn_is_named_and_takes_nothing_else_with_it(chrome: Browser) -> None:
    state = stories.state_at("short", began=time.time() - 60)
    whole = sent(state, state.recent[-1].at)
    with bare(chrome, "cluster", whole) as page:
        alert = page.get_by_role("alert").filter(has_text="kernel")
        broken = {**whole["view"], "vms": None, "cost": {"total": None}, "version": 2, "about": "and on it goes"}
        page.evaluate("view => model.set('view', view)", broken)
        expect(alert).to_contain_text("This page draws version 1 of the panels, its kernel sends version 2")
        expect(alert).to_contain_text("could not be drawn in full: training (")
        expect(alert).to_contain_text("VMs (")
        expect(page.get_by_text("and on it goes")).to_be_visible()
        assert "NaN" not in page.inner_text("body")
        page.wait_for_timeout(1200)
        expect(alert).to_contain_text("VMs (")
        page.evaluate("view => model.set('view', view)", whole["view"])
        expect(alert).to_have_count(0)
        expect(page.get_by_role("slider", name="life of worker-0")).to_be_visible()
        assert page.evaluate("failures") == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_vm_of_a_large_cluster_is_within_reach(chrome: Browser, theme: str) -> None:
    state = stories.state_at("training", stories.declaration(count=64), began=time.time() - 60)
    with bare(chrome, "cluster", sent(state, state.recent[-1].at), theme=theme, width=450) as page:
        strip = page.get_by_role("group", name="All VMs")
        expect(strip).to_contain_text("64 training, 1 serving")
        page.evaluate(
            "() => model.set('view', { ...model.values.view, vms: model.values.view.vms.map((vm, at) =>"
            " vm.role == 'worker' ? { ...vm, words: `training search-${at} and search-${100 + at}` } : vm) })"
        )
        page.evaluate("() => new Promise(requestAnimationFrame)")
        expect(strip).to_have_text(re.compile("^64 training, 1 serving"))  # and no name of any trial
        lanes = page.get_by_role("slider", name="life of")
        expect(lanes).to_have_count(24)
        strip.get_by_role("button", name="Show all 65 lanes").click()
        expect(lanes).to_have_count(65)
        expect(page.get_by_role("row", name="worker-63")).to_contain_text("us-west1-b")
        expect(page.get_by_label("What the bars mean")).to_contain_text("under notice")
        cut = "(axis => axis.scrollWidth - axis.clientWidth)(document.querySelector('.transient-axis'))"
        assert page.evaluate(cut) <= 0, "since when is read to its last digit"
        small = page.evaluate(SMALL)
        assert small == [], "what is pressed is 24 pixels high"
        dull = page.evaluate(CONTRAST)
        assert min(dull.values()) >= 3, dull


def test_a_long_refusal_leaves_the_lanes_their_width(chrome: Browser) -> None:
    state = stories.state_at("training", began=time.time() - 60)
    values = sent(state, state.recent[-1].at)
    refused = "refused: The zone has no capacity for this VM now. " * 4
    values["view"]["vms"] = [
        {**vm, "words": refused} if vm["name"] == "worker-1" else vm for vm in values["view"]["vms"]
    ]
    with bare(chrome, "cluster", values, width=1040) as page:
        lane = page.get_by_role("slider", name="life of worker-1").bounding_box()
        assert lane
        assert lane["width"] > 300
        assert page.get_by_title(refused).count() == 1


def test_what_is_offered_stands_beside_its_price_and_not_on_it(chrome: Browser) -> None:
    with bare(chrome, "declare", {"menu": menu(), "choices": dict(FIRST), "offer": offer(FIRST)}, width=900) as page:
        widths = "nodes => nodes.map(node => node.getBoundingClientRect()).map(box => [box.left, box.right])"
        (_, right), (left, _) = page.locator(".transient-offer, .transient-facts").evaluate_all(widths)
        assert right < left


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_machines_and_disks_are_chosen_with_keys_and_the_price_follows(
    chrome: Browser, theme: str, tmp_path: Path
) -> None:
    first = {"groups": [{"gpu": "t4", "count": "2", "zone": "us-central1-a"}]}
    with bare(
        chrome, "declare", {"menu": menu(), "choices": first, "offer": offer(first)}, theme=theme, width=900
    ) as page:
        asked = 0

        def answered() -> Mapping[str, Any]:
            """What the kernel answers to what was chosen last, once that was sent."""
            nonlocal asked
            page.wait_for_function("count => model.sent.length > count", arg=asked)
            page.wait_for_timeout(300)
            asked = page.evaluate("model.sent.length")
            last = page.evaluate("model.sent[model.sent.length - 1]")
            page.evaluate("made => model.set('offer', made)", {**offer(last["choices"]), "asked": last["asked"]})
            return last["choices"]

        price = page.locator(".transient-facts").inner_text()
        expect(page.get_by_label("boot disks")).to_be_hidden()
        page.get_by_text("Machines and disks", exact=True).focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        expect(page.get_by_label("workers' machine type")).to_be_focused()
        page.keyboard.type("n1-standard-16")
        page.keyboard.press("Tab")
        page.keyboard.type("200GB:ssd")
        page.keyboard.press("Tab")
        expect(page.get_by_label("Zone of the parameter servers")).to_be_focused()
        page.keyboard.type("us-west1-b")
        assert answered()["ps_zone"] == "us-west1-b"
        expect(page.locator(".transient-line")).to_have_text(
            "%transient_cluster t4x2@us-central1-a --machine-type n1-standard-16 --disk 200GB:ssd --ps-zone us-west1-b"
        )
        assert page.locator(".transient-facts").inner_text() != price
        expect(page.get_by_text("Traffic between us-central1-a")).to_be_visible()
        page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"declare-{theme}.png", full_page=True)
        assert page.evaluate(SMALL) == []
        page.get_by_label("It is for").select_option("jobs")
        assert answered()["ps_zone"] == "", "a cluster for jobs has no parameter servers"
        expect(page.get_by_label("Zone of the parameter servers")).to_be_hidden()
        assert page.evaluate("failures") == []


def event_clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def search(**more: Any) -> Mapping[str, Any]:
    """What is sent of a search that found two clusters."""
    front = [
        {"hours": hours, "hours_interval": [0.9 * hours, 1.1 * hours], "dollars": dollars, "best": dollars == 2,
         "dollars_interval": [0.9 * dollars, 1.1 * dollars], "knee": False, "line": f"line {dollars}",
         "words": f"line {dollars}: {hours} h"}
        for hours, dollars in ((1, 8), (6, 2))
    ]  # fmt: skip
    rows = [{"cells": ["1 h", "8", point["line"]], "line": point["line"], "best": point["best"]} for point in front]
    return {
        "title": "64,000 steps", "about": "", "points": [], "front": front, "header": ["Time", "Cost", "Line"],
        "rows": rows, "reach": {"hours": [1, 6], "dollars": [2, 8]}, "notes": [], **more,
    }  # fmt: skip


def test_a_plan_keeps_the_limits_it_was_asked_with_and_takes_the_latest_answer(chrome: Browser) -> None:
    choices = {"train_steps": 64_000, "max_hours": 3.0, "max_cost": None, "objective": "knee",
               "revocations": "published"}  # fmt: skip
    with bare(chrome, "plan", {"view": search(), "choices": choices}) as page:
        expect(page.get_by_text("at most 3 h")).to_be_visible()
        expect(page.get_by_text("any cost")).to_be_visible()
        page.get_by_label("revocations").select_option("none")
        page.wait_for_function("() => model.sent.length == 1")
        assert page.evaluate("model.sent[0].choices") == {**choices, "revocations": "none"}
        for number, title in (0, "of an older question"), (1, "of this question"):
            page.evaluate("view => model.set('view', view)", search(title=title, asked=number))
            expect(page.get_by_text("Searching")).to_have_count(1 - number)
        expect(page.get_by_text("of this question")).to_be_visible()


def test_a_plan_says_what_its_signs_mean_and_its_table_does_not_stick_out(chrome: Browser) -> None:
    choices = {"train_steps": 64_000, "max_hours": None, "max_cost": None, "objective": "knee", "revocations": "none"}
    legend = [("good", "●", "the knee"), ("quiet", "○", "another is faster and cheaper")]
    long = "%transient_cluster k80x3+p100x8 --zone europe-west1-b --ps 4"
    view = search(
        legend=legend, rows=[{"cells": ["7.84 min", "$1.86", long], "line": long, "best": True, "knee": True}]
    )
    with bare(chrome, "plan", {"view": view, "choices": choices}, width=500) as page:
        assert page.locator(".transient-plan-legend").inner_text().split("\n") == [
            "● the knee", "○ another is faster and cheaper",
        ]  # fmt: skip
        expect(page.get_by_role("button", name=long)).to_be_attached()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        wide = "(wide => wide.scrollWidth - wide.clientWidth)(document.querySelector('.transient-wide'))"
        assert page.evaluate(wide) == 0, "a line that is long has two lines"
        page.evaluate("view => model.set('view', view)", {key: view[key] for key in view if key != "legend"})
        expect(page.locator(".transient-plan-legend")).to_be_empty()
        assert page.evaluate("failures") == []
