"""What processes that fork from ours inherit of our signals: nothing.

asyncio hears of signals through a file descriptor that a fork shares (python/cpython #94454). The
SIGTERM with which `multiprocessing.Pool` ends its processes would arrive in the event loop of their
parent, and not end them.
"""

from __future__ import annotations

import os
import signal
import threading

_parent: int | None = None
_held = threading.local()
"""Per thread that forks: the signals that it had blocked before (`mask`), while it forks."""


def separate_children() -> None:
    """From now on, processes that fork from this one have Python's own signal handlers, and no
    wakeup descriptor.

    This is so for children alone: what they set themselves, their own children inherit as usual.
    """
    global _parent
    if _parent is None:
        os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_reset)
    _parent = os.getpid()


def _hold() -> None:
    # A signal that comes to a child before `_reset` would still be written to the parent's
    # descriptor.
    if os.getpid() == _parent:
        _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _release() -> None:
    mask = getattr(_held, "mask", None)
    if mask is not None:
        _held.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _reset() -> None:
    if getattr(_held, "mask", None) is None:
        return
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            if number == signal.SIGINT:
                usual = signal.default_int_handler
            else:
                usual = signal.SIG_DFL
            signal.signal(number, usual)
    _release()
