"""The published weather: lifetimes and start-up times as the catalog has them, and how many VMs go at once."""

from __future__ import annotations

from ...catalog.lifetimes import HOUR, LAST_HOUR, Lifetimes, lifetimes, stand_ins, startup

__all__ = ["HOUR", "LAST_HOUR", "WAVES", "Lifetimes", "lifetimes", "stand_ins", "startup"]

WAVES = 0.25
"""The share of a pool that one wave takes, on average. In the ICAC'19 data, of two VMs of one zone, GPU and campaign of
which one is revoked the other goes within the same five minutes in 6.0 % of the cases (72 of 1206 pairs, GPUs only); in
the process of `revocations` that is the square of this share."""
