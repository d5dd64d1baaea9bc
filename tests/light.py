"""What a run trains where nobody looks at how well: each test of a recovery computes as little as it can."""

from __future__ import annotations

from typing import Any

LIGHT: dict[str, Any] = {
    "model": "basic_fc_relu",
    "hparams_set": "basic_fc_small",
    "hparams": "batch_size=8,learning_rate=0.5,learning_rate_warmup_steps=10",
    "problem": "image_digits",
}
"""It reads the digits of `templates/digits.py`. Tests of tours and models train the residual network there."""
