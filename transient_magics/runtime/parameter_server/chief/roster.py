"""Who trains, as the events of the run say.

A chief that was killed may have told an event and not yet kept what followed from it, or the other way round. So what
its successor takes over of the workers is what was told: in the journal nobody joins or leaves twice, or never.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Roster:
    """Workers by number: all that ever `joined`, and those of them that have not left."""

    joined: Mapping[int, str] = field(default_factory=dict)
    training: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def after(cls, events: Iterable[Mapping[str, Any]]) -> Roster:
        """The roster at the end of these events."""
        joined, training = dict[int, str](), dict[int, str]()
        for event in events:
            if event["kind"] == "worker.joined":
                joined[event["number"]] = training[event["number"]] = event["worker"]
            elif event["kind"] == "worker.left":
                training.pop(event["number"], None)
        return cls(joined, training)
