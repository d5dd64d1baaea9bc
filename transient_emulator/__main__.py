"""`python -m transient_emulator`, also `transient emulator`: run one emulator until it is told to end.

This part runs outside of any namespace: it takes the lock, opens the listening socket on the host's loopback, and then
becomes the emulator proper inside a user and network namespace (see `isolation`), which inherits the socket.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transient_magics import places
from transient_magics.errors import TransientError, UnreachableError
from transient_magics.imports import uncollected

from .network import isolation
from .network.isolation import Isolation
from .network.ownership import open_sources
from .settings import Settings, find

_PREDECESSOR_SECONDS = 10


def run(argv: list[str] | None = None) -> int:
    """Parse the command line and serve, or steer one that serves. Returns the exit code."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["project"]:
        return _steer(given[1:])
    options = _parser().parse_args(given)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # What these two tell is that clients left in the middle of something.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    try:
        if options.inside:
            settings = Settings(**json.loads(options.inside))
            for descriptor in (settings.listening, settings.lock, *settings.sources):
                os.set_inheritable(descriptor, False)
            _serve(settings)
        else:
            _prepare_and_serve(options)
    except TransientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _steer(argv: list[str]) -> int:
    from .project.program import run

    try:
        return run(argv)
    except TransientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transient emulator",
        description="Emulate the part of Compute Engine that transient_magics uses, on this machine.",
        epilog="`transient emulator project` shows and changes what the project of a running one lacks.",
    )
    parser.add_argument(
        "--port", type=int, help="port on 127.0.0.1 (default: the one it had before, else any free one)"
    )
    parser.add_argument("--state", type=Path, help="directory for its VMs and its state (default: this user's own)")
    parser.add_argument("--linger", type=float, metavar="SECONDS",
                        help="end so long after the last VM is gone (default: 0 = never)")  # fmt: skip
    parser.add_argument("--boot", type=float, metavar="SECONDS", help="time a VM takes to run (default: 1.5)")
    parser.add_argument("--notice", type=float, metavar="SECONDS",
                        help="time between the notice of a preemption and its end (default: 30)")  # fmt: skip
    parser.add_argument(
        "--keep", action="store_true", help="leave VMs running when told to end; the next one adopts them"
    )
    parser.add_argument(
        "--fresh-project", action="store_true",
        help="begin with a project that lacks what a new Google project lacks: APIs, roles, quotas, Cloud NAT; with "
        "policies that are on (`transient emulator project` mends it step by step)",
    )  # fmt: skip
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


def _prepare_and_serve(options: argparse.Namespace) -> None:
    state = places.private((options.state or places.emulator()).absolute())
    lock = _lock(state)
    before = find(state)
    allowed = isolation.available()
    holder = before.get("holder")
    same = before.get("isolation") == allowed.value and (
        allowed is Isolation.NONE or bool(holder and isolation.alive(*holder))
    )
    if holder and not same and isolation.alive(*holder):
        isolation.kill(holder[0])
    sockets = places.sockets()
    tag = hashlib.sha256(str(state).encode()).hexdigest()[:6]
    settings = Settings(
        state=str(state), relay=str(sockets / f"relay-{tag}.sock"), homes=str(sockets), owner=os.getuid(),
        isolation=allowed.value, keep=options.keep, fresh=options.fresh_project,
        linger=_setting(options.linger, before, "linger", 0.0), boot=_setting(options.boot, before, "boot", 1.5),
        notice=_setting(options.notice, before, "notice", 30.0),
        listening=_listen(options.port, before.get("url", "")), lock=lock, sources=open_sources(),
        holder=holder if same else None, same_network=same,
    )  # fmt: skip
    if allowed is Isolation.NONE:
        _serve(settings)
        return
    for descriptor in (settings.listening, settings.lock, *settings.sources):
        os.set_inheritable(descriptor, True)
    isolation.enter(["--inside", settings.to_json()], holder[0] if settings.same_network and holder else None)


def _setting(given: float | None, before: dict[str, Any], name: str, default: float) -> float:
    """What the command line says, else what the emulator that was killed had, else the default."""
    return given if given is not None else float(before.get(name, default))


def _serve(settings: Settings) -> None:
    # Only here: the servers take half a second to import, and the process outside does not need them.
    with uncollected():
        from .server import serve

    serve(settings)


def _listen(port: int | None, earlier_url: str) -> int:
    """A listening socket on the host's loopback: the port asked for, or the earlier one if it is free, or any."""
    earlier = earlier_url.rpartition(":")[2]
    wanted = [port] if port is not None else [*([int(earlier)] if earlier.isdigit() else []), 0]
    for number in wanted:
        try:
            return socket.create_server(("127.0.0.1", number), backlog=512).detach()
        except OSError as error:
            if number == wanted[-1]:
                raise UnreachableError(
                    f"the emulator cannot listen on port {number}: {error.strerror}", fix="Choose another --port."
                ) from error
    raise AssertionError("there is always a port to try")


def _lock(state: Path) -> int:
    """The lock that one emulator holds as long as it lives. A predecessor that is just ending is waited for."""
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if "url" not in find(state):
        with contextlib.suppress(TimeoutError), _time_limit(_PREDECESSOR_SECONDS):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return descriptor
    url = find(state).get("url", "")
    raise UnreachableError(f"an emulator serves {state} already", where=url, fix="Use that one, or another --state.")


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """TimeoutError in whatever the main thread waits for."""

    def expire(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(run())
