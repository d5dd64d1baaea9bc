"""How much longer a step takes where the parameter servers are in another region.

A step pulls the variables and pushes their gradients. Each way takes round trips, and the bytes go through one TCP
connection to each server, which carries no more than its window in a round trip. Windows and round trips were fitted to
CM-DARE's steps at 0.3 and 30.3 ms (Li et al., ICDCS'20, `speed_data_supertable`: four networks on the K80 and the P100,
one worker and one server), which they meet within 8 % in the mean and 17 % at worst.

Workers of clusters take longer. Between us-east1 and us-central1 what was added to a step of ResNet-32 was about 1.3
times what follows from CM-DARE for ICAC'19's K80s, and 6 times for its P100s (Li et al., ICAC'19; the mean hours of its
clusters `3e1c` and `2e2c`). Over these three measurements the geometric mean is twice what `alone` computes
(`_IN_CLUSTERS`), and the standard deviation of the logarithm is 1.0 (`ADDED_ERROR`). Nothing tells which of them
another distance is like, so each is an estimate.

The same window and round trip bound the steps per second of a distant worker, whatever its GPU. No limit of its own is
needed for that: the seconds for the bytes are part of what is added, and one error is drawn for them.
"""

from __future__ import annotations

_SECONDS_PER_DEGREE = 0.0017  # a round trip over 111 km in glass fibre (200 km/ms), half as long again as a crow's
_WITHIN_A_REGION = 0.0003
_ROUND_TRIPS = 0.64
_WINDOW = 3.96e6
"""Bytes that are in flight at most: about the 4 MiB that Linux gives a sender (`tcp_wmem`, ip-sysctl)."""
_IN_CLUSTERS = 2.0
ADDED_ERROR = 1.0
"""How far off the logarithm of `added_seconds` is (standard deviation)."""


def round_trip(degrees: float) -> float:
    """Return the seconds to a region that is so far away on the globe and back: an estimate."""
    return _WITHIN_A_REGION + _SECONDS_PER_DEGREE * degrees


def alone(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the seconds that a step takes longer where nothing but one worker trains, as CM-DARE measured it.

    Parameters
    ----------
    seconds
        The round trip to the parameter servers.
    step_bytes
        What a step moves, both ways together.
    servers
        The number of parameter servers, over which the bytes are spread.
    """
    further = max(seconds - _WITHIN_A_REGION, 0.0)
    return _ROUND_TRIPS * further + step_bytes / max(servers, 1) * further / _WINDOW


def added_seconds(seconds: float, step_bytes: float, servers: int = 1) -> float:
    """Return the seconds that a step of a cluster's worker takes longer, in the median, with the parameters of
    `alone`."""
    return _IN_CLUSTERS * alone(seconds, step_bytes, servers)
