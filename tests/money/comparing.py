"""The product's bill beside the third reckoning, VM by VM."""

from __future__ import annotations

from dataclasses import dataclass

from transient_magics.journal.cost import Bill

from .reckoning import Charges


@dataclass(frozen=True)
class Difference:
    """One VM: US dollars by the product's bill and by the reckoning."""

    vm: str
    ours: float
    reckoned: float

    @property
    def dollars(self) -> float:
        return self.ours - self.reckoned

    @property
    def share(self) -> float:
        """Of what was reckoned; of nothing, everything is infinitely much."""
        return self.dollars / self.reckoned if self.reckoned else float("inf") if self.dollars else 0.0


def differences(bill: Bill, reckoned: dict[str, Charges], cluster: str) -> list[Difference]:
    """By VM."""
    theirs = {name.removeprefix(f"{cluster}-"): charges.total for name, charges in reckoned.items()}
    names = sorted({*theirs, *bill.by_vm}, key=lambda name: (len(name), name))
    return [Difference(name, bill.by_vm.get(name, 0.0), theirs.get(name, 0.0)) for name in names]
