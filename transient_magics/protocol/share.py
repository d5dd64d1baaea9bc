"""Which part of its processors and of its network a VM has: all of both, unless it was deflated.

What an emulated Compute Engine leaves to a VM stands in the VM's metadata, where its controller reads it; Google's own
shrinks no VM that runs.
"""

from __future__ import annotations

from dataclasses import dataclass

KEY = "emulator-share"
"""The item of the VM's metadata: `0.5 1`, its part of CPU and network."""
LEAST = 0.05
"""No VM is left with less: it could not even answer."""


@dataclass(frozen=True, slots=True)
class Share:
    """Parts from `LEAST` to 1."""

    cpu: float = 1.0
    network: float = 1.0

    def __str__(self) -> str:
        return f"{self.cpu:.4g} {self.network:.4g}"

    @property
    def whole(self) -> bool:
        """Whether the VM has all that it was rented with."""
        return self.cpu >= 1.0 and self.network >= 1.0

    def least_of(self, other: Share) -> Share:
        """What is left where both hold."""
        return Share(min(self.cpu, other.cpu), min(self.network, other.network))


WHOLE = Share()


def share_of(text: str) -> Share:
    """What the item says; all of it, where that is no share."""
    try:
        cpu, network = map(float, text.split())
    except ValueError:
        return WHOLE
    return Share(cpu, network) if LEAST <= cpu <= 1.0 and LEAST <= network <= 1.0 else WHOLE
