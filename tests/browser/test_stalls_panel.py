"""The panel of a measure of stalls: bars, parts, advice, and a what-if that the kernel answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.panels.stalls_story import report
from tests.panels.test_stalls import asked as answer_of
from transient_magics.works.runs.stalls.view import UNASKED, declared_view, stalls_view

from .bare import bare
from .conftest import Lab
from .test_training_panel import serious_findings

pytestmark = pytest.mark.browser
FIRST = "K80 on n1-standard-4"


def last(page: Page) -> dict[str, Any]:
    """What the page asked last, once it has settled."""
    page.wait_for_timeout(400)
    return cast("dict[str, Any]", page.evaluate("model.sent.at(-1)"))


def answer(page: Page) -> dict[str, Any]:
    """Answer as the kernel does; what was asked."""
    message = last(page)
    page.evaluate("told => model.set('answer', told)", answer_of(message))
    return message


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1400),
        ("dark", 900),
        pytest.param("dark", 1400, marks=pytest.mark.nightly),
        pytest.param("light", 900, marks=pytest.mark.nightly),
    ],
)
def test_what_if_is_asked_with_keys_and_answered_by_the_kernel(
    chrome: Browser, theme: str, width: int, tmp_path: Path
) -> None:
    sent = {"view": stalls_view(report()), "answer": UNASKED}
    with bare(chrome, "stalls", sent, theme=theme, width=width) as page:
        panel = page.get_by_role("region", name="Stalls stalls-1")
        expect(panel).to_contain_text("finished at measure 40 of 40")
        parts = panel.get_by_role("table", name=f"Parts of a step on {FIRST}")
        row = parts.get_by_role("row", name="fetch")
        expect(row.get_by_role("cell").nth(2)).to_have_text("$0.43")
        expect(parts.get_by_role("row", name="contention")).to_contain_text("within the noise")
        expect(panel).to_contain_text("43% of a step is fetch: a faster disk (--disk 200GB:ssd)")
        whatif = panel.get_by_role("region", name="What if")
        assert answer(page) == {
            "do": "what-if", "vm": FIRST, "asked": 1,
            "change": {"cache": 0, "cores": 1, "disk": 1, "link": 1, "gpu": 1, "batch": 1, "ps": 1},
        }  # fmt: skip
        expect(whatif).to_contain_text("as measured: 35")

        cache = whatif.get_by_role("slider", name="data in a cache")
        cache.focus()
        page.keyboard.press("End")
        expect(cache).to_have_attribute("aria-valuetext", "100%")
        cores = whatif.get_by_role("slider", name="cores")
        cores.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert answer(page)["change"] | {"gpu": 1} == {
            "cache": 1, "cores": 2, "disk": 1, "link": 1, "gpu": 1, "batch": 1, "ps": 1,
        }  # fmt: skip
        expect(whatif).to_contain_text("cache=1, cores=2: 20")
        expect(whatif.get_by_role("img")).to_have_count(2)
        page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"stalls-{theme}-{width}.png")
        assert serious_findings(page) == []

        whatif.get_by_role("combobox", name="VM").select_option("V100 on n1-standard-8")
        assert answer(page)["vm"] == "V100 on n1-standard-8"
        page.evaluate(
            "model.set('answer', {...model.get('answer'), words: '', parts: [], error: 'It was not measured.'})"
        )
        expect(panel.get_by_role("alert")).to_have_text("It was not measured.")
        whatif.get_by_role("button", name="As measured").press("Enter")
        assert set(answer(page)["change"].values()) == {0, 1}
        expect(panel.get_by_role("alert")).to_be_hidden()
        page.evaluate("for (const end of model.heard['comm:close']) end()")
        expect(panel.get_by_role("alert")).to_contain_text("no longer connected")
        expect(cores).to_be_disabled()
        assert page.evaluate("failures") == []


def test_a_measure_that_goes_on_is_followed_and_without_files_a_cache_is_nothing_to_move(chrome: Browser) -> None:
    sent = {"view": declared_view("stalls-1"), "answer": UNASKED}
    with bare(chrome, "stalls", sent, width=560) as page:
        panel = page.get_by_role("region", name="Stalls stalls-1")
        expect(panel).to_contain_text("declared")
        whatif = panel.get_by_role("region", name="What if")
        expect(whatif).to_be_hidden()
        assert page.evaluate("model.sent") == []
        page.evaluate("view => model.set('view', view)", stalls_view(report(1, bytes=0)))
        expect(panel).to_contain_text("no file is read")
        answer(page)
        expect(whatif).to_contain_text("as measured")
        expect(whatif.get_by_role("slider", name="data in a cache")).to_be_disabled()
        expect(whatif.get_by_role("slider", name="cores")).to_be_enabled()
        expect(whatif.get_by_role("combobox")).to_be_hidden()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


SHOWN = """
%load_ext transient_magics
from tests.panels.stalls_story import Measured
from transient_magics.works.runs.stalls.view import show_stalls
show_stalls(Measured(coming=True))
"""


def test_in_jupyterlab_it_follows_the_measure_the_kernel_answers_and_the_notebook_keeps_the_picture(
    lab: Lab, tmp_path: Path
) -> None:
    path = lab.notebook("stalls", SHOWN.strip())
    page = lab.open("stalls", width=1400)
    lab.run_all(page)
    panel = page.get_by_role("region", name="Stalls stalls-1")
    whatif = panel.get_by_role("region", name="What if")
    expect(panel.get_by_role("table", name="Parts of a step on V100")).to_be_visible(timeout=150_000)
    expect(whatif).to_contain_text("as measured: 35")
    link = whatif.get_by_role("slider", name="GPU")
    link.focus()
    page.keyboard.press("End")
    expect(whatif).to_contain_text("gpu=16: ")
    page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / "stalls-lab.png")
    lab.save(page)
    (output,) = json.loads(path.read_text(encoding="utf-8"))["cells"][0]["outputs"]
    html = "".join(output["data"]["text/html"])
    assert "43% of a step is fetch" in html
    assert "46% of a step is network" in html, "as the last of the measures left it"
    assert "K80 on n1-standard-4 (2 workers" in "".join(output["data"]["text/plain"])
