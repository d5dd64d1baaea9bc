"""The packet filter between emulated VMs: Linux's nf_tables on the bridge that they are all plugged into.

Spoken over a netlink socket, as `netlink` is, so no program has to be installed. Connections over TCP are judged when
they are opened, by the first rule that fits; what belongs to an open one passes, and so does everything else but TCP.
The namespace of the calling thread is the one that has the bridge. Raises OSError with the kernel's reason.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .netlink import attribute

_NETFILTER = 12  # the netlink protocol
_REQUEST, _ACKNOWLEDGE, _CREATE, _APPEND = 0x1, 0x4, 0x400, 0x800
_BATCH_BEGIN, _BATCH_END, _SUBSYSTEM = 16, 17, 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE, _NEW_SET, _NEW_ELEMENT = 0, 2, 3, 6, 9, 12
_NESTED = 0x8000
_BRIDGE_FAMILY, _FORWARD_HOOK = 7, 2
_TABLE, _CHAIN = "transient", "forward"
_DROP, _ACCEPT = 0, 1
_VERDICT_REGISTER, _REGISTER = 0, 8
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_SOURCE, _TARGET = 12, 16  # where the addresses are in the header of IPv4
_PORT, _FLAGS = 2, 13  # where the port of the destination and the flags are in the header of TCP
_META_PROTOCOL, _META_L4 = 1, 16
_EQUAL, _UNEQUAL, _AT_MOST, _AT_LEAST = 0, 1, 3, 5
_SYN, _SYN_AND_ACK = b"\x02", b"\x12"


@dataclass(frozen=True)
class Rule:
    """Whether connections to the addresses `targets` from the ranges `sources` on one of `ports` (empty: on all) may be
    opened; `ports` are first and last."""

    allow: bool
    targets: Collection[str]
    sources: Collection[str]
    ports: Sequence[tuple[int, int]] = ()


def enforce(rules: Sequence[Rule]) -> None:
    """Have these rules, the first that fits counting, instead of those before; a connection that fits none is refused
    silently. All at once: at no moment is there no rule."""
    batch = _Batch()
    batch.add(_NEW_TABLE, _CREATE, _text(1, _TABLE))  # so that there is one to delete
    batch.add(_DELETE_TABLE, 0, _text(1, _TABLE))
    batch.add(_NEW_TABLE, _CREATE, _text(1, _TABLE))
    hook = _nest(4, _number(1, _FORWARD_HOOK) + _number(2, 0))
    batch.add(
        _NEW_CHAIN, _CREATE, _text(1, _TABLE) + _text(3, _CHAIN) + hook + _number(5, _ACCEPT) + _text(7, "filter")
    )
    batch.rule(_meta(_META_PROTOCOL) + _compare(struct.pack("!H", 0x0800), _UNEQUAL) + _verdict(_ACCEPT))
    batch.rule(_meta(_META_L4) + _compare(bytes([socket.IPPROTO_TCP]), _UNEQUAL) + _verdict(_ACCEPT))
    opening = _load(_TRANSPORT_HEADER, _FLAGS, 1) + _mask(_SYN_AND_ACK)
    batch.rule(opening + _compare(_SYN, _UNEQUAL) + _verdict(_ACCEPT))
    for number, rule in enumerate(rules, 1):
        if not rule.targets:
            continue
        targets = _load(_NETWORK_HEADER, _TARGET, 4) + batch.lookup(f"targets{number}", number, rule.targets)
        for source in _from(batch, number, rule.sources):
            for port in _at(rule.ports):
                batch.rule(targets + source + port + _verdict(_ACCEPT if rule.allow else _DROP))
    batch.rule(_verdict(_DROP))
    batch.send()


class _Batch:
    """Messages that the kernel carries out all together or not at all."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, int, bytes]] = []

    def add(self, command: int, flags: int, attributes: bytes) -> None:
        """One more message about nf_tables."""
        head = struct.pack("!BBH", _BRIDGE_FAMILY, 0, 0)
        self._messages.append((_SUBSYSTEM << 8 | command, flags, head + attributes))

    def rule(self, expressions: bytes) -> None:
        """One more rule at the end of the chain."""
        attributes = _text(1, _TABLE) + _text(2, _CHAIN) + _nest(4, expressions)
        self.add(_NEW_RULE, _CREATE | _APPEND, attributes)

    def lookup(self, name: str, number: int, addresses: Collection[str]) -> bytes:
        """Makes a set of addresses, and says how to look up the loaded one in it."""
        described = _text(1, _TABLE) + _text(2, name) + _number(3, 0) + _number(4, 7) + _number(5, 4)
        self.add(_NEW_SET, _CREATE, described + _number(10, number))
        elements = b"".join(_nest(1, _nest(1, _data(socket.inet_aton(each)))) for each in sorted(addresses))
        self.add(_NEW_ELEMENT, _CREATE, _text(1, _TABLE) + _text(2, name) + _number(4, number) + _nest(3, elements))
        return _expression("lookup", _text(1, name) + _number(2, _REGISTER) + _number(4, number))

    def send(self) -> None:
        """Have it carried out. Raises OSError."""
        frame = struct.pack("!BBH", 0, 0, _SUBSYSTEM)
        last = len(self._messages) - 1
        content = _message(_BATCH_BEGIN, 0, frame)
        for number, (kind, flags, body) in enumerate(self._messages):
            # Failures are told anyway; that there was none only of the last.
            content += _message(kind, flags | (_ACKNOWLEDGE if number == last else 0), body)
        content += _message(_BATCH_END, 0, frame)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as kernel:
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(content) + 65536)
            kernel.bind((0, 0))
            kernel.send(content)
            answer = kernel.recv(65536)
        code = -struct.unpack_from("i", answer, 16)[0]
        if code:
            raise OSError(code, f"the kernel refused a packet filter for the emulated network: {os.strerror(code)}")


def _from(batch: _Batch, number: int, sources: Collection[str]) -> Iterator[bytes]:
    """What fits one part of the sources each: all single addresses together, each range by itself."""
    ranges = [ipaddress.IPv4Network(each) for each in sorted(sources)]
    load = _load(_NETWORK_HEADER, _SOURCE, 4)
    if single := [str(each.network_address) for each in ranges if each.prefixlen == 32]:
        yield load + batch.lookup(f"sources{number}", 1_000_000 + number, single)
    for each in ranges:
        if each.prefixlen == 0:
            yield b""
        elif each.prefixlen < 32:
            yield load + _mask(each.netmask.packed) + _compare(each.network_address.packed)


def _at(ports: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """What fits one range of ports each; nothing to fit where there are none."""
    if not ports:
        yield b""
    for first, last in ports:
        load = _load(_TRANSPORT_HEADER, _PORT, 2)
        yield load + _compare(struct.pack("!H", first), _AT_LEAST) + _compare(struct.pack("!H", last), _AT_MOST)


def _load(header: int, offset: int, length: int) -> bytes:
    """Load a part of the packet."""
    place = _number(2, header) + _number(3, offset) + _number(4, length)
    return _expression("payload", _number(1, _REGISTER) + place)


def _meta(key: int) -> bytes:
    """Load what the kernel knows about the packet."""
    return _expression("meta", _number(1, _REGISTER) + _number(2, key))


def _mask(mask: bytes) -> bytes:
    """Keep the bits of `mask` of what is loaded."""
    registers = _number(1, _REGISTER) + _number(2, _REGISTER) + _number(3, len(mask))
    return _expression("bitwise", registers + _nest(4, _data(mask)) + _nest(5, _data(bytes(len(mask)))))


def _compare(value: bytes, how: int = _EQUAL) -> bytes:
    """Go on with the rule if what is loaded compares so with `value`."""
    return _expression("cmp", _number(1, _REGISTER) + _number(2, how) + _nest(3, _data(value)))


def _verdict(code: int) -> bytes:
    return _expression("immediate", _number(1, _VERDICT_REGISTER) + _nest(2, _nest(2, _number(1, code))))


def _expression(name: str, data: bytes) -> bytes:
    return _nest(1, _text(1, name) + _nest(2, data))


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("IHHII", 16 + len(body), kind, _REQUEST | flags, 0, 0) + body


def _data(value: bytes) -> bytes:
    return attribute(1, value)


def _number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value))


def _text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def _nest(kind: int, value: bytes) -> bytes:
    return attribute(kind | _NESTED, value)
