"""Numbers and addresses of VMs: each VM has a number, its address follows from it."""

from __future__ import annotations

from collections.abc import Collection

from ..rest import wire

_FIRST, _COUNT = 2, 4000
_MOST_VMS = 1000  # as many cables as a bridge of Linux takes


def free_number(latest: int, taken: Collection[int]) -> int:
    """The number for a new VM. ApiError 403 where there are too many.

    The next after `latest` rather than the lowest: an address that was just given up is not handed
    to a stranger at once, while others may still try to reach who had it.
    """
    for offset in range(1, _COUNT):
        number = _FIRST + (latest - _FIRST + offset) % _COUNT
        if number not in taken and number & 255 not in (0, 255) and len(taken) < _MOST_VMS:
            return number
    raise wire.ApiError(
        403, "quotaExceeded", f"Quota 'INSTANCES' exceeded. Limit: {_MOST_VMS}.0 on this machine."
    )


def address(number: int, own_network: bool) -> str:
    """Where that VM is, in the VM network (own_network) or on the machine's loopback."""
    return ("10.128.{}.{}" if own_network else "127.128.{}.{}").format(number >> 8, number & 255)
