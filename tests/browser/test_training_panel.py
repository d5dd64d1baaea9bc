"""The panels' parts in a real JupyterLab: curves and lanes, what can be done, and what the words of VMs cannot do."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.panels import stories
from tests.panels.long_story import LongStory
from transient_magics.journal import read

from .lab import Lab
from .test_panel import SHOW, SHOW_RUN, opened, shots

__all__ = ["shots"]
pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]
AXE = ROOT / "widgets" / "node_modules" / "axe-core" / "axe.min.js"
SHOW_LONG = SHOW.replace("StoryCluster(journal)", "StoryCluster(journal, 'long')")


def serious_findings(page: Page) -> list[str]:
    """What axe finds in the panels: the rules broken gravely, each with its first place."""
    if not AXE.exists():  # a checkout whose panels were bundled and never checked
        subprocess.run([sys.executable, str(ROOT / "tools" / "bundle.py"), "check"], check=True, timeout=300)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run('.transient-panel')")["violations"]
    return [
        f"{each['id']}: {each['help']}: {each['nodes'][0]['html'][:120]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def test_hours_of_training_are_curves_with_their_marks(lab: Lab, tmp_path: Path, shots: Path) -> None:
    journal = LongStory(5).tell(tmp_path / "long", metrics_every=10)
    lab.notebook("long", f"{SHOW_LONG.format(path=str(journal))}\n{SHOW_RUN}")
    page = lab.open("long", height=1400)
    lab.run_all(page)
    cluster, run = page.locator(".transient-panel").first, page.locator(".transient-panel").last
    expect(run.get_by_role("group", name="steps per second, 3")).to_be_visible()
    expect(run.get_by_role("group", name="mini-batch")).to_be_visible()
    expect(run).to_contain_text("┆ a worker was revoked   ▲ checkpoint   ● evaluation")
    expect(cluster.get_by_role("button", name="Checkpoint now")).to_have_count(0)
    bars = run.get_by_role("region", name="Where a step's time goes").get_by_role("img")
    said = re.compile(r"^worker-\d+: \d+ ms a step: input .*, compute \d\d%")
    expect(bars.first).to_have_attribute("aria-label", said)
    parts = (
        "bars => bars.map(bar => [[...bar.children].reduce((sum, part) => sum + part.offsetWidth, 0), bar.offsetWidth])"
        ".reduce(([most, all], [parts, width]) => [Math.max(most, parts), width], [0, 0])"
    )
    for _ in range(50):  # bars grow to their width
        inside, whole = bars.evaluate_all(parts)
        if inside == pytest.approx(whole, abs=6):
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail(f"the slowest worker's parts fill {inside} of its bar's {whole} pixels")
    page.screenshot(path=shots / "training.png")

    loss = run.get_by_role("group", name=re.compile("^loss"))
    loss.focus()
    page.keyboard.press("ArrowLeft")
    readout = loss.locator(".transient-readout")
    expect(readout).to_have_text(re.compile(r"\d\d:\d\d:\d\d( · [\d.]+| checkpoint at step [\d,]+)"))
    last = readout.text_content()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    expect(readout).not_to_have_text(last or "")
    page.keyboard.press("0")
    run.get_by_role("combobox", name="Over what the curves are drawn").select_option("step")
    run.get_by_label("log loss").check()
    run.get_by_label("Smoothing").fill("0.9")
    loss.focus()
    page.keyboard.press("ArrowLeft")
    expect(readout).to_have_text(re.compile(r"step [\d,]+"))

    with page.expect_download() as table:
        run.get_by_role("button", name="Download the curves as CSV").click()
    rows = list(csv.DictReader(table.value.path().read_text(encoding="utf-8").splitlines()))
    assert len(rows) > 100
    assert float(rows[-1]["steps_per_second"]) == pytest.approx(32, rel=0.1)
    assert float(rows[-1]["worker-7 batch_size"]) == 32
    with page.expect_download() as picture:
        run.get_by_role("button", name="Download the charts as PNG").click()
    assert picture.value.path().read_bytes()[:4] == b"\x89PNG"


FORESEEN = "ends about 14:32 (14:20 to 14:55); this run $0.610 at its end ($0.553 to $0.704)"


def test_how_the_run_ends_stands_under_its_progress(lab: Lab, tmp_path: Path, shots: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    stories.tell(journal, "short")
    show = SHOW.format(path=str(journal)).replace("feed=feed", f"feed=feed, forecasts=lambda *_: {FORESEEN!r}")
    assert FORESEEN in show
    lab.notebook("foreseen", show)
    page = lab.open("foreseen")
    lab.run_all(page)
    said = page.locator(".transient-panel").get_by_label("Forecast")
    expect(said).to_have_text(FORESEEN)
    page.screenshot(path=shots / "forecast.png")
    stories.tell(journal, "finished", after="short")
    expect(said).to_be_hidden()


def test_a_run_is_saved_evaluated_and_its_log_read_from_its_panel(lab: Lab, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    stories.tell(journal, "training")
    page = opened(lab, journal, SHOW_RUN, "cluster.asked", name="deeds")
    panel = page.locator(".transient-panel").last
    panel.get_by_role("button", name="Checkpoint now").click()
    expect(panel).to_contain_text("A checkpoint is being written.")
    panel.get_by_role("button", name="Evaluate now").click()
    panel.get_by_label("Whose log").select_option("worker-2")
    panel.get_by_role("button", name="Show log").click()
    expect(panel.get_by_label("The last lines of the log")).to_contain_text("worker-2 built its graph in 4.2 s")
    panel.get_by_role("button", name="Stop run").click()
    expect(panel).to_contain_text("Stop run-1?")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(panel).to_contain_text("run-1 is being stopped.")
    lab.run_last(page)
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("[('save',), ('evaluate', True), ('stop',)]")


def test_resizing_says_its_price_before_it_happens(lab: Lab, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    stories.tell(journal, "training")
    page = opened(lab, journal, "cluster.asked", name="resize")
    panel = page.locator(".transient-panel")
    panel.get_by_role("button", name="Resize", exact=True).click()
    wanted = panel.get_by_label("The workers to have instead")
    expect(wanted).to_have_value("k80x4")
    wanted.fill("k80x99")
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("99 workers exceed the limit of 8 for k80x4")
    wanted.fill("k80x2")
    page.keyboard.press("Enter")
    question = panel.get_by_role("group", name="Resize?")
    expect(question).to_contain_text("Change to k80x2 for $0.655 per hour, not $1.17? 2 workers will be deleted.")
    expect(question.get_by_role("button", name="Not now")).to_be_focused()
    question.get_by_role("button", name="Resize").click()
    expect(panel).to_contain_text("The cluster becomes k80x2.")
    lab.run_last(page)
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("[('resize', 'k80x2')]")


EVIL = (
    "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    "\x1b[31mred\x1b]0;t\x07\u202egnp.exe"
)
EVIL_LOGS = f"""
class Evil(stories.StoryCluster):
    def logs(self, worker, lines=200):
        return {EVIL!r} + "\\n" + "x" * 100_000
journal = pathlib.Path({{path!r}})
cluster = Evil(journal)"""


def test_what_vms_say_is_text_and_nothing_else(lab: Lab, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    stories.tell(journal, "training")
    lines = [
        {"kind": "vm.refused", "vm": "worker-1", "reason": EVIL}, {"kind": "controller.trouble", "what": EVIL},
        {"kind": "worker.joined", "run": "run-1", "worker": EVIL, "number": 9, "active": 5},  # no name: never read
        {"kind": "worker.left", "run": "run-1", "worker": "worker-2", "number": 2, "active": 3, "reason": EVIL},
        {"kind": "train.unevaluated", "run": "run-1", "step": 5, "reason": EVIL},
        {"kind": "train.failed", "run": "run-1", "reason": EVIL + "y" * 3000},
    ]  # fmt: skip
    with journal.open("a", encoding="utf-8") as file:
        for seq, line in enumerate(lines, 1000):
            file.write(json.dumps({"seq": seq, "time": seq, **line}) + "\n")
    assert [event.kind for event in read(journal)[-5:]] == [
        line["kind"] for line in lines if line.get("worker") != EVIL
    ]
    lab.notebook("evil", SHOW.format(path=str(journal)), EVIL_LOGS.format(path=str(journal)), SHOW_RUN)
    page = lab.open("evil")
    lab.run_all(page)
    panel = page.locator(".transient-panel").last
    expect(panel).to_contain_text("failed at step")
    told = page.locator(".transient-panel").first.get_by_role("listitem")
    for words in ("worker-1 refused: ", "trouble: ", "worker-2 left run-1, ", "could not be evaluated at step 5: "):
        expect(told.filter(has_text=f"{words}<img src=x onerror=document.title='owned'><script>")).to_have_count(1)
    panel.get_by_label("Whose log").select_option("worker-2")
    panel.get_by_role("button", name="Show log").click()
    log = panel.get_by_label("The last lines of the log")
    expect(log).to_contain_text("<script>document.title='owned'</script>red�gnp.exe")
    assert len(log.text_content() or "") < 2000
    shown = page.locator(".transient-panel")
    assert shown.locator("img:not([role]), script").count() == 0
    assert "\u202e" not in "".join(shown.all_text_contents())
    assert "owned" not in page.title()
    assert all((box or {})["width"] < 1100 for box in (panel.bounding_box(), shown.first.bounding_box()))


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_nothing_serious_stands_in_the_way_of_anybody(lab: Lab, tmp_path: Path, theme: str) -> None:
    journal = LongStory(5).tell(tmp_path / "long", metrics_every=10)
    lab.theme(theme)
    lab.notebook(
        "axe", f"%load_ext transient_magics\n{SHOW_LONG.format(path=str(journal))}\n{SHOW_RUN}\npanels.show_declare()"
    )
    page = lab.open("axe")
    lab.run_all(page)
    expect(page.locator(".transient-panel")).to_have_count(3)
    expect(page.get_by_role("group", name="mini-batch")).to_be_visible()
    assert serious_findings(page) == []


def test_a_second_view_shows_the_same(lab: Lab, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    stories.tell(journal, "ready")
    page = opened(lab, journal, name="twice")
    lab.command(page, "notebook:create-output-view")
    panels = page.locator(".transient-panel")
    expect(panels).to_have_count(2)
    stories.tell(journal, "training", after="ready")
    for number in range(2):
        expect(panels.nth(number).get_by_role("progressbar")).to_be_visible()
