"""The panel in a real JupyterLab: what a reader sees, in light and dark, and what her buttons do."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.panels import stories

from .lab import Lab

pytestmark = pytest.mark.browser

SHOW = """\
import pathlib
from tests.panels import stories
from transient_magics import panels
journal = pathlib.Path({path!r})
cluster, feed = stories.StoryCluster(journal), stories.StoryFeed(journal)
panels.show(cluster, feed=feed)"""
SHOW_RUN = "panels.show(cluster, 'run-1', feed=feed)"


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where pictures go: to SCREENSHOTS where it is set, for a person to look at."""
    chosen = Path(os.environ.get("SCREENSHOTS", tmp_path))
    chosen.mkdir(exist_ok=True)
    return chosen


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def opened(lab: Lab, journal: Path, *cells: str, name: str = "panel") -> Page:
    lab.notebook(name, SHOW.format(path=str(journal)), *cells)
    page = lab.open(name)
    lab.run_all(page)
    expect(page.locator(".transient-panel").first).to_be_visible()
    return page


@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_a_training_cluster_is_readable_in_both_themes(lab: Lab, journal: Path, shots: Path, theme: str) -> None:
    stories.tell(journal, "short")
    lab.theme(theme)
    page = opened(lab, journal, name=f"theme-{theme}")
    panel = page.locator(".transient-panel")
    expect(panel).to_contain_text("k80x4")
    expect(panel.get_by_role("row", name="worker-3")).to_contain_text("revoked, replaced by worker-4")
    expect(panel.get_by_role("progressbar")).to_have_attribute("aria-valuemax", "600")
    expect(panel).to_contain_text("Emulated, nothing is billed.")
    expect(panel).to_contain_text("on demand so far")
    page.wait_for_timeout(500)
    page.screenshot(path=shots / f"panel-{theme}.png")
    text, ground = panel.evaluate(
        "node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor].map("
        "colour => colour.match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765)"
    )
    assert abs(text - ground) > 0.5
    page.set_viewport_size({"width": 700, "height": 900})  # JupyterLab puts an output below its prompt there
    page.wait_for_function("() => document.querySelector('.transient-host').clientHeight > 400")
    page.screenshot(path=shots / f"panel-narrow-{theme}.png")


def test_the_panel_follows_a_growing_journal_to_the_end(lab: Lab, journal: Path, shots: Path) -> None:
    stories.tell(journal, "declared")
    page = opened(lab, journal, SHOW_RUN, name="growing")
    panel = page.locator(".transient-panel").first
    expect(panel.get_by_role("row", name="worker-0")).to_contain_text("requested")
    page.screenshot(path=shots / "panel-declared.png")
    writer = threading.Thread(target=stories.tell, args=(journal, "notice"), kwargs={"after": "declared", "pace": 0.05})
    writer.start()
    expect(panel.get_by_role("row", name="worker-3")).to_contain_text("leaving in")
    writer.join()
    page.screenshot(path=shots / "panel-notice.png")
    stories.tell(journal, "deleted", after="notice", pace=0.02)
    expect(panel).to_contain_text("deleted")
    expect(panel).to_contain_text("accuracy")
    expect(panel.get_by_role("button", name="Delete cluster")).to_have_count(0)
    page.wait_for_timeout(1500)
    page.screenshot(path=shots / "panel-deleted.png")


def test_buttons_ask_first_and_reach_the_kernel_also_by_keyboard(lab: Lab, journal: Path, shots: Path) -> None:
    stories.tell(journal, "training")
    page = opened(lab, journal, name="buttons")
    panel = page.locator(".transient-panel")
    panel.get_by_role("button", name="Revoke worker-1").click()
    panel.get_by_role("button", name="Delete cluster").focus()
    page.keyboard.press("Enter")
    expect(panel).to_contain_text("Delete k80x4 and all its VMs?")
    expect(panel.get_by_role("button", name="Keep")).to_be_focused()
    page.screenshot(path=shots / "panel-asking.png")
    page.keyboard.press("Escape")
    expect(panel.get_by_role("button", name="Delete cluster")).to_be_focused()
    page.keyboard.press("Enter")
    panel.get_by_role("button", name="Delete", exact=True).click()
    expect(panel).to_contain_text("The cluster is being deleted.")
    page.evaluate(
        "() => { jupyterapp.shell.currentWidget.content.model.sharedModel.addCell("
        "{cell_type: 'code', source: 'cluster.asked'}); }"
    )
    lab.run_last(page)
    expect(page.locator(".jp-OutputArea-output").last).to_contain_text("[('revoke', 'worker-1'), ('delete',)]")


@pytest.mark.nightly
def test_a_reloaded_page_shows_the_panel_again(lab: Lab, journal: Path) -> None:
    stories.tell(journal, "ready")
    page = opened(lab, journal, name="reload")
    lab.save(page)
    lab.reload(page)
    expect(page.locator(".transient-panel")).to_contain_text("ready")
    stories.tell(journal, "training", after="ready")
    expect(page.locator(".transient-panel").get_by_role("progressbar")).to_be_visible()


def test_the_stored_notebook_holds_a_readable_twin(lab: Lab, journal: Path) -> None:
    stories.tell(journal, "training")
    page = opened(lab, journal, name="stored")
    stories.tell(journal, "deleted", after="training")
    expect(page.locator(".transient-panel")).to_contain_text("deleted")
    page.wait_for_function(
        "() => JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON()).includes('accuracy 0.947')"
    )
    lab.save(page)
    stored = (lab.folder / "stored.ipynb").read_text(encoding="utf-8")
    assert "accuracy 0.947" in stored
    assert "text/html" in stored


def test_refreshing_the_twin_does_not_move_the_page(lab: Lab, journal: Path) -> None:
    stories.tell(journal, "training")
    page = opened(lab, journal, name="steady")
    page.evaluate(
        """() => {
            window.removed = 0;
            const panel = document.querySelector(".transient-panel");
            new MutationObserver(() => { if (!panel.isConnected) window.removed += 1; })
                .observe(document.body, { childList: true, subtree: true });
        }"""
    )
    stories.tell(journal, "again", after="training", pace=0.05)
    page.wait_for_timeout(1000)
    assert page.evaluate("window.removed") == 0
