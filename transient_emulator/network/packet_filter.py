"""The packet filter between emulated VMs: Linux's nf_tables on the bridge that connects them.

Requests go over a netlink socket, as in `netlink`, so no program has to be installed. A TCP
connection is judged when it is opened, by the first rule that matches. Packets of open connections
pass, and so does everything except TCP. Functions act on the network namespace of the calling
thread, which must be the bridge's, and raise OSError with the kernel's reason.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .netlink import attribute

# linux/netlink.h: the protocol NETLINK_NETFILTER, and flags of messages.
_NETFILTER = 12
_REQUEST = 0x1
_ACKNOWLEDGE = 0x4
_CREATE = 0x400
_APPEND = 0x800
_NESTED = 0x8000

# linux/netfilter/nfnetlink.h: the frame of a batch, and the subsystem nf_tables.
_BATCH_BEGIN = 16
_BATCH_END = 17
_SUBSYSTEM = 10

# linux/netfilter/nf_tables.h: NFT_MSG_*, the commands.
_NEW_TABLE = 0
_DELETE_TABLE = 2
_NEW_CHAIN = 3
_NEW_RULE = 6
_NEW_SET = 9
_NEW_ELEMENT = 12

# linux/netfilter.h and linux/netfilter_bridge.h: the bridge's packets, where it forwards them, and
# verdicts.
_BRIDGE_FAMILY = 7
_FORWARD_HOOK = 2
_DROP = 0
_ACCEPT = 1

# linux/netfilter/nf_tables.h: registers, headers, metadata and comparisons of expressions.
_VERDICT_REGISTER = 0
_REGISTER = 8
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_META_PROTOCOL = 1
_META_L4 = 16
_EQUAL = 0
_UNEQUAL = 1
_AT_MOST = 3
_AT_LEAST = 5

_TABLE = "transient"
_CHAIN = "forward"
# Offsets of the source and destination address in the header of IPv4.
_SOURCE = 12
_TARGET = 16
# Offsets of the destination port and of the flags in the header of TCP.
_PORT = 2
_FLAGS = 13
_SYN = b"\x02"
_SYN_AND_ACK = b"\x12"


@dataclass(frozen=True)
class Rule:
    """A rule for opening TCP connections.

    Attributes
    ----------
    allow
        Whether matching connections may be opened.
    targets
        IPv4 addresses of the receivers.
    sources
        IPv4 ranges of the senders.
    ports
        First and last port of each matching range; empty for all ports.
    """

    allow: bool
    targets: Collection[str]
    sources: Collection[str]
    ports: Sequence[tuple[int, int]] = ()


def enforce(rules: Sequence[Rule]) -> None:
    """Replace the filter by these rules.

    The first rule that matches decides. A connection that matches none is dropped silently. The
    kernel makes the change in one step, so there is no moment without rules.

    Raises
    ------
    OSError
        If the kernel has no such filter or refuses it.
    """
    batch = _Batch()
    # A table can only be deleted if it exists, so it is created first.
    batch.add(_NEW_TABLE, _CREATE, _text(1, _TABLE))
    batch.add(_DELETE_TABLE, 0, _text(1, _TABLE))
    batch.add(_NEW_TABLE, _CREATE, _text(1, _TABLE))
    hook = _nest(4, _number(1, _FORWARD_HOOK) + _number(2, 0))
    chain = _text(1, _TABLE) + _text(3, _CHAIN) + hook + _number(5, _ACCEPT) + _text(7, "filter")
    batch.add(_NEW_CHAIN, _CREATE, chain)
    # Everything except the first packet of a TCP connection over IPv4 passes.
    not_ipv4 = _meta(_META_PROTOCOL) + _compare(struct.pack("!H", 0x0800), _UNEQUAL)
    batch.rule(not_ipv4 + _verdict(_ACCEPT))
    not_tcp = _meta(_META_L4) + _compare(bytes([socket.IPPROTO_TCP]), _UNEQUAL)
    batch.rule(not_tcp + _verdict(_ACCEPT))
    flags = _load(_TRANSPORT_HEADER, _FLAGS, 1) + _mask(_SYN_AND_ACK)
    batch.rule(flags + _compare(_SYN, _UNEQUAL) + _verdict(_ACCEPT))
    for number, rule in enumerate(rules, 1):
        if not rule.targets:
            continue
        verdict = _verdict(_ACCEPT if rule.allow else _DROP)
        targets = _load(_NETWORK_HEADER, _TARGET, 4)
        targets += batch.lookup(f"targets{number}", number, rule.targets)
        for source in _match_sources(batch, number, rule.sources):
            for port in _match_ports(rule.ports):
                batch.rule(targets + source + port + verdict)
    batch.rule(_verdict(_DROP))
    batch.send()


class _Batch:
    """Messages that the kernel applies all together or not at all."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, int, bytes]] = []

    def add(self, command: int, flags: int, attributes: bytes) -> None:
        """Add a message about nf_tables."""
        head = struct.pack("!BBH", _BRIDGE_FAMILY, 0, 0)
        self._messages.append((_SUBSYSTEM << 8 | command, flags, head + attributes))

    def rule(self, expressions: bytes) -> None:
        """Append a rule to the chain."""
        attributes = _text(1, _TABLE) + _text(2, _CHAIN) + _nest(4, expressions)
        self.add(_NEW_RULE, _CREATE | _APPEND, attributes)

    def lookup(self, name: str, number: int, addresses: Collection[str]) -> bytes:
        """Create a set of addresses, and return the expression of a lookup in it."""
        # Addresses are keys of type 7 (IPv4 address) with 4 bytes.
        description = _text(1, _TABLE) + _text(2, name)
        description += _number(3, 0) + _number(4, 7) + _number(5, 4) + _number(10, number)
        self.add(_NEW_SET, _CREATE, description)
        elements = b""
        for address in sorted(addresses):
            elements += _nest(1, _nest(1, _data(socket.inet_aton(address))))
        content = _text(1, _TABLE) + _text(2, name) + _number(4, number) + _nest(3, elements)
        self.add(_NEW_ELEMENT, _CREATE, content)
        return _expression("lookup", _text(1, name) + _number(2, _REGISTER) + _number(4, number))

    def send(self) -> None:
        """Send the messages. Raises OSError."""
        frame = struct.pack("!BBH", 0, 0, _SUBSYSTEM)
        last = len(self._messages) - 1
        content = _message(_BATCH_BEGIN, 0, frame)
        for number, (kind, flags, body) in enumerate(self._messages):
            # The kernel reports every failure. One acknowledgement, of the last message, reports
            # success.
            if number == last:
                flags |= _ACKNOWLEDGE
            content += _message(kind, flags, body)
        content += _message(_BATCH_END, 0, frame)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as kernel:
            # The whole batch is one datagram, which has to fit into the buffer.
            kernel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * len(content) + 65536)
            kernel.bind((0, 0))
            kernel.send(content)
            answer = kernel.recv(65536)
        code = -struct.unpack_from("i", answer, 16)[0]
        if code:
            reason = os.strerror(code)
            raise OSError(
                code, f"the kernel refused a packet filter for the emulated network: {reason}"
            )


def _match_sources(batch: _Batch, number: int, sources: Collection[str]) -> Iterator[bytes]:
    """Yield one expression that matches all single addresses, and one per range."""
    ranges = [ipaddress.IPv4Network(source) for source in sorted(sources)]
    load = _load(_NETWORK_HEADER, _SOURCE, 4)
    singles = [str(block.network_address) for block in ranges if block.prefixlen == 32]
    if singles:
        yield load + batch.lookup(f"sources{number}", 1_000_000 + number, singles)
    for block in ranges:
        if block.prefixlen == 0:
            # Every address: nothing has to match.
            yield b""
        elif block.prefixlen < 32:
            yield load + _mask(block.netmask.packed) + _compare(block.network_address.packed)


def _match_ports(ports: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield one expression per range of ports; an empty one if all ports match."""
    if not ports:
        yield b""
    load = _load(_TRANSPORT_HEADER, _PORT, 2)
    for first, last in ports:
        from_first = _compare(struct.pack("!H", first), _AT_LEAST)
        to_last = _compare(struct.pack("!H", last), _AT_MOST)
        yield load + from_first + to_last


def _load(header: int, offset: int, length: int) -> bytes:
    """Return the expression that loads a part of the packet."""
    place = _number(2, header) + _number(3, offset) + _number(4, length)
    return _expression("payload", _number(1, _REGISTER) + place)


def _meta(key: int) -> bytes:
    """Return the expression that loads what the kernel knows about the packet."""
    return _expression("meta", _number(1, _REGISTER) + _number(2, key))


def _mask(mask: bytes) -> bytes:
    """Return the expression that clears all loaded bits outside of `mask`."""
    registers = _number(1, _REGISTER) + _number(2, _REGISTER) + _number(3, len(mask))
    values = _nest(4, _data(mask)) + _nest(5, _data(bytes(len(mask))))
    return _expression("bitwise", registers + values)


def _compare(value: bytes, how: int = _EQUAL) -> bytes:
    """Return the expression that ends the rule unless the loaded value compares so with `value`."""
    return _expression("cmp", _number(1, _REGISTER) + _number(2, how) + _nest(3, _data(value)))


def _verdict(code: int) -> bytes:
    verdict = _nest(2, _nest(2, _number(1, code)))
    return _expression("immediate", _number(1, _VERDICT_REGISTER) + verdict)


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
