"""The whole path as a person sees it: the quickstart notebook in a real JupyterLab, from its first cell to the bill."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .conftest import Lab

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.training, pytest.mark.timeout(600)]


def test_the_quickstart_runs_in_jupyterlab_and_shows_a_replaced_worker(lab: Lab, tmp_path: Path) -> None:
    shutil.copy(ROOT / "notebooks" / "quickstart.ipynb", lab.folder / "quickstart.ipynb")
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page = lab.open("quickstart", width=1180, height=1020)
    lab.run_all(page)
    page.get_by_text("quickstart is deleted, no VM is left").wait_for(state="visible", timeout=300_000)
    panel = page.locator(".jp-OutputArea-output .transient-panel").first
    panel.scroll_into_view_if_needed()
    expect(panel.locator("tr[data-key=worker-1]")).to_contain_text("revoked, replaced by worker-4", timeout=15_000)
    expect(panel).to_contain_text("dev accuracy")
    page.wait_for_timeout(1000)
    page.screenshot(path=pictures / "quickstart.png")
    lab.command(page, "docmanager:save")
    page.wait_for_timeout(1500)
    saved = json.loads((lab.folder / "quickstart.ipynb").read_text())
    outputs = [output for cell in saved["cells"] for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    said = json.dumps(outputs)
    assert "saved" in said
    assert "on demand: $0." in said
