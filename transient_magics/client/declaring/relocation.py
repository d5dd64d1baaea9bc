"""What moving a cluster costs, as it is asked before it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...spec import ClusterSpec, render_duration
from .. import text

_UNSEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Relocation:
    """A cluster that is to be `spec`, from what it is `before`: `begun`, or only asked for.

    `bytes` of checkpoints and shared data follow it and cost `dollars`; `ends_sooner` is by how
    many seconds its end comes nearer, where the limit on money would not last for both places.
    """

    before: ClusterSpec
    spec: ClusterSpec
    begun: bool
    bytes: int
    dollars: float
    ends_sooner: float

    @classmethod
    def of(
        cls, before: ClusterSpec, spec: ClusterSpec, told: Mapping[str, Any], *, begun: bool
    ) -> Relocation:
        """With what the controller has told of it."""
        sooner = max(0.0, float(told["ends_at_before"]) - float(told["ends_at"]))
        return cls(before, spec, begun, int(told["bytes"]), float(told["dollars"]), sooner)

    def __str__(self) -> str:
        would = "moves" if self.begun else "would move"
        said = [
            f"{self.spec.name} {would} to {text.destination(self.spec)}; its runs go on there from a save."
        ]
        if self.bytes:
            said.append(
                f"About {self.bytes / 2**20:,.1f} MiB follow, for {text.transfer_price(self.dollars)} of data transfer."
            )
        elif self.spec.home_zone == self.before.home_zone:
            said.append("Nothing crosses zones for it.")
        else:
            said.append("No run has saved anything that would follow.")
        hourly = (
            f"{text.money(self.spec.hourly)} per hour, {text.money(self.before.hourly)} where it is"
        )
        said.append(f"It costs {hourly}; both are paid until the VMs there are ready.")
        if self.ends_sooner > _UNSEEN_SECONDS:
            said.append(
                f"It ends {render_duration(self.ends_sooner)} sooner, for its limit has to pay for both."
            )
        if not self.begun:
            said.append("Nothing was moved. With --yes (in Python yes=True) it is.")
        return "\n".join(said)

    def __repr__(self) -> str:
        return str(self)
