"""What the doctor recorded can be asked again of an emulator, and every field that differs is named.

`emulator-report.json` was recorded from the emulator (`transient doctor --spend 1`, without its first cluster and the
objects in its bucket): it stands for a report from Google, which nobody has recorded yet.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cloud.contract import Replay, compare
from tests.emulator.emulated_cloud import start

REPORT = Path(__file__).with_name("emulator-report.json")


@pytest.mark.slow
def test_the_emulator_answers_as_recorded_and_what_differs_is_named(tmp_path: Path) -> None:
    exchanges: list[dict[str, Any]] = json.loads(REPORT.read_text(encoding="utf-8"))["exchanges"]
    (region,) = (each for each in exchanges if each["route"].endswith("/regions/{region}"))
    other = copy.deepcopy(region)
    other["answered"]["supportsPzs"] = True
    other["answered"]["quotas"][0]["limit"] = "<string>"
    del other["answered"]["selfLink"]
    refused = {**copy.deepcopy(region), "method": "POST", "status": 403}
    running = start(tmp_path / "state", "--notice", "0.2")
    try:
        replay = Replay(running.url)
        found = list(replay.differences([*exchanges, other, refused]))
    finally:
        running.process.terminate()
        running.process.wait()
    route = "/compute/v1/projects/{project}/regions/{region}"
    assert found == [
        f"GET {route} (200): quotas[].limit is a string of Google, a number of the emulator",
        f"GET {route} (200): the emulator has selfLink, Google not",
        f"GET {route} (200): Google has supportsPzs, the emulator not",
        f"POST {route} (403): the emulator answers 405",
    ]
    assert replay.asked > 60


@pytest.mark.parametrize(
    ("recorded", "given", "said"),
    [
        ({"a": "<string>"}, {"a": "a value that tells"}, []),
        ({"kind": "compute#a"}, {"kind": "compute#b"}, ["kind is 'compute#a' of Google, 'compute#b' of the emulator"]),
        ({"status": "RUNNING"}, {"status": "DONE"}, []),
        ({"items": []}, {"items": [{"a": "<string>"}]}, []),
        ({"a": {"b": "<number>"}}, {"a": {}}, ["Google has a.b, the emulator not"]),
        ({"a": ["<string>"]}, {"a": "<string>"}, ["a is a list of Google, a string of the emulator"]),
    ],
)
def test_shapes_are_compared_field_by_field(recorded: Any, given: Any, said: list[str]) -> None:
    assert list(compare(recorded, given)) == said
