"""Notebooks that are opened again, and panels whose kernel is gone: what stays is a picture, or says that it is old.

Nothing of ours is installed into JupyterLab, so a page without a kernel of ours is what everybody else sees.
"""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from playwright.sync_api import expect

from tests.panels import stories

from .lab import Lab
from .test_panel import SHOW, SHOW_RUN, journal, opened, shots

__all__ = ["journal", "shots"]
pytestmark = pytest.mark.browser

DECLARE = "%load_ext transient_magics\n%transient_cluster"
PID = "import os; print(os.getpid())"


def without_drawings(html: str) -> str:
    """What a reader sees of HTML when whoever shows it takes scripts, styles and drawings out."""
    html = re.sub(r"(?s)<(script|style|svg)\b.*?</\1>", "", html)
    return " ".join(re.sub(r"(?s)<[^>]*>", " ", html).split())


def test_a_notebook_holds_pictures_and_a_page_puts_live_panels_before_them(
    lab: Lab, journal: Path, shots: Path
) -> None:
    stories.tell(journal, "short")
    page = opened(lab, journal, SHOW_RUN, DECLARE, "%transient_cluster k80x2 --dry-run", name="reopened")
    panels, pictures = page.locator(".transient-panel"), page.locator(".transient-picture")
    expect(panels).to_have_count(3)
    expect(page.get_by_text("It would be deleted automatically")).to_be_visible()
    assert [picture.is_visible() for picture in pictures.all()] == [False] * 3
    assert page.locator("mjx-container, .MathJax").count() == 0, "a price is read as a formula"
    lab.save(page)
    stored = (lab.folder / "reopened.ipynb").read_text(encoding="utf-8")
    assert "widget-view" not in stored

    lab.reload(page)  # its kernel goes on
    expect(panels).to_have_count(3)
    stories.tell(journal, "again", after="short")
    expect(panels.first.locator("tr[data-key=worker-4]")).to_contain_text("training")
    page.screenshot(path=shots / "reopened-live.png")

    page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    for panel in panels.all():
        expect(panel).to_contain_text("This panel is no longer connected")
    expect(page.get_by_role("button", name="Launch", exact=True)).to_be_disabled()
    page.reload(wait_until="commit")
    expect(pictures.first).to_be_visible()
    expect(pictures.first).to_contain_text(re.compile(r"As of .*; the run continued\."))
    expect(pictures.first).to_contain_text("revoked, replaced by worker-4")
    expect(page.get_by_text("Error displaying widget")).to_have_count(0)
    expect(panels).to_have_count(0)
    page.screenshot(path=shots / "reopened-picture.png")

    exported, _ = HTMLExporter(template_name="lab").from_notebook_node(nbformat.reads(stored, 4))
    read = without_drawings(exported)
    assert re.search(r"k80x4 ● ready 4 of 5 VMs ready, .* As of .*; the run continued\.", read)
    assert "worker-3 K80 us-west1-b ● revoked, replaced by worker-4" in read
    assert re.search(r"loss, [\d.]+ to [\d.]+", read)


@pytest.mark.parametrize("end", [pytest.param("restarted", marks=pytest.mark.nightly), "killed"])
def test_a_panel_whose_kernel_is_gone_says_so_and_asks_for_nothing(
    lab: Lab, journal: Path, shots: Path, end: str
) -> None:
    stories.tell(journal, "short")
    page = opened(lab, journal, SHOW_RUN, PID, name=end)
    panel, of_run = page.locator(".transient-panel").first, page.locator(".transient-panel").nth(1)
    expect(of_run.get_by_role("button", name="Stop run")).to_be_enabled()
    expect(panel.get_by_role("button", name="Revoke worker-0")).to_be_enabled()
    if end == "restarted":
        page.evaluate("() => { jupyterapp.shell.currentWidget.sessionContext.restartKernel(); }")
    else:
        said = page.locator(".jp-OutputArea-output").last
        expect(said).to_have_text(re.compile(r"^\s*\d+\s*$"))
        os.kill(int(said.inner_text()), signal.SIGKILL)
    for each in (panel, of_run):
        expect(each.get_by_role("alert").first).to_contain_text("This panel is no longer connected")
        expect(each.get_by_role("alert").first).to_contain_text("%transient_cluster attach k80x4")
    for name in ("Delete cluster", "Resize", "Revoke worker-0"):
        expect(panel.get_by_role("button", name=name)).to_be_disabled()
    for name in ("Stop run", "Checkpoint now", "Evaluate now", "Show log"):
        expect(of_run.get_by_role("button", name=name)).to_be_disabled()
    expect(of_run.get_by_role("button", name="Zoom in")).to_be_enabled()
    page.screenshot(path=shots / f"lost-{end}.png")


@pytest.mark.nightly
def test_the_panel_of_a_cluster_that_somebody_else_deleted_offers_nothing(lab: Lab, journal: Path) -> None:
    stories.tell(journal, "short")
    page = opened(lab, journal, SHOW_RUN, name="deleted")
    panel, of_run = page.locator(".transient-panel").first, page.locator(".transient-panel").nth(1)
    expect(of_run.get_by_role("button", name="Stop run")).to_be_visible()
    stories.tell(journal, "deleted", after="short")
    expect(panel).to_contain_text("deleted: asked by the user")
    for name in ("Delete cluster", "Resize", "Revoke worker-0"):
        expect(panel.get_by_role("button", name=name)).to_have_count(0)
    for name in ("Stop run", "Checkpoint now", "Evaluate now"):
        expect(of_run.get_by_role("button", name=name)).to_have_count(0)
    page.wait_for_function("""() => {
        const stored = JSON.stringify(jupyterapp.shell.currentWidget.content.model.toJSON());
        return stored.includes('accuracy 0.947') && !stored.includes('; the run continued');
    }""")
    lab.save(page)
    pictures = [
        output["data"]["text/html"]
        for cell in json.loads((lab.folder / "deleted.ipynb").read_text(encoding="utf-8"))["cells"]
        for output in cell["outputs"]
    ]
    assert all("As of" in "".join(picture) and "continued" not in "".join(picture) for picture in pictures)


BUSY = """() => {
    const address = URL.createObjectURL;
    globalThis.endBusy = () => { URL.createObjectURL = address; };
    URL.createObjectURL = (content) => {
        for (const until = performance.now() + 2500; content.type === "text/javascript" && performance.now() < until;);
        return address.call(URL, content);
    };
}"""
"""The page does nothing else for longer than anywidget waits for the code of a panel, before it loads each."""


def test_a_panel_whose_page_was_busy_while_its_code_was_loaded_follows(lab: Lab, journal: Path) -> None:
    stories.tell(journal, "short")
    lab.notebook("busy", SHOW.format(path=str(journal)))
    page = lab.open("busy")
    page.evaluate(BUSY)
    lab.run_all(page)
    panel = page.locator(".transient-panel")
    expect(panel.get_by_role("button", name="Delete cluster")).to_be_visible()
    stories.tell(journal, "deleted", after="short")
    expect(panel).to_contain_text("deleted: asked by the user")
    page.evaluate("() => endBusy()")  # the next test may use this page
