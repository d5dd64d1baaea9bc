"""The owner of the other end of a loopback connection, as the kernel knows it.

The kernel answers for a single connection (Linux's sock_diag) in microseconds. Kernels that do not
have their whole tables of TCP connections read instead. That takes milliseconds per table, and
longer the more connections the machine has or had a minute ago.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct

Place = tuple[str, int]
"""An IPv4 address and a port."""

# linux/netlink.h, linux/sock_diag.h: the protocol, the request, and its flag.
_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 0x1
# linux/inet_diag.h: the fields that identify a connection apart from its addresses.
_ANY_INTERFACE = struct.pack("I", 0)
_ANY_COOKIE = b"\xff" * 8
_EVERY_STATE = 0xFFFF_FFFF
# Bytes: a message's head, and the part of a message that identifies a connection.
_HEAD = struct.calcsize("IHHII")
_NAMES = 48
_OPEN = (1, 8)  # ESTABLISHED, CLOSE_WAIT


def open_sources() -> list[int]:
    """Open what `belongs` reads.

    Returns -------
    list
        Descriptors. They report the network namespace, and the user ids, of the moment at which
        they were opened, also when the process has moved to another namespace.
    """
    descriptors: list[int] = []
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or a kernel without sock_diag
        flags = socket.SOCK_RAW | socket.SOCK_NONBLOCK
        kernel = socket.socket(socket.AF_NETLINK, flags, _SOCK_DIAG)
        descriptors.append(kernel.detach())
    # IPv4 connections of sockets that take both versions are in the second table.
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            descriptors.append(os.open(path, os.O_RDONLY))
    return descriptors


def belongs(sources: list[int], owner: int, client: Place, server: Place) -> bool:
    """Return whether the client's end of an open connection belongs to a user.

    Parameters
    ----------
    sources
        Descriptors of `open_sources`, asked in this order.
    owner
        The user's id.
    client, server
        The two ends of the connection.
    """
    for source in sources:
        if _is_socket(source):
            entry = _query(source, client, server)
        else:
            entry = _look_up(source, client, server)
        if entry is not None:
            user, state, inode = entry
            # The kernel attributes a connection that no process holds any more to root (inode 0).
            # An emulator of root must not serve it: another user may have opened it and left.
            return user == owner and state in _OPEN and inode != 0
    return False


def _is_socket(descriptor: int) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")


def _query(descriptor: int, client: Place, server: Place) -> tuple[int, int, int] | None:
    """Ask sock_diag for a connection: its user, state and inode; None without an answer."""
    names = struct.pack("!HH", client[1], server[1])
    for place in (client, server):
        names += socket.inet_aton(place[0]).ljust(16, b"\0")
    body = struct.pack("BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, _EVERY_STATE) + names
    body += _ANY_INTERFACE + _ANY_COOKIE
    head = struct.pack("IHHII", _HEAD + len(body), _BY_FAMILY, _REQUEST, 0, 0)
    try:
        os.write(descriptor, head + body)
        answer = os.read(descriptor, 1 << 16)
    except OSError:  # this kernel cannot be asked
        return None
    kind = struct.unpack_from("IHHII", answer)[1]
    if kind != _BY_FAMILY:  # an error: no such connection, or an unsupported request
        return None
    _family, state = struct.unpack_from("BB", answer, _HEAD)
    _expires, _received, _sent, user, inode = struct.unpack_from(
        "IIIII", answer, _HEAD + 4 + _NAMES
    )
    return user, state, inode


def _look_up(table: int, client: Place, server: Place) -> tuple[int, int, int] | None:
    """Look a connection up in a table: its user, state and inode; None if it is not there."""
    pairs = {(_hexadecimal(client, six), _hexadecimal(server, six)) for six in (False, True)}
    for line in _read(table).splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) in pairs:
            return int(fields[7]), int(fields[3], 16), int(fields[9])
    return None


def _hexadecimal(place: Place, six: bool) -> str:
    """Return an address as the tables write it: hexadecimal words in the machine's byte order."""
    packed = socket.inet_aton(place[0])
    if six:
        # An IPv4 address mapped to IPv6 (RFC 4291, 2.5.5.2).
        packed = bytes(10) + b"\xff\xff" + packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{place[1]:04X}"


def _read(table: int) -> str:
    os.lseek(table, 0, os.SEEK_SET)
    parts: list[bytes] = []
    while part := os.read(table, 1 << 16):
        parts.append(part)
    return b"".join(parts).decode()
