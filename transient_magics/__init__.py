"""transient_magics: train on cheap, revocable GPU servers without leaving the notebook."""

from __future__ import annotations

__version__ = "0.1.0"
