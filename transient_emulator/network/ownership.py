"""Whose the other end of a loopback connection is, by what the kernel knows.

It is asked for the one connection (Linux's sock_diag), in microseconds. Where it does not answer that, its whole tables
of TCP connections are read, in milliseconds each, and more the more connections the machine has or had a minute ago.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

Place = tuple[str, int]

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 0x1
_ANY_INTERFACE, _ANY_COOKIE = struct.pack("I", 0), b"\xff" * 8
_HEAD, _NAMES = struct.calcsize("IHHII"), 48  # bytes: of a message's head, and of what names a connection in it
_OPEN = (1, 8)  # ESTABLISHED, CLOSE_WAIT


def open_sources() -> list[int]:
    """Descriptors for `belongs`, which go on telling of the network namespace, and in its users' numbers, of today."""
    descriptors: list[int] = []
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a kernel that keeps it to itself
        asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _SOCK_DIAG)
        descriptors.append(asking.detach())
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            descriptors.append(os.open(path, os.O_RDONLY))
    return descriptors


def belongs(sources: list[int], owner: int, client: Place, server: Place) -> bool:
    """Whether the client's end of an open connection belongs to the user of this number.

    A connection that nobody holds any more is written down as root's, whoever opened it: that one is nobody's.
    """
    for source in sources:
        held = _asked(source, client, server) if _is_socket(source) else _looked_up(source, client, server)
        if held is not None:
            user, state, number = held
            return user == owner and state in _OPEN and number != 0
    return False


def _is_socket(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")


def _asked(descriptor: int, client: Place, server: Place) -> tuple[int, int, int] | None:
    names = struct.pack("!HH", client[1], server[1])
    names += b"".join(socket.inet_aton(place[0]).ljust(16, b"\0") for place in (client, server))
    every_state = 0xFFFF_FFFF
    body = struct.pack("BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, every_state) + names
    body += _ANY_INTERFACE + _ANY_COOKIE
    head = struct.pack("IHHII", _HEAD + len(body), _BY_FAMILY, _REQUEST, 0, 0)
    try:
        os.write(descriptor, head + body)
        answer = os.read(descriptor, 1 << 16)
    except OSError:  # this kernel cannot be asked
        return None
    if struct.unpack_from("IHHII", answer)[1] != _BY_FAMILY:  # an error: there is none, or it cannot tell
        return None
    _family, state = struct.unpack_from("BB", answer, _HEAD)
    _expires, _received, _sent, user, number = struct.unpack_from("IIIII", answer, _HEAD + 4 + _NAMES)
    return user, state, number


def _looked_up(table: int, client: Place, server: Place) -> tuple[int, int, int] | None:
    wanted = {(_hex(client, six), _hex(server, six)) for six in (False, True)}
    for fields in map(str.split, _read(table).splitlines()[1:]):
        if (fields[1], fields[2]) in wanted:
            return int(fields[7]), int(fields[3], 16), int(fields[9])
    return None


def _hex(place: Place, six: bool) -> str:
    """An address as the table writes it: words of the machine's byte order, in hexadecimal."""
    packed = socket.inet_aton(place[0])
    if six:
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{place[1]:04X}"


def _read(table: int) -> str:
    os.lseek(table, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while part := os.read(table, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()
