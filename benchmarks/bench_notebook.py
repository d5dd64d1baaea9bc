"""What a user of a notebook waits for: magics, notices, and panels.

`magics`: `%load_ext`, the first and the next `%transient_cluster`, in fresh kernels.

`notice`: from the preemption notice (the metadata flips) to the event in the notebook's process: idle, and with busy
cores.

`panels`: the panels in a real JupyterLab and a headless Chromium: how soon, how smoothly, and how large they are.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from _common import ROOT, all_in, median, own_home, parser_of, quantile, run_measures, say, train
from jupyter_client.manager import start_new_kernel
from playwright.sync_api import Page

sys.path.insert(0, str(ROOT))

from tests.browser.lab import Lab, chromium, jupyterlab
from tests.panels import stories
from tests.panels.long_story import LongStory
from transient_magics import client
from transient_magics.client import Cluster, Declaration
from transient_magics.journal import ClusterState, Event, Journal, events
from transient_magics.panels import assets
from transient_magics.protocol.vm_events import TrainCheckpoint, WorkerJoined, WorkerLeft

TIMED = """
import time, sys
def timed(name, line):
    began = time.perf_counter()
    get_ipython().run_line_magic(name, line)
    return 1000 * (time.perf_counter() - began)
print("FIGURES", timed("load_ext", "transient_magics"),
      timed("transient_cluster", "cpu --name {first}"), timed("transient_cluster", "cpu --name {second}"),
      any(name in sys.modules for name in ("google.cloud", "tensorflow")))
"""
SETUP = """\
%load_ext transient_magics
import pathlib, resource
from tests.panels import stories
from transient_magics import panels
path = pathlib.Path({path!r})
cluster, feed = stories.StoryCluster(path, {name!r}), stories.StoryFeed(path)"""
COUNTED = """\
counted = [0, None]
def count(state, new):
    counted[:] = counted[0] + len(new), state
feed.subscribe("k80x4", count)"""
SHOW = "panels.show(cluster, feed=feed)"
PAINTED = """(text) => new Promise((done) => {
    const panels = () => [...document.querySelectorAll(".transient-panel")];
    const seen = () => panels().some((panel) => panel.textContent.includes(text));
    const painted = () => requestAnimationFrame(() => setTimeout(() => done(performance.now())));
    if (seen()) painted();
    else new MutationObserver((_, observer) => { if (seen()) { observer.disconnect(); painted(); } })
        .observe(document.body, { childList: true, subtree: true, characterData: true, attributes: true });
})"""
"""Milliseconds at which a panel with that text has been painted."""
FRAMES = """() => { window.frames_ = []; const tick = (at) => { frames_.push(at); requestAnimationFrame(tick); };
    requestAnimationFrame(tick); }"""
ASK = """async () => {
    const began = performance.now();
    await jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code: "1" }).done;
    return performance.now() - began;
}"""


def magics(options: argparse.Namespace) -> None:
    """Print medians in milliseconds of magics in fresh kernels."""
    kernels = 3 if options.quick else 7
    rows: list[list[float]] = []
    heavy = False
    with own_home():
        for number in range(kernels):
            manager, kernel = start_new_kernel(kernel_name="python3")
            said: list[str] = []
            code = TIMED.format(first=f"a{number}", second=f"b{number}")
            kernel.execute_interactive(
                code, timeout=60, output_hook=lambda message, said=said: said.append(message["content"].get("text", ""))
            )
            figures = next(line for text in said for line in text.splitlines() if line.startswith("FIGURES")).split()
            rows.append([float(value) for value in figures[1:4]])
            heavy = heavy or figures[4] == "True"
            kernel.execute_interactive(
                f"%transient_cluster delete a{number}\n%transient_cluster delete b{number}", timeout=120
            )
            kernel.stop_channels()
            manager.shutdown_kernel(now=True)
    load, first, second = ([row[column] for row in rows] for column in range(3))
    say("%load_ext, median", median(load), "ms", "< 150")
    say("%transient_cluster, first in a kernel, median", median(first), "ms", "< 300")
    say("%transient_cluster, next, median", median(second), "ms", "< 100")
    print("google.cloud or TensorFlow imported in the kernel:", "yes" if heavy else "no")


def delays(cluster: Cluster, revocations: int, *, training: bool, workers: int) -> list[float]:
    """Milliseconds from the request that flips the metadata to the event seen here; each worker lost is replaced."""
    seen: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()

    def watch(_: ClusterState, new: list[Event]) -> None:
        for event in new:
            if isinstance(event, events.VmPreemptionNotice):
                seen.put((event.vm, time.perf_counter()))

    end = client.follower().subscribe(cluster.name, watch)
    time.sleep(1)
    while not seen.empty():
        seen.get()
    found = []
    for _ in range(revocations):
        ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
        began = time.perf_counter()
        cluster.revoke(ready[0])
        _, at = seen.get(timeout=30)
        found.append(1000 * (at - began))
        cluster.follow(
            lambda state: sum(vm.role == "worker" and vm.state == "ready" for vm in state.living) >= workers, 60
        )
        if training:
            all_in(cluster, workers)
    end()
    return found


def notice(options: argparse.Namespace) -> None:
    """Print medians and the 99th percentile in milliseconds, from the notice to the event."""
    with own_home():
        cluster = client.declare(Declaration("cpux3", name="idle", max_workers=6))
        cluster.wait(120)
        idle = delays(cluster, 8 if options.quick else 30, training=False, workers=3)
    say("notice to event, idle: median", quantile(idle, 0.5), "ms", "< 50")
    say("notice to event, idle: longest", max(idle), "ms")
    with own_home():
        cluster, _ = train(3)
        busy = delays(cluster, 6 if options.quick else 20, training=True, workers=3)
    say("notice to event, both cores busy: median", quantile(busy, 0.5), "ms", "< 150")
    say("notice to event, both cores busy: 99th percentile", quantile(busy, 0.99), "ms", "< 400")


def opened(lab: Lab, name: str, *cells: str) -> Page:
    """A page with the first cell run, and the others not yet."""
    lab.notebook(name, *cells)
    page = lab.open(name)
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    lab.command(page, "notebook:run-cell")
    page.locator(".jp-InputPrompt").first.get_by_text("[1]").wait_for(timeout=60_000)
    return page


def first_paint(lab: Lab, page: Page, index: int, text: str) -> float:
    """Milliseconds from running the cell of that number to a panel with `text` on the screen."""
    page.evaluate("(index) => { jupyterapp.shell.currentWidget.content.activeCellIndex = index; }", index)
    began = page.evaluate(
        f"(text) => {{ window.painted = ({PAINTED})(text); const began = performance.now();"
        " jupyterapp.commands.execute('notebook:run-cell'); return began; }",
        text,
    )
    return page.evaluate("window.painted") - began


def heap(page: Page) -> float:
    """The page's JavaScript heap after a collection, in MB: JupyterLab, the notebook and the panel."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return used / 1e6


def said(page: Page, code: str) -> str:
    """What the kernel prints for `code`, aside of the notebook's cells."""
    return page.evaluate(
        """async (code) => {
            const future = jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute({ code });
            let text = "";
            future.onIOPub = (message) => { text += message.content.text ?? ""; };
            await future.done;
            return text;
        }""",
        code,
    )


def sizes() -> None:
    """What the front end weighs."""
    for name in ("cluster.js", "declare.js", "panel.css"):
        say(f"{name}, bundled", assets.path(name).stat().st_size / 1000, "kB")


def paint(lab: Lab, folder: Path) -> None:
    """A panel in a fresh kernel, and the next one."""
    stories.tell(folder / "journal.jsonl", "training")
    page = opened(lab, "paint", SETUP.format(path=str(folder / "journal.jsonl"), name="k80x4"), SHOW, SHOW)
    say("cell to first paint, first panel of a kernel", first_paint(lab, page, 1, "k80x4"), "ms", "< 300")
    page.evaluate("() => document.querySelectorAll('.transient-panel').forEach((panel) => panel.remove())")
    say("cell to first paint, next panel", first_paint(lab, page, 2, "k80x4"), "ms", "< 300")
    lab.close_pages()


def notice_on_screen(lab: Lab, samples: int) -> None:
    """From the VM's own clock, as the agent sees the notice, to the countdown on the screen."""
    page = opened(lab, "notice", "%load_ext transient_magics", "%transient_cluster cpux4 --name pixels")
    lab.run_last(page)
    panel = page.locator(".transient-panel")
    panel.get_by_text("5 of 5 VMs ready").wait_for(timeout=120_000)
    cluster, found = Cluster("pixels"), []
    for _ in range(samples):
        ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
        page.evaluate(
            f"(text) => {{ window.painted = ({PAINTED})(text).then(() => Date.now()); }}", f"{ready[0]} will be"
        )
        cluster.revoke(ready[0])
        seen = page.evaluate("window.painted")
        (noticed,) = [each.noticed for each in cluster.events("vm.preemption_notice") if each.vm == ready[0]]  # type: ignore[attr-defined]
        found.append(seen - noticed / 1e6)
        cluster.follow(lambda state: sum(vm.role == "worker" and vm.state == "ready" for vm in state.living) >= 4, 120)
    say("notice on the VM to its mark on the screen, median", median(found), "ms", "< 250")
    say("notice on the VM to its mark on the screen, worst", max(found), "ms")
    lab.close_pages()
    cluster.delete()


def storm(lab: Lab, folder: Path, seconds: float, rate: int = 1000) -> None:
    """A thousand events a second: what the page draws, how the kernel answers, what the fold has seen."""
    path = folder / "journal.jsonl"
    stories.tell(path, "training")
    page = opened(lab, "storm", f"{SETUP.format(path=str(path), name='k80x4')}\n{COUNTED}\n{SHOW}")
    page.locator(".transient-panel").wait_for()
    page.wait_for_timeout(2000)
    before = heap(page)
    written = [0]

    def write() -> None:
        began, pieces = time.monotonic(), 50
        with Journal(path) as journal:
            for piece in range(int(seconds * pieces)):
                journal.extend([_event(written[0] + number) for number in range(rate // pieces)])
                written[0] += rate // pieces
                time.sleep(max(0.0, began + (piece + 1) / pieces - time.monotonic()))

    writer = threading.Thread(target=write)
    page.evaluate(FRAMES)
    page.wait_for_timeout(200)
    began = page.evaluate("performance.now()")
    writer.start()
    answers = []
    while writer.is_alive():
        answers.append(page.evaluate(ASK))
        page.wait_for_timeout(250)
    writer.join()
    frames = [at for at in page.evaluate("frames_") if at >= began]
    lengths = [after - at for at, after in pairwise(frames)]
    page.wait_for_timeout(1500)
    counted = json.loads(said(page, "import json; print(json.dumps([counted[0], counted[1].seq]))"))
    there = len(path.read_bytes().splitlines())
    say("events per second, written", written[0] / (seconds or 1), "")
    say("frames per second", len(lengths) / (sum(lengths) / 1000), "", "> 30")
    say("longest frame", max(lengths), "ms")
    say("another cell answered, median", median(answers), "ms", "< 100")
    say("another cell answered, 95 %", quantile(answers, 0.95), "ms", "< 100")
    say("events that the fold has not seen", 2 * there - sum(counted), "", "0")
    say("page's heap, before and after", before, f"MB, {heap(page):.0f} MB")
    lab.close_pages()


def _event(number: int) -> Any:
    kinds = [
        lambda: stories.progress(number, 4),
        lambda: WorkerJoined(run="run-1", worker=f"worker-{number % 4}", number=number, active=4),
        lambda: WorkerLeft(run="run-1", worker=f"worker-{number % 4}", number=number - 1, active=3, reason="lost"),
        lambda: TrainCheckpoint(run="run-1", step=number, path=f"checkpoints/model.ckpt-{number}"),
    ]
    return kinds[number % 4]()


def day(lab: Lab, folder: Path, hours: float, watched: float) -> None:
    """A long run that is opened again, and goes on."""
    story = LongStory(hours)
    path = story.tell(folder / "long")
    metrics = folder / "long" / "runs" / "run-1" / "metrics.jsonl"
    say("journal and metrics of the long run", (path.stat().st_size + metrics.stat().st_size) / 1e6, "MB")
    page = opened(lab, "day", SETUP.format(path=str(path), name="long"), SHOW)
    empty = heap(page)
    say(f"{hours:g} h of 8 workers, cell to panel", first_paint(lab, page, 1, "long"), "ms", "< 1000")
    began = time.monotonic()
    page.locator(".transient-lane").last.locator(".transient-speed[d*=L]").wait_for(state="attached")
    say("its curves, all of them after", 1000 * (time.monotonic() - began), "ms")
    first = heap(page)
    kernel = float(said(page, "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)"))
    for second in range(int(watched * 10)):  # at ten times the speed
        moment = story.end + second
        with metrics.open("a", encoding="utf-8") as file:
            file.writelines(story.metrics(moment, moment + 1))
        page.wait_for_timeout(100)
    say("page's heap: notebook alone, with the panel, later", empty, f"MB, {first:.0f} MB, {heap(page):.0f} MB")
    say("the panel's part of it", first - empty, "MB", "< 150")
    grown = float(said(page, "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)")) - kernel
    say("kernel's memory: with the panel, grown since", kernel, f"MB, {grown:.0f} MB")
    lab.close_pages()


def panels(options: argparse.Namespace) -> None:
    """Print how soon, how smoothly and how large panels are."""
    sizes()
    work = Path(tempfile.mkdtemp(prefix="tm-panel-"))
    try:
        with own_home() as home, chromium() as browser:
            for folder in ("lab", "notebooks", "paint", "storm", "day"):
                (work / folder).mkdir()
            with jupyterlab(work / "lab", work / "notebooks", browser, home) as lab:
                paint(lab, work / "paint")
                notice_on_screen(lab, 3 if options.quick else 12)
                storm(lab, work / "storm", 10 if options.quick else 60)
                day(lab, work / "day", 2 if options.quick else 24, 10 if options.quick else 60)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main() -> None:
    """Run the chosen measures."""
    measures = {"magics": magics, "notice": notice, "panels": panels}
    run_measures(
        measures, parser_of(__doc__, "three kernels, few notices, a shorter storm and day", measures).parse_args()
    )


if __name__ == "__main__":
    main()
