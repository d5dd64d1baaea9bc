"""The panel of a search in a real JupyterLab: what if, and from a cluster to the next cell's line."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from .conftest import Lab
from .test_panel import shots

__all__ = ["shots"]
pytestmark = pytest.mark.browser


def expect_sources(page: Page, *wanted: str) -> None:
    """Wait until this stands in the notebook's cells."""
    page.wait_for_function(
        "wanted => JSON.stringify(wanted) == JSON.stringify("
        "jupyterapp.shell.currentWidget.content.model.sharedModel.cells.map(each => each.source))",
        arg=wanted,
    )


def test_a_cluster_is_picked_for_the_next_cell(lab: Lab, shots: Path) -> None:
    search = "%transient_plan --workload icac19/resnet-32 --train-steps 64000 --gpus k80,p100,v100"
    lab.notebook("plan", "%load_ext transient_magics", search, "print('mine')")
    page = lab.open("plan")
    lab.run_all(page)
    panel = page.get_by_role("region", name="Plan a cluster")
    expect(panel).to_contain_text("64,000 steps of icac19/resnet-32", timeout=150_000)
    points = panel.locator(".transient-plan-point, .transient-plan-best")
    expect(points.nth(3)).to_be_attached()
    before = points.count()
    page.wait_for_timeout(300)
    page.screenshot(path=shots / "plan.png")

    best = panel.locator("button.transient-primary")
    line = best.inner_text()
    best.click()
    expect(panel.get_by_role("status")).to_contain_text("next cell")
    expect_sources(page, "%load_ext transient_magics", search, line, "print('mine')")
    fastest = panel.locator("tbody button").first.inner_text()
    points.first.focus()
    page.keyboard.press("Enter")
    expect(panel.get_by_role("status")).to_contain_text("next cell")
    expect_sources(page, "%load_ext transient_magics", search, fastest, "print('mine')")

    panel.get_by_label("marked").select_option("cost")
    expect(panel.locator("tbody tr:last-child button.transient-primary")).to_be_visible(timeout=60_000)
    panel.get_by_label("At most, dollars").fill("0.3")
    expect(panel).to_contain_text("at most $")
    expect(points).not_to_have_count(before)
    panel.get_by_label("At most, hours").fill("0")
    expect(panel.get_by_role("alert")).to_contain_text("No cluster stays within these limits")
    page.screenshot(path=shots / "plan-limits.png")
    panel.get_by_label("At most, hours").fill("1")
    panel.get_by_label("Steps").fill("1")
    expect(panel).to_contain_text("640,000 steps of icac19/resnet-32")
    expect(panel.get_by_role("alert")).to_be_hidden()
