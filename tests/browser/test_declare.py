"""The declare panel in a real JupyterLab: from choices to a line, and from the line to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from .lab import Lab
from .test_panel import shots

__all__ = ["shots"]
pytestmark = pytest.mark.browser


def test_a_cluster_is_put_together_and_launched(lab: Lab, shots: Path) -> None:
    lab.notebook("declare", "%load_ext transient_magics", "%transient_cluster")
    page = lab.open("declare")
    lab.run_all(page)
    panel = page.get_by_role("region", name="Declare a cluster")
    expect(panel.locator(".transient-line")).to_have_text("%transient_cluster l4x4")
    expect(panel.get_by_role("columnheader")).to_have_text(["VMs", "Machine", "Zone", "Rented", "Price"])
    expect(panel).to_contain_text("No lifetimes of the L4 were published.")
    page.wait_for_timeout(300)
    page.screenshot(path=shots / "declare.png")

    panel.get_by_label("How many").fill("0")
    expect(panel.get_by_role("alert")).to_contain_text("a count must be from 1 to 1000, not 0")
    expect(panel.get_by_role("button", name="Launch")).to_be_disabled()
    panel.get_by_label("How many").fill("1")
    panel.get_by_role("button", name="Add workers").click()
    expect(panel.locator(".transient-line")).to_have_text("%transient_cluster l4+l4")
    panel.get_by_role("button", name="Remove this group").last.click()
    panel.get_by_label("GPU").select_option("cpu")
    panel.get_by_label("at most, in dollars").fill("2")
    expect(panel.locator(".transient-line")).to_have_text("%transient_cluster cpu --max-cost 2")
    panel.get_by_label("It is for").select_option("jobs")
    expect(panel.locator(".transient-line")).to_have_text("%transient_cluster cpu --max-cost 2 --for jobs")
    expect(panel.get_by_label("parameter servers", exact=True)).to_be_hidden()
    panel.get_by_label("It is for").select_option("training")
    panel.get_by_label("Google Cloud project").fill("my-project")
    panel.get_by_role("button", name="Launch").click()
    expect(panel).to_contain_text("Rent 2 VMs for $")
    page.screenshot(path=shots / "declare-billed.png")
    page.keyboard.press("Escape")
    panel.get_by_label("Google Cloud project").fill("")
    expect(panel.locator(".transient-line")).to_have_text("%transient_cluster cpu --max-cost 2")

    panel.get_by_role("button", name="Launch").click()
    cluster = page.get_by_role("region", name="Cluster cpu")
    expect(cluster.get_by_role("row", name="worker-0")).to_contain_text("ready", timeout=150_000)
    expect(panel).to_have_count(0)
    page.screenshot(path=shots / "declare-launched.png")
    cluster.get_by_role("button", name="Delete cluster").click()
    cluster.get_by_role("button", name="Delete", exact=True).click()
    expect(cluster).to_contain_text("deleted", timeout=150_000)
