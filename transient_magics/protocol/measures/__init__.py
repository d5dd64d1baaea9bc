"""What is measured of a run: the parts of a step, a traced step, and which value of a metric is the
better one.
"""

from __future__ import annotations
