"""How many examples a property test looks at, where they are not as many as those of others."""

from __future__ import annotations

from typing import Any

import hypothesis


def examples(count: int, **more: Any) -> hypothesis.settings:
    """So many where others have a hundred: a quick run sees a part of these too, an exploring one more of them."""
    others = hypothesis.settings.default.max_examples
    return hypothesis.settings(max_examples=max(count * others // 100, 1), **more)
