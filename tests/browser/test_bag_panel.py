"""The part of a panel that shows a bag: points read with keys and placed by other values, VMs, surrogate, stopping."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.panels.bag_story import BagStory, specification
from transient_magics.journal import bill
from transient_magics.panels import view
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags.view import sections as bags

from .bare import asked, bare
from .test_bare_panels import SMALL
from .test_training_panel import serious_findings

pytestmark = pytest.mark.browser


def sent(story: BagStory) -> dict[str, Any]:
    state = story.state
    return {"view": view(state, bill(state, story.now), story.now), "curves": {}, "tail": {}, "log": {},
            "sections": {"bag": bags(state, story.now)}}  # fmt: skip


CUT = "(() => [...document.querySelectorAll('.transient-bag .transient-wide')]"
CUT += ".map(wide => wide.scrollWidth - wide.clientWidth))()"


def drawn(section: Locator) -> dict[str, int]:
    """How many points of each state there are in the picture."""
    paths = section.locator("figure .transient-bag-points path").all()
    many = {path.get_attribute("data-state"): (path.get_attribute("d") or "").count("m") for path in paths}
    return {str(state): many[state] // (2 if state == "failed" else 1) for state in many if many[state]}


@pytest.mark.parametrize(
    ("theme", "width"),
    [
        ("light", 1400),
        pytest.param("dark", 900, marks=pytest.mark.nightly),
        ("light", 560),
        pytest.param("dark", 1400, marks=pytest.mark.nightly),
        pytest.param("light", 900, marks=pytest.mark.nightly),
    ],
)
def test_a_bag_is_read_and_stopped_with_keys(chrome: Browser, theme: str, width: int, tmp_path: Path) -> None:
    with bare(chrome, "cluster", sent(BagStory(specification(200), done=130)), theme=theme, width=width) as page:
        section = page.get_by_role("region", name="Bag bag-1")
        expect(section).to_contain_text("130 of 200 results, 3 under way, after 2 interruptions, 1 job failed")
        expect(section.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "130")
        facts = section.locator(".transient-facts > div").filter(visible=True)
        assert [" ".join(each.split()) for each in facts.all_inner_texts()][:6] == [
            "done 130", "running 3", "waiting 3", "lost 1", "failed 1", "per result $0.0051",
        ]  # fmt: skip
        assert drawn(section) == {"done": 130, "running": 3, "waiting": 3, "lost": 1, "failed": 1}
        page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"bag-{theme}-{width}.png", full_page=True)

        points = section.get_by_role("group", name="Points of bag-1 by density and temperature. Arrow keys")
        readout = points.locator(".transient-readout")
        points.focus()
        page.keyboard.press("Home")
        expect(readout).to_have_text("job 0 · density 0.6737, temperature 1.393 · done · pressure 1.61 ± 0.01")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        expect(readout).to_contain_text("job 5 · density 0.3958, temperature 1.438 · done · pressure")
        expect(readout).to_contain_text("attempt 2")
        page.keyboard.press("End")
        expect(readout).to_have_text("job 137 · density 0.6429, temperature 1.101 · waiting")

        vms = section.get_by_role("table", name="VMs of bag-1")
        expect(vms.get_by_role("row", name="worker-7")).to_contain_text("32 min")
        vms.get_by_role("button", name="Point of job 134").press("Enter")
        expect(readout).to_contain_text("job 134 · density 0.659, temperature 1.485 · running")
        row = section.get_by_role("table", name="Surrogate of bag-1").get_by_role("row", name="pressure")
        expect(row.get_by_role("cell")).to_have_text(["96%", "0.427 sd", "0.0173", "0.01", "not yet"])
        section.get_by_label("Up").select_option("pressure")
        expect(section.get_by_role("group", name="Points of bag-1 by density and pressure")).to_contain_text("none")

        section.get_by_role("button", name="Stop bag").press("Enter")
        expect(page.get_by_text("Stop bag-1 and the 3 jobs under way?")).to_be_visible()
        page.keyboard.press("Escape")
        assert asked(page) == []
        section.get_by_role("button", name="Stop bag").press("Enter")
        section.get_by_role("button", name="Stop", exact=True).press("Enter")
        assert asked(page) == [{"do": "stop", "name": "bag-1"}]

        assert page.evaluate(SMALL) == [], "what is pressed is 24 pixels high"
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        assert page.evaluate(CUT) == [0], "every column is seen"
        assert page.evaluate("failures") == []


DRAW = """bags => {
    const began = performance.now();
    model.set('sections', { bag: bags });
    return new Promise(done => requestAnimationFrame(() => done(performance.now() - began)));
}"""
"""Draw bags and return the milliseconds until the next frame."""


def test_two_thousand_points_are_drawn_in_a_moment_and_one_parameter_beside_what_it_gives(
    chrome: Browser, tmp_path: Path
) -> None:
    shots = Path(os.environ.get("SCREENSHOTS", tmp_path))
    long = sent(BagStory(specification(2500), done=1980))
    with bare(chrome, "cluster", {**long, "sections": {}}, theme="dark", width=900) as page:
        section = page.get_by_role("region", name="Bag bag-1")
        expect(section).to_have_count(0)
        short = sent(BagStory(specification(250), done=198))
        milliseconds = [page.evaluate(DRAW, short["sections"]["bag"]) for _ in range(3)]
        expect(section).to_contain_text("198 of 250 results")
        in_tenfold = [page.evaluate(DRAW, long["sections"]["bag"]) for _ in range(3)]
        expect(section).to_contain_text("1980 of 2,500 results")
        assert drawn(section)["done"] == 1980
        assert min(in_tenfold) < 40 * min(milliseconds), "drawing ten times the points takes a hundred times as long"
        page.screenshot(path=shots / "bag-many.png", full_page=True)
        page.evaluate("() => { for (const act of model.heard['comm:close']) act(); }")
        expect(section.get_by_role("button", name="Stop bag")).to_be_disabled()
        page.evaluate("() => model.set('sections', {})")
        expect(section).to_have_count(0)
        assert page.evaluate("failures") == []
    line = BagStory(specification(60, space=parse_space("density=0.3:0.9")), done=40)
    with bare(chrome, "cluster", sent(line), width=900) as page:
        section = page.get_by_role("region", name="Bag bag-1")
        points = section.get_by_role("group", name="Points of bag-1 by density and pressure")
        expect(points).to_contain_text("none")
        expect(section.get_by_label("Up")).to_be_hidden()
        page.screenshot(path=shots / "bag-line.png", full_page=True)
        assert page.evaluate("failures") == []
    nothing = BagStory(specification(60, space=parse_space("density=0.3:0.9")), done=0)
    with bare(chrome, "cluster", sent(nothing), width=900) as page:
        points = page.get_by_role("region", name="Bag bag-1").locator("figure")
        expect(points).to_contain_text("no result to draw")
        expect(points.locator("svg")).to_be_hidden()
        page.get_by_role("button", name="Point of job 0").press("Enter")
        expect(points).to_contain_text("job 0 · density")
        page.screenshot(path=shots / "bag-nothing.png", full_page=True)
        page.evaluate("bags => model.set('sections', { bag: bags })", sent(line)["sections"]["bag"])
        expect(points.locator("svg")).to_be_visible()
        assert drawn(page.get_by_role("region", name="Bag bag-1"))["done"] == 40
        assert page.evaluate("failures") == []
    words = BagStory(specification(60, space=parse_space("density=0.001:10:log kind=a,bb,c"), surrogate="none",
                                   until={}), done=40)  # fmt: skip
    with bare(chrome, "cluster", sent(words), width=900) as page:
        section = page.get_by_role("region", name="Bag bag-1")
        expect(section.locator("figure")).to_contain_text("bb")
        expect(section.get_by_role("note", name="Surrogate")).to_be_hidden()
        section.get_by_label("Across").select_option("kind")
        expect(section.get_by_role("group", name="Points of bag-1 by kind and density")).to_be_visible()
        page.screenshot(path=shots / "bag-words.png", full_page=True)
        assert page.evaluate("failures") == []
