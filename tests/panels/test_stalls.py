"""What the panel of a measure of stalls is sent, answers, and leaves in a stored notebook."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.panels.stalls_story import WORDS, Measured, report
from transient_magics.client import Stalls
from transient_magics.errors import DeclarationError
from transient_magics.works.runs.stalls.view import (
    CHANGES,
    COLOURS,
    UNASKED,
    answered,
    declared_view,
    parse_change,
    show_stalls,
    stalls_html,
    stalls_picture,
    stalls_view,
)

ANYTHING = some.recursive(
    some.none() | some.booleans() | some.floats() | some.text(), lambda inner: some.dictionaries(some.text(), inner)
)


def asked(message: dict[str, Any]) -> Any:
    return answered(cast("Stalls", Measured()), message)


def test_bars_have_their_parts_in_seconds_per_cent_and_dollars_and_advice_with_an_option() -> None:
    view = stalls_view(report())
    first, second = view["bars"]
    assert [each["name"] for each in first["parts"]] == list(COLOURS)
    assert sum(each["seconds"] or 0 for each in first["parts"]) == pytest.approx(0.35, rel=0.02)
    dear = first["parts"][-1]
    assert re.fullmatch(r"\d+\.\d ms ± \d\.\d", dear["words"])
    assert (dear["share"], dear["dollar"], dear["sure"]) == ("43%", "$0.43 of each dollar", True)
    assert [each["name"] for each in second["parts"] if not each["sure"]]
    assert "--disk" in first["advice"]
    assert "--zone" in second["advice"]
    assert any("worker-2: its computing takes 16% of a step longer than that of its equals" in each
               for each in view["below"])  # fmt: skip
    assert json.loads(json.dumps(view)) == view


def test_a_stored_notebook_has_the_same_in_plain_html() -> None:
    drawn = stalls_html(report())
    view = stalls_view(report())
    for each in view["bars"]:
        assert each["heading"].split("$")[0] in drawn
        assert each["advice"] in drawn
    assert drawn.count("role='img'") == 2
    assert "<script" not in drawn
    assert "stalls-7" in stalls_picture(declared_view("stalls-7"))
    assert WORDS in drawn


def test_a_change_is_answered_with_the_step_its_parts_and_how_sure_that_is() -> None:
    told = asked({"vm": "K80 on n1-standard-4", "change": {"cache": 1.0, "cores": 2.0}, "asked": 7})
    assert (told["asked"], told["error"]) == (7, "")
    step = r"cache=1, cores=2: 20\d\.\d ms a step \(16\d\.\d to 24\d\.\d in another run\)"
    assert re.fullmatch(step + r", 1\.7\d \(1\.[56]\d to 1\.[89]\d\) times as fast", told["words"])
    assert sum(seconds for _, seconds in told["parts"]) == pytest.approx(0.2, rel=0.02)
    same = asked({"vm": "V100 on n1-standard-8", "change": dict.fromkeys(CHANGES[1:], 1.0), "asked": 8})
    assert re.fullmatch(r"as measured: 13\d\.\d ms a step \(11\d\.\d to 15\d\.\d in another run\)", same["words"])


def test_a_cell_shows_its_measure_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shell = SimpleNamespace(execution_count=3)
    monkeypatch.setattr("transient_magics.works.runs.stalls.view.current_shell", lambda: shell)
    show_stalls(cast("Stalls", Measured()))  # %transient_stalls
    show_stalls(cast("Stalls", Measured()))  # what it returns is the cell's value
    assert capsys.readouterr().out.count(WORDS) == 1


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"vm": "A100", "change": {}}, "No 'A100' was measured"),
        (
            {"vm": "K80 on n1-standard-4", "change": {"cache": 7}},
            "cache must be a share of the data from 0 to 1, not 7",
        ),
        ({"vm": "K80 on n1-standard-4", "change": {"clock": 2}}, "Unknown change 'clock'"),
        ({"vm": "K80 on n1-standard-4", "change": {"cores": True}}, "cores must be a number, not True"),
        ({"vm": ["x"], "change": 5, "asked": "x"}, "A change must be an object with numbers"),
    ],
)
def test_what_a_page_may_not_ask_is_answered_in_a_sentence(message: dict[str, Any], said: str) -> None:
    assert said in asked(message)["error"]
    assert asked(message)["parts"] == UNASKED["parts"]


@given(ANYTHING)
def test_whatever_a_page_sends_is_a_change_or_refused(message: object) -> None:
    try:
        found = parse_change(message)
    except DeclarationError:
        return
    assert all(name in CHANGES and isinstance(value, float) for name, value in found.items())
