"""How far figures may be off: the differences of runs, and the middle of simulated values."""

from __future__ import annotations
