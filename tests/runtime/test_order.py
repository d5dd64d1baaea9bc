"""Workers that begin anew see all of the data: tests.runtime.records_seen on a few thousand records."""

from __future__ import annotations

import re

import pytest

from tests.runtime import programs

pytestmark = [pytest.mark.training, pytest.mark.nightly]


def test_workers_do_not_read_the_same_and_short_lives_reach_every_record() -> None:
    printed = programs.run("tests.runtime.records_seen", "--quick")
    figures = {name: float(value) for name, value in re.findall(r"^(.+?)  +(\d\.\d+)", printed, re.MULTILINE)}
    assert figures["a cluster's epoch, 10 files: seen"] > 0.5, "0.68 in the mean; they all began at one place"
    assert figures["20 lives of 18 steps, 10 files: seen"] > 0.95, "0.99 in the mean"
