"""Every Keras optimizer computes on parameter servers what it computes in Keras, also for two workers at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    return json.loads(programs.run("tests.runtime.keras_optimizers", own=True).splitlines()[-1])


def test_six_steps_of_each_optimizer_are_those_of_keras(measured: dict[str, Any]) -> None:
    assert len(measured["worst"]) > 20
    assert {name: value for name, value in measured["worst"].items() if value > 5e-6} == {}


def test_no_update_of_two_workers_at_once_is_lost(measured: dict[str, Any]) -> None:
    assert measured["concurrently"] == pytest.approx(-0.4, abs=1e-5)
