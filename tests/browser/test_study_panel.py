"""The part of a panel that shows a study: sorting, rows of few and of all trials, stopping, curves; for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.panels.study_story import StudyStory, specification
from transient_magics.journal import bill
from transient_magics.panels import view
from transient_magics.works.studies.view import sections as studies

from .bare import bare
from .test_bare_panels import SMALL
from .test_training_panel import serious_findings

pytestmark = pytest.mark.browser


def sent(story: StudyStory) -> dict[str, Any]:
    state = story.state
    return {"view": view(state, bill(state, story.now), story.now), "curves": {}, "tail": {}, "log": {},
            "sections": {"study": studies(state, story.now)}}  # fmt: skip


CUT = "(() => { const wide = document.querySelector('.transient-trials').parentElement;"
CUT += " return wide.scrollWidth - wide.clientWidth; })()"


def numbers(page: Page) -> list[int]:
    """The trials that have a row."""
    return [int(each) for each in page.locator(".transient-trials tbody th").all_inner_texts()]


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 700)])
def test_a_study_of_many_trials_is_sorted_read_and_stopped_with_keys(
    chrome: Browser, theme: str, width: int, tmp_path: Path
) -> None:
    story = StudyStory(specification(40), told=36)
    with bare(chrome, "cluster", sent(story), theme=theme, width=width) as page:
        section = page.get_by_role("region", name="Study search")
        expect(section).to_contain_text("36 of 40 trials, 4 under way")
        expect(section.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "36")
        assert numbers(page) == [39, 38, 37, 36, 35, 34, 33, 32, 31, 25], "the newest, and the best one"
        expect(section.get_by_role("row", name="0.941 ◎ best")).to_have_count(1)
        head = section.get_by_role("columnheader", name="accuracy")
        head.get_by_role("button").press("Enter")
        expect(head).to_have_attribute("aria-sort", "descending")
        assert numbers(page)[0] == 25
        head.get_by_role("button").press("Enter")
        expect(head).to_have_attribute("aria-sort", "ascending")
        section.get_by_role("button", name="Show all 40 trials").press("Enter")
        assert len(numbers(page)) == 40
        assert numbers(page)[-1] == 2, "which has no value"
        section.get_by_role("button", name="Show 10 of 40 trials").press("Enter")

        curves = section.get_by_role("group", name="accuracy. Arrow keys")
        curves.focus()
        page.keyboard.press("ArrowLeft")
        expect(curves.locator(".transient-readout")).to_have_text("trial 25, the best: 0.941 at step 400")
        page.keyboard.press("ArrowLeft")
        expect(curves.locator(".transient-readout")).to_contain_text("step 350 · trial 25 0.9")
        expect(section.get_by_role("group", name="accuracy by trial")).to_be_visible()
        legend = section.get_by_role("note", name="What the curves are")
        expect(legend).to_have_text("other trialstrainingthe best trial")
        section.get_by_role("button", name="Curve of trial 38").press("Enter")
        expect(section.get_by_role("button", name="Curve of trial 38")).to_have_attribute("aria-pressed", "true")
        expect(legend).to_contain_text("trial 38")

        section.get_by_role("button", name="Stop trial 38").press("Enter")
        expect(page.get_by_text("Stop trial 38?")).to_be_visible()
        page.keyboard.press("Escape")
        assert [each for each in page.evaluate("model.sent") if each["do"].startswith("stop")] == []
        section.get_by_role("button", name="Stop trial 38").press("Enter")
        section.get_by_role("row", name="Stop trial 38?").get_by_role("button", name="Stop", exact=True).press("Enter")
        section.get_by_role("button", name="Stop study").press("Enter")
        expect(page.get_by_text("Stop search and the 4 trials in training?")).to_be_visible()
        section.locator(".transient-run-head").get_by_role("button", name="Stop", exact=True).press("Enter")
        asked = [each for each in page.evaluate("model.sent") if each["do"].startswith("stop")]
        wanted = [{"do": "stop trial", "study": "search", "trial": 38}, {"do": "stop", "name": "search"}]
        assert [{name: each[name] for name in each if name != "asked"} for each in asked] == wanted

        assert page.evaluate(SMALL) == [], "what is pressed is 24 pixels high"
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out"
        assert page.evaluate(CUT) == 0, "every column is seen"
        assert page.evaluate("failures") == []


def test_a_study_comes_grows_and_goes_and_keeps_what_the_reader_chose(chrome: Browser) -> None:
    empty, short = StudyStory(specification(40), told=0, running=0), StudyStory(specification(40), told=12)
    with bare(chrome, "cluster", {**sent(empty), "sections": {}}, width=900) as page:
        section = page.get_by_role("region", name="Study search")
        expect(section).to_have_count(0)
        page.evaluate("studies => model.set('sections', { study: studies })", sent(empty)["sections"]["study"])
        expect(section).to_contain_text("0 of 40 trials, waits for its first trial")
        expect(section.get_by_role("table")).to_have_count(0)
        page.evaluate("studies => model.set('sections', { study: studies })", sent(short)["sections"]["study"])
        expect(section).to_contain_text("Best so far: accuracy 0.927 in trial 0")
        section.get_by_role("columnheader", name="dollars").get_by_role("button").click()
        section.get_by_role("button", name="Curve of trial 12").click()
        before = numbers(page)
        page.evaluate("studies => model.set('sections', { study: studies })", sent(short)["sections"]["study"])
        page.evaluate("() => new Promise(requestAnimationFrame)")
        assert numbers(page) == before
        expect(section.get_by_role("columnheader", name="dollars")).to_have_attribute("aria-sort", "descending")
        expect(section.get_by_role("button", name="Curve of trial 12")).to_have_attribute("aria-pressed", "true")
        page.evaluate("() => { for (const act of model.heard['comm:close']) act(); }")
        expect(section.get_by_role("button", name="Stop study")).to_be_disabled()
        page.evaluate("() => model.set('sections', {})")
        expect(section).to_have_count(0)
        assert page.evaluate("failures") == []
