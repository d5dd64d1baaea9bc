"""Requests to Linux's network: create, remove, shape and address bridges, cables and links.

They go directly over a netlink socket: there is no program to install, and a hundred VMs are
plugged in within a fraction of a second. Every function acts on the network namespace of the
calling thread and raises OSError with the kernel's reason.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Collection

# linux/netlink.h: flags of a request, and the type of an answer.
_REQUEST = 0x1
_ACKNOWLEDGE = 0x4
_REPLACE = 0x100
_EXCLUSIVE = 0x200
_CREATE = 0x400
_ERROR = 2

# linux/rtnetlink.h: RTM_*, the types of requests.
_NEW_LINK = 16
_DELETE_LINK = 17
_NEW_ADDRESS = 20
_NEW_NEIGHBOUR = 28
_DELETE_NEIGHBOUR = 29
_NEW_QUEUE = 36
_DELETE_QUEUE = 37
_NEW_CLASS = 40
_NEW_FILTER = 44

# linux/if_link.h: IFLA_*, the attributes of links.
_LINK_ADDRESS = 1
_LINK_NAME = 3
_LINK_MTU = 4
_LINK_MASTER = 10
_LINK_INFO = 18
_LINK_NAMESPACE = 28
_INFO_KIND = 1
_INFO_DATA = 2
_VETH_PEER = 1

# linux/if_addr.h and linux/neighbour.h: the attributes of addresses and neighbours.
_ADDRESS = 1
_LOCAL = 2
_NEIGHBOUR = 1
_NEIGHBOUR_HARDWARE = 2
_PERMANENT = 0x80

# linux/rtnetlink.h and linux/pkt_sched.h: TCA_*, the attributes of traffic control.
_KIND = 1
_OPTIONS = 2
_TBF_PARAMETERS = 1
_TBF_BURST = 6
_HTB_PARAMETERS = 1
_HTB_INIT = 2
_U32_CLASS = 1
_U32_SELECTOR = 5

# Handles of traffic control: the link itself, its queue, and the queue's classes for near and far
# addresses.
_ROOT = 0xFFFF_FFFF
_TOP = 0x1_0000
_NEAR = 0x1_0001
_FAR = 0x1_0002

_IPV4 = 0x0800
_UP = 1  # IFF_UP
# The kernel's schedulers count time in ticks of this many seconds.
_TICK = 64e-9
# Bytes. A packet larger than a burst would never be sent.
_LARGEST_PACKET = 1 << 17
_BURST_SECONDS = 0.01
_QUEUE_SECONDS = 0.1
# The largest packet that a TAP takes (see `delay_line`). Only memory lies between two VMs, so small
# packets would cost time for nothing: larger ones gave up to 1.6 times the throughput on a loaded
# machine.
_MTU = struct.pack("I", 65_521)

_numbers = itertools.count(1)


def add_bridge(name: str, hardware_address: str) -> None:
    """Create a bridge (a virtual switch) with this hardware address."""
    # Without an address of its own, a bridge takes the lowest one of its cables and loses it with
    # that cable. Its neighbours would then send to a missing address for up to a minute.
    info = attribute(_LINK_INFO, attribute(_INFO_KIND, b"bridge\0"))
    address = attribute(_LINK_ADDRESS, _hardware(hardware_address))
    body = _link() + attribute(_LINK_NAME, _text(name)) + address + info
    _request(_NEW_LINK, _CREATE | _EXCLUSIVE, body)


def add_cable(name: str, bridge: str, *, peer: str, hardware_address: str, namespace: int) -> None:
    """Plug a new cable into a bridge.

    Parameters
    ----------
    name
        The name of the end in this namespace.
    bridge
        The bridge for that end.
    peer
        The name of the other end.
    hardware_address
        The address of the other end.
    namespace
        A descriptor of the network namespace that gets the other end.
    """
    other_end = (
        _link()
        + attribute(_LINK_NAME, _text(peer))
        + attribute(_LINK_MTU, _MTU)
        + attribute(_LINK_ADDRESS, _hardware(hardware_address))
        + attribute(_LINK_NAMESPACE, struct.pack("I", namespace))
    )
    data = attribute(_INFO_DATA, attribute(_VETH_PEER, other_end))
    this_end = (
        _link()
        + attribute(_LINK_NAME, _text(name))
        + attribute(_LINK_MTU, _MTU)
        + attribute(_LINK_MASTER, struct.pack("I", socket.if_nametoindex(bridge)))
        + attribute(_LINK_INFO, attribute(_INFO_KIND, b"veth\0") + data)
    )
    _request(_NEW_LINK, _CREATE | _EXCLUSIVE, this_end)
    set_up(name)


def plug(link: str, bridge: str, hardware_address: str) -> None:
    """Plug an existing link into a bridge, as a port with this hardware address."""
    index = socket.if_nametoindex(link)
    address = attribute(_LINK_ADDRESS, _hardware(hardware_address))
    _request(_NEW_LINK, 0, _link(index) + address + attribute(_LINK_MTU, _MTU))
    master = attribute(_LINK_MASTER, struct.pack("I", socket.if_nametoindex(bridge)))
    _request(_NEW_LINK, 0, _link(index) + master)
    set_up(link)


def add_neighbour(link: str, address: str, hardware_address: str) -> None:
    """Send packets for an IPv4 address to this hardware address, without a lookup."""
    body = _neighbour(link, address)
    body += attribute(_NEIGHBOUR_HARDWARE, _hardware(hardware_address))
    _request(_NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def remove_neighbour(link: str, address: str) -> None:
    """Look the hardware address up again. Does nothing if there is no fixed one."""
    try:
        _request(_DELETE_NEIGHBOUR, 0, _neighbour(link, address))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _neighbour(link: str, address: str) -> bytes:
    index = socket.if_nametoindex(link)
    head = struct.pack("BBHiHBB", socket.AF_INET, 0, 0, index, _PERMANENT, 0, 0)
    return head + attribute(_NEIGHBOUR, socket.inet_aton(address))


def add_address(link: str, address: str, prefix: int) -> None:
    """Give a link an IPv4 address with a network of `prefix` bits."""
    packed = socket.inet_aton(address)
    head = struct.pack("BBBBi", socket.AF_INET, prefix, 0, 0, socket.if_nametoindex(link))
    body = head + attribute(_LOCAL, packed) + attribute(_ADDRESS, packed)
    _request(_NEW_ADDRESS, _CREATE | _EXCLUSIVE, body)


def _hardware(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))


def set_up(link: str) -> None:
    """Switch a link on."""
    _request(_NEW_LINK, 0, _link(socket.if_nametoindex(link), flags=_UP))


def shape(link: str, rate: float) -> None:
    """Limit what a link sends to `rate` bits per second."""
    unshape(link)
    burst = _burst(rate)
    queue = int(max(2 * _LARGEST_PACKET, rate / 8 * _QUEUE_SECONDS))
    parameters = _rate(rate) + _rate(0) + struct.pack("III", queue, _ticks(burst, rate), 0)
    options = attribute(_TBF_PARAMETERS, parameters)
    options += attribute(_TBF_BURST, struct.pack("I", burst))
    body = _traffic(link, _TOP, _ROOT) + _kind("tbf", options)
    _request(_NEW_QUEUE, _CREATE | _EXCLUSIVE, body)


def shape_by_place(link: str, rate: float, far_rate: float, far: Collection[str]) -> None:
    """Limit what a link sends, more strictly to some addresses.

    Parameters
    ----------
    link
        The link.
    rate
        Bits per second in general.
    far_rate
        Bits per second to all addresses of `far` together.
    far
        IPv4 addresses.
    """
    unshape(link)
    default = attribute(_HTB_INIT, struct.pack("IIIII", 3, 10, _NEAR & 0xFFFF, 0, 0))
    body = _traffic(link, _TOP, _ROOT) + _kind("htb", default)
    _request(_NEW_QUEUE, _CREATE | _EXCLUSIVE, body)
    for handle, limit in ((_NEAR, rate), (_FAR, min(rate, far_rate))):
        burst = _ticks(_burst(limit), limit)
        parameters = _rate(limit) * 2
        parameters += struct.pack("IIIII", burst, burst, _LARGEST_PACKET, 0, 0)
        body = _traffic(link, handle, _TOP) + _kind("htb", attribute(_HTB_PARAMETERS, parameters))
        _request(_NEW_CLASS, _CREATE | _EXCLUSIVE, body)
    for address in far:
        # One key: the 4 bytes at offset 16 of the IP header, the destination, equal the address.
        destination = struct.unpack("!I", socket.inet_aton(address))[0]
        key = struct.pack("!II", 0xFFFF_FFFF, destination) + struct.pack("ii", 16, 0)
        selector = struct.pack("BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + key
        options = attribute(_U32_CLASS, struct.pack("I", _FAR))
        options += attribute(_U32_SELECTOR, selector)
        order = (1 << 16) | socket.htons(_IPV4)
        body = _traffic(link, 0, _TOP, order) + _kind("u32", options)
        _request(_NEW_FILTER, _CREATE | _EXCLUSIVE, body)


def unshape(link: str) -> None:
    """Remove the limits of a link. Does nothing if it has none."""
    try:
        _request(_DELETE_QUEUE, 0, _traffic(link, 0, _ROOT))
    except OSError as error:
        # The kernel's answers for a link without limits.
        if error.errno not in (errno.ENOENT, errno.EINVAL):
            raise


def remove(link: str) -> None:
    """Remove a link and, for a cable, its other end. Does nothing if it does not exist."""
    if not _exists(link):
        return
    try:
        _request(_DELETE_LINK, 0, _link(socket.if_nametoindex(link)))
    except OSError:
        # The kernel removes a cable some time after the namespace of its other end: perhaps at this
        # moment.
        if _exists(link):
            raise


def _exists(link: str) -> bool:
    return link in (name for _index, name in socket.if_nameindex())


def _request(kind: int, flags: int, body: bytes) -> None:
    """Send one request to the kernel and check its answer."""
    number = next(_numbers)
    flags |= _REQUEST | _ACKNOWLEDGE
    head = struct.pack("IHHII", 16 + len(body), kind, flags, number, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.bind((0, 0))
        kernel.send(head + body)
        answer = kernel.recv(65536)
    _length, answer_kind, _flags, _number, _pid = struct.unpack_from("IHHII", answer)
    # An acknowledgement is an error message with the code 0.
    code = errno.EPROTO
    if answer_kind == _ERROR:
        code = -struct.unpack_from("i", answer, 16)[0]
    if code:
        reason = os.strerror(code)
        raise OSError(code, f"the kernel refused to change the emulated network: {reason}")


def _traffic(link: str, handle: int, parent: int, info: int = 0) -> bytes:
    index = socket.if_nametoindex(link)
    return struct.pack("BBHiIII", socket.AF_UNSPEC, 0, 0, index, handle, parent, info)


def _kind(name: str, options: bytes) -> bytes:
    return attribute(_KIND, _text(name)) + attribute(_OPTIONS, options)


def _rate(bits: float) -> bytes:
    # The link layer is given (1: Ethernet), so that the kernel needs no table of times by packet
    # size.
    return struct.pack("BBHhHI", 0, 1 if bits else 0, 0, 0, 0, int(bits / 8))


def _burst(rate: float) -> int:
    return int(max(_LARGEST_PACKET, rate / 8 * _BURST_SECONDS))


def _ticks(size: int, rate: float) -> int:
    # The field has 32 bits.
    return min(int(size / (rate / 8) / _TICK), 0xFFFF_FFFF)


def _link(index: int = 0, flags: int = 0) -> bytes:
    return struct.pack("BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def attribute(kind: int, value: bytes) -> bytes:
    """Return a netlink attribute: length, type, value, padded to 4 bytes."""
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _text(value: str) -> bytes:
    return value.encode() + b"\0"
