"""What a measure of stalls tells: each stall of a step with its interval, what taking it away would
bring, advice.
"""

from __future__ import annotations
