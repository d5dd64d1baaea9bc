"""The bytes that a VM's kernel counts as sent and received."""

from __future__ import annotations

from transient_magics.runtime.agent.agent import network_bytes

COUNTERS = """\
Inter-|   Receive                                               |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 9000000    9000    0    0    0     0          0         0 9000000  9000    0    0    0     0       0          0
  ens4: 5000000    4000    1    2    0     0          0         3 7000000  6000    0    0    0     0       0          0
docker0:   2000      20    0    0    0     0          0         0  300000   400    0    0    0     0       0          0
"""


def test_traffic_is_the_bytes_of_all_interfaces_but_the_loopback() -> None:
    sent, received = network_bytes(COUNTERS)
    assert sent == 7_300_000
    assert received == 5_002_000
