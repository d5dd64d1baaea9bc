"""A measure of stalls as its report: three kinds of VM, of which one waits for input, one for the network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

from tests.planner.test_stalls import one, step, told
from transient_magics.client.folders import Identity
from transient_magics.errors import DeclarationError
from transient_magics.planner.stalls.parts import Apart, Estimate, Stalls
from transient_magics.planner.stalls.terms import Change, Prediction, advice, what_if
from transient_magics.works.runs.stalls.report import Bar, Report

WORDS = "finished at measure 40 of 40 after 2 min 31 s"
KINDS = {
    "K80 on n1-standard-4": step(0.19, network=0.01, warm=0.08, cold=0.35),
    "V100 on n1-standard-8": step(0.05, network=0.06, shared=0.02, warm=0.04, cold=0.05),
}


def report(kinds: int = 2, *, bytes: int = 10**10) -> Report:
    """So many of the kinds."""
    bars = tuple(
        _bar(label, one(told([made] * 5, ("worker-1", "worker-2"), noise=0.01, bytes=bytes)))
        for label, made in list(KINDS.items())[:kinds]
    )
    apart = (Apart("worker-2", "computing", Estimate(0.03, 0.02, 0.04), 0.16),)
    return Report("stalls-1", "finished", WORDS, bars, Estimate(0.012, 0.01, 0.014), apart, ())


class Measured:
    """A handle whose report is known; or, if it is `coming`, of a measure that its cluster has not heard of yet."""

    name = "stalls-1"

    def __init__(self, *, coming: bool = False) -> None:
        works = {} if coming else {self.name: None}
        state = SimpleNamespace(works=works)
        self.cluster = SimpleNamespace(name="shared", identity=Identity("shared", ""), state=state)
        self.report = report()

    def __str__(self) -> str:
        return str(self.report)

    def is_over(self, state: object) -> bool:
        return True

    def changes(self) -> Iterator[Report]:
        for kinds in (0, 1, 2):
            time.sleep(0.5)
            yield report(kinds)

    def what_if(self, vm: str = "", **change: float) -> Prediction:
        bars = {each.label: each for each in self.report.bars}
        if vm not in bars:
            raise DeclarationError(f"No '{vm}' was measured")
        return what_if(bars[vm].stalls, Change(**change))


def _bar(label: str, stalls: Stalls) -> Bar:
    return Bar(label, stalls, 0.45, advice(stalls))
