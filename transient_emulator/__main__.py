"""`python -m transient_emulator`, also `transient emulator`: run one emulator.

This part runs outside of any namespace. It takes the lock and opens the listening socket on the
host's loopback. Then it becomes the emulator proper inside a user and network namespace (see
`isolation`), which inherits the socket.
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
    """Parse the command line and serve, or change a running emulator.

    Parameters
    ----------
    argv
        The command line (default: that of this process).

    Returns
    -------
    int
        The exit code.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] == ["project"]:
        return _run_project(arguments[1:])
    options = _parser().parse_args(arguments)
    log_format = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=log_format)
    # The warnings of these two only report clients that left in the middle of something.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    try:
        if options.inside:
            settings = Settings(**json.loads(options.inside))
            # These descriptors came through an exec. Processes of VMs must not inherit them.
            _set_inheritable(settings, False)
            _serve(settings)
        else:
            _prepare_and_serve(options)
    except TransientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _run_project(argv: list[str]) -> int:
    from .project.program import run

    try:
        return run(argv)
    except TransientError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="transient emulator",
        description="Emulate the part of Compute Engine that transient_magics uses.",
        epilog="`transient emulator project` shows which APIs, roles and quotas the emulated "
        "project lacks, and changes them.",
    )
    parser.add_argument(
        "--port",
        type=int,
        help="port on 127.0.0.1 (default: that of the previous emulator, otherwise a free one)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        help="directory for the VMs and the state (default: a directory of this user)",
    )
    parser.add_argument(
        "--linger",
        type=float,
        metavar="SECONDS",
        help="exit this time after the last VM has ended (default: 0, which means never)",
    )
    parser.add_argument(
        "--boot",
        type=float,
        metavar="SECONDS",
        help="time from the request for a VM to its boot (default: 1.5)",
    )
    parser.add_argument(
        "--notice",
        type=float,
        metavar="SECONDS",
        help="time from a preemption notice to the end of the VM (default: 30)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave VMs running on exit; the next emulator adopts them",
    )
    parser.add_argument(
        "--fresh-project",
        action="store_true",
        help="start with a project that lacks the same APIs, roles, quotas and Cloud NAT as a new "
        "Google project, and has organization policies. Use `transient emulator project` to "
        "change them",
    )
    # The emulator's own second half: see the module.
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    return parser


def _prepare_and_serve(options: argparse.Namespace) -> None:
    state = places.private((options.state or places.emulator()).absolute())
    lock = _lock(state)
    # A killed emulator leaves its description. This one takes over its settings, network and VMs.
    before = find(state)
    isolated = isolation.available()
    holder = before.get("holder")
    holder_alive = bool(holder) and isolation.alive(*holder)
    same_network = before.get("isolation") == isolated.value and (
        isolated is Isolation.NONE or holder_alive
    )
    if holder and holder_alive and not same_network:
        isolation.kill(holder[0])
    # The path of a Unix socket has 107 bytes at most, so they are not in the state
    # directory.
    sockets = places.sockets()
    tag = hashlib.sha256(str(state).encode()).hexdigest()[:6]
    settings = Settings(
        state=str(state),
        relay=str(sockets / f"relay-{tag}.sock"),
        homes=str(sockets),
        owner=os.getuid(),
        isolation=isolated.value,
        keep=options.keep,
        fresh=options.fresh_project,
        linger=_setting(options.linger, before, "linger", 0.0),
        boot=_setting(options.boot, before, "boot", 1.5),
        notice=_setting(options.notice, before, "notice", 30.0),
        listening=_listen(options.port, before.get("url", "")),
        lock=lock,
        sources=open_sources(),
        holder=holder if same_network else None,
        same_network=same_network,
    )
    if isolated is Isolation.NONE:
        _serve(settings)
        return
    _set_inheritable(settings, True)
    namespaces = holder[0] if same_network and holder else None
    isolation.enter(["--inside", settings.to_json()], namespaces)


def _set_inheritable(settings: Settings, inheritable: bool) -> None:
    for descriptor in (settings.listening, settings.lock, *settings.sources):
        os.set_inheritable(descriptor, inheritable)


def _setting(given: float | None, before: dict[str, Any], name: str, default: float) -> float:
    """Return the value of the command line, or of the emulator that was killed, or the default."""
    if given is not None:
        return given
    return float(before.get(name, default))


def _serve(settings: Settings) -> None:
    # Imported only here: the servers take half a second to import, and the process outside does not
    # need them.
    with uncollected():
        from .server import serve

    serve(settings)


def _listen(port: int | None, earlier_url: str) -> int:
    """Return a listening socket on the host's loopback.

    It has the requested port, or else the earlier port if that is free, or else any port.
    """
    if port is not None:
        candidates = [port]
    else:
        earlier = earlier_url.rpartition(":")[2]
        candidates = [int(earlier), 0] if earlier.isdigit() else [0]
    for number in candidates:
        try:
            return socket.create_server(("127.0.0.1", number), backlog=512).detach()
        except OSError as error:
            if number == candidates[-1]:
                raise UnreachableError(
                    f"the emulator cannot listen on port {number}: {error.strerror}",
                    fix="Choose another --port.",
                ) from error
    raise AssertionError("the list of ports must not be empty")


def _lock(state: Path) -> int:
    """Return the lock that an emulator holds while it lives.

    Waits for a predecessor that is just ending.
    """
    descriptor = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    # An emulator that is ending has deleted its description already.
    if "url" not in find(state):
        with contextlib.suppress(TimeoutError), _time_limit(_PREDECESSOR_SECONDS):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return descriptor
    url = find(state).get("url", "")
    raise UnreachableError(
        f"another emulator already serves {state}",
        where=url,
        fix="Use that one, or another --state.",
    )


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread's blocking call after `seconds`."""

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
