"""Asking for advice on Spot capacity, and keeping it: what is asked, when, and what follows is
`ranking`'s.

Where Compute Engine gives none, what was measured from this machine within the hour stands in for
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...cloud import Finding
from ...journal import events, now
from ...spec import ClusterSpec
from ...spec.measurement import measurements, shares
from ..decisions.ranking import HOLDS_SECONDS, due, phrase, questions, ranked
from ..record import Recorder
from .access import Access
from .zones import shape_of


async def ask(access: Access, spec: ClusterSpec, kind: str) -> events.ClusterAdvised | None:
    """The advice on a GPU of the cluster, if there is any. Never raises CloudError."""
    zones = questions(spec)[kind]
    shape = shape_of(spec, kind, zones[0])
    count = sum(
        group.count for group in spec.groups if group.accelerator == kind and not group.zone
    )
    found = await access.engine.advice.spot(shape, zones, count)
    chances = {zone: (chance.obtainability, chance.uptime) for zone, chance in found.items()}
    preempted = {
        zone: chance.preempted for zone, chance in found.items() if chance.preempted is not None
    }
    if not chances:
        return measured(spec.project, kind, zones, now())
    return events.ClusterAdvised(accelerator=kind, zones=chances, preempted=preempted)


def measured(
    project: str | None, kind: str, zones: Sequence[str], at: float
) -> events.ClusterAdvised | None:
    """What was seen of these zones with the same project from this machine in the hour before `at`,
    if anything.
    """
    seen = (
        sighting
        for spec, sightings in measurements()
        if (spec.project, spec.gpu, spec.provisioning_model) == (project, kind, "spot")
        for sighting in sightings
        if sighting.zone in zones and at - HOLDS_SECONDS < sighting.at <= at
    )
    found = {zone: (given / asked, 0.0) for zone, (asked, given) in shares(seen).items()}
    if found:
        return events.ClusterAdvised(accelerator=kind, zones=found, measured=True)
    return None


async def findings(access: Access, spec: ClusterSpec) -> list[Finding]:
    """Which zone the advice prefers, by GPU; nothing where there is no advice."""
    found: list[Finding] = []
    for kind, zones in questions(spec).items():
        if given := await ask(access, spec, kind):
            found.append(
                Finding(
                    f"advice on {kind}",
                    True,
                    phrase(given, ranked(spec, kind, zones, given, given.at)),
                )
            )
    return found


class Adviser:
    """Asks when a question is due, and records the answers."""

    def __init__(self, recorder: Recorder, access: Access) -> None:
        self._recorder = recorder
        self._access = access
        self._asked: dict[str, float] = {}

    async def keep_asking(self, now: float) -> None:
        """Ask what is due at `now` and return with the answers; nothing is due most of the time."""
        spec = self._recorder.state.spec
        for kind in due(self._recorder.state, self._asked, now):
            self._asked[kind] = (
                now  # also where there is no answer: it is as little there a moment later
            )
            if spec and (given := await ask(self._access, spec, kind)):
                self._recorder.record(given)

    def due(self, now: float) -> bool:
        """Whether something is to be asked."""
        return bool(due(self._recorder.state, self._asked, now))
