"""The whole path as a person sees it: the quickstart notebook in a real JupyterLab, from its first cell to the bill."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from .lab import Lab

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.browser, pytest.mark.training]


@pytest.mark.nightly
def test_the_quickstart_runs_in_jupyterlab_and_shows_a_replaced_worker(lab: Lab, tmp_path: Path) -> None:
    # With smaller mini-batches than the notebook's: four workers share two cores, and how well it learns is no matter.
    # A server is taken sooner, and all train slower: on a busy machine too the new one joins before the end.
    whole = (ROOT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8")
    for theirs, ours in {
        "--pace 0.25": "--pace 0.35 --hparams batch_size=8",
        "run.reach(300)": "run.reach(100)",
    }.items():
        assert theirs in whole
        whole = whole.replace(theirs, ours)
    (lab.folder / "quickstart.ipynb").write_text(whole, encoding="utf-8")
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    page = lab.open("quickstart", width=1180, height=1180)
    lab.run_all(page)
    panel = page.locator(".transient-panel").first
    panel.wait_for(state="visible")
    panel.scroll_into_view_if_needed()
    # While the cells go on: the panel of the second cell tells the revocation and the replacement as they happen.
    expect(panel.locator("tr[data-key=worker-1]")).to_contain_text("revoked, replaced by worker-4", timeout=300_000)
    expect(panel.locator("tr[data-key=worker-4]")).to_contain_text("training", timeout=150_000)
    expect(panel).not_to_contain_text("dev accuracy")
    page.wait_for_timeout(2000)
    page.screenshot(path=pictures / "quickstart.png")
    page.get_by_text("quickstart is deleted, no VM is left").wait_for(state="visible", timeout=300_000)
    panel.scroll_into_view_if_needed()
    expect(panel).to_contain_text("dev accuracy")
    page.screenshot(path=pictures / "quickstart-end.png")
    lab.save(page)
    saved = json.loads((lab.folder / "quickstart.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in saved["cells"] for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output["output_type"] == "error"]
    said = json.dumps(outputs)
    assert "saved" in said
    assert "on demand: $0." in said


def delete_by_button(panel: Locator) -> None:
    """As a person does it, with the question that the button asks."""
    panel.get_by_role("button", name="Delete cluster").click()
    panel.get_by_role("button", name="Delete", exact=True).click()
    expect(panel).to_contain_text("deleted: asked by the user", timeout=150_000)


def test_buttons_work_while_a_cell_runs(lab: Lab) -> None:
    lab.notebook(
        "busy", "%load_ext transient_magics", "%transient_cluster cpux1 --name busy", "import time; time.sleep(600)"
    )
    page = lab.open("busy")
    lab.run_all(page)
    panel = page.locator(".transient-panel").first
    expect(panel).to_contain_text("2 of 2 VMs ready", timeout=150_000)
    delete_by_button(panel)
    expect(page.locator(".jp-CodeCell .jp-InputPrompt").nth(2)).to_have_text("[*]:")
    lab.command(page, "notebook:interrupt-kernel")
    expect(page.locator(".jp-CodeCell .jp-InputPrompt").nth(2)).to_have_text("[3]:")


def test_a_kernel_that_is_shut_down_leaves_its_last_picture_and_the_cluster_is_found_again(lab: Lab) -> None:
    lab.notebook("again", "%load_ext transient_magics", "%transient_cluster cpux1 --name again")
    page = lab.open("again")
    lab.run_all(page)
    output = page.locator(".transient-panel").first
    expect(output).to_contain_text("2 of 2 VMs ready", timeout=150_000)
    page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.shutdown(); }")
    expect(output.get_by_role("alert").first).to_contain_text("To see it again: %transient_cluster attach again")
    lab.save(page)
    (stored,) = json.loads((lab.folder / "again.ipynb").read_text(encoding="utf-8"))["cells"][1]["outputs"]
    assert "2 of 2 VMs ready" in "".join(stored["data"]["text/html"]), "what was true when the kernel ended"
    page.evaluate("async () => { await jupyterapp.shell.currentWidget.sessionContext.startKernel(); }")
    page.wait_for_function("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status == 'idle'")
    page.evaluate(
        "() => { const model = jupyterapp.shell.currentWidget.content.model;"
        " model.cells.get(1).sharedModel.setSource('%transient_cluster attach again'); }"
    )
    lab.run_all(page)
    panel = page.locator(".transient-panel").first
    expect(panel).to_contain_text("2 of 2 VMs ready", timeout=150_000)
    delete_by_button(panel)
