"""What we ask of Linux's network: a bridge, a pair of virtual cables, an address, a link up or gone, or slower.

Spoken directly over a netlink socket: no program to install, and fast enough to plug in a hundred VMs in a fraction of
a second. Every call acts on the network namespace of the calling thread and raises OSError with the kernel's reason.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
import struct
from collections.abc import Collection

_NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _NEW_NEIGHBOUR, _DELETE_NEIGHBOUR = 16, 17, 20, 28, 29
_REQUEST, _ACKNOWLEDGE, _REPLACE, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x100, 0x200, 0x400
_NEW_QUEUE, _DELETE_QUEUE, _NEW_CLASS, _NEW_FILTER = 36, 37, 40, 44
_ERROR = 2
_LINK_ADDRESS, _LINK_NAME, _LINK_MTU, _LINK_MASTER, _LINK_INFO, _LINK_NAMESPACE = 1, 3, 4, 10, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_ADDRESS, _LOCAL = 1, 2
_NEIGHBOUR, _NEIGHBOUR_HARDWARE, _PERMANENT = 1, 2, 0x80
_KIND, _OPTIONS = 1, 2
_ROOT, _TOP, _NEAR, _FAR = 0xFFFF_FFFF, 0x1_0000, 0x1_0001, 0x1_0002
_TBF_PARAMETERS, _TBF_BURST = 1, 6
_HTB_PARAMETERS, _HTB_INIT = 1, 2
_U32_CLASS, _U32_SELECTOR = 1, 5
_IPV4 = 0x0800
_TICK = 64e-9  # seconds, in which the kernel's schedulers count
_LARGEST_PACKET = 1 << 17  # a packet larger than a burst would never get through
_BURST_SECONDS, _QUEUE_SECONDS = 0.01, 0.1
_UP = 1
# As large as a packet can be that a TAP takes (delay_line): nothing but memory is between two VMs, and small packets
# would only cost time.
_MTU = struct.pack("I", 65_521)

_numbers = itertools.count(1)


def add_bridge(name: str, hardware_address: str) -> None:
    """Make a bridge (a switch).

    Without an address of its own it would take the lowest of its cables', and lose it with that cable: for up to a
    minute its neighbours would send to nobody.
    """
    info = attribute(_LINK_INFO, attribute(_INFO_KIND, b"bridge\0"))
    own = attribute(_LINK_ADDRESS, _hardware(hardware_address))
    _ask(_NEW_LINK, _CREATE | _EXCLUSIVE, _link() + attribute(_LINK_NAME, _text(name)) + own + info)


def add_cable(name: str, bridge: str, *, peer: str, hardware_address: str, namespace: int) -> None:
    """Plug a cable called `name` into `bridge`; its other end is `peer`, in the namespace open as `namespace`."""
    other = (
        _link()
        + attribute(_LINK_NAME, _text(peer))
        + attribute(_LINK_MTU, _MTU)
        + attribute(_LINK_ADDRESS, _hardware(hardware_address))
        + attribute(_LINK_NAMESPACE, struct.pack("I", namespace))
    )
    data = attribute(_INFO_DATA, attribute(_VETH_PEER, other))
    info = attribute(_LINK_INFO, attribute(_INFO_KIND, b"veth\0") + data)
    master = attribute(_LINK_MASTER, struct.pack("I", socket.if_nametoindex(bridge)))
    _ask(
        _NEW_LINK,
        _CREATE | _EXCLUSIVE,
        _link() + attribute(_LINK_NAME, _text(name)) + attribute(_LINK_MTU, _MTU) + master + info,
    )
    set_up(name)


def plug(link: str, bridge: str, hardware_address: str) -> None:
    """Plug a `link` that is there into `bridge`, as a port with this hardware address."""
    own = attribute(_LINK_ADDRESS, _hardware(hardware_address)) + attribute(_LINK_MTU, _MTU)
    index = socket.if_nametoindex(link)
    _ask(_NEW_LINK, 0, _link(index) + own)
    _ask(_NEW_LINK, 0, _link(index) + attribute(_LINK_MASTER, struct.pack("I", socket.if_nametoindex(bridge))))
    set_up(link)


def add_neighbour(link: str, address: str, hardware_address: str) -> None:
    """Have what is for an IPv4 `address` go to this hardware address, and nobody asked."""
    body = _neighbour(link, address) + attribute(_NEIGHBOUR_HARDWARE, _hardware(hardware_address))
    _ask(_NEW_NEIGHBOUR, _CREATE | _REPLACE, body)


def remove_neighbour(link: str, address: str) -> None:
    """Have its hardware address asked for again. No error where it is."""
    try:
        _ask(_DELETE_NEIGHBOUR, 0, _neighbour(link, address))
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


def _neighbour(link: str, address: str) -> bytes:
    head = struct.pack("BBHiHBB", socket.AF_INET, 0, 0, socket.if_nametoindex(link), _PERMANENT, 0, 0)
    return head + attribute(_NEIGHBOUR, socket.inet_aton(address))


def add_address(link: str, address: str, prefix: int) -> None:
    """Give `link` an IPv4 address."""
    packed = socket.inet_aton(address)
    head = struct.pack("BBBBi", socket.AF_INET, prefix, 0, 0, socket.if_nametoindex(link))
    _ask(_NEW_ADDRESS, _CREATE | _EXCLUSIVE, head + attribute(_LOCAL, packed) + attribute(_ADDRESS, packed))


def _hardware(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))


def set_up(link: str) -> None:
    """Switch `link` on."""
    _ask(_NEW_LINK, 0, _link(socket.if_nametoindex(link), flags=_UP))


def shape(link: str, rate: float) -> None:
    """Let `link` send no more than `rate` bits per second."""
    unshape(link)
    size = _burst(rate)
    queue = int(max(2 * _LARGEST_PACKET, rate / 8 * _QUEUE_SECONDS))
    parameters = _rate(rate) + _rate(0) + struct.pack("III", queue, _ticks(size, rate), 0)
    options = attribute(_TBF_PARAMETERS, parameters) + attribute(_TBF_BURST, struct.pack("I", size))
    _ask(_NEW_QUEUE, _CREATE | _EXCLUSIVE, _traffic(link, _TOP, _ROOT) + _kind("tbf", options))


def shape_by_place(link: str, rate: float, far_rate: float, far: Collection[str]) -> None:
    """Let `link` send no more than `rate` bits per second, and to the addresses `far` no more than `far_rate`."""
    unshape(link)
    default = attribute(_HTB_INIT, struct.pack("IIIII", 3, 10, _NEAR & 0xFFFF, 0, 0))
    _ask(_NEW_QUEUE, _CREATE | _EXCLUSIVE, _traffic(link, _TOP, _ROOT) + _kind("htb", default))
    for number, limit in ((_NEAR, rate), (_FAR, min(rate, far_rate))):
        burst = _ticks(_burst(limit), limit)
        parameters = _rate(limit) * 2 + struct.pack("IIIII", burst, burst, _LARGEST_PACKET, 0, 0)
        body = _traffic(link, number, _TOP) + _kind("htb", attribute(_HTB_PARAMETERS, parameters))
        _ask(_NEW_CLASS, _CREATE | _EXCLUSIVE, body)
    for address in far:
        # One key: the 4 bytes at 16 of the IP header, the destination, are the address.
        key = struct.pack("!II", 0xFFFF_FFFF, *struct.unpack("!I", socket.inet_aton(address))) + struct.pack(
            "ii", 16, 0
        )
        selector = struct.pack("BBBxHHhhI", 1, 0, 1, 0, 0, 0, 0, 0) + key
        options = attribute(_U32_CLASS, struct.pack("I", _FAR)) + attribute(_U32_SELECTOR, selector)
        order = (1 << 16) | socket.htons(_IPV4)
        _ask(_NEW_FILTER, _CREATE | _EXCLUSIVE, _traffic(link, 0, _TOP, order) + _kind("u32", options))


def unshape(link: str) -> None:
    """Let `link` send as fast as it can."""
    try:
        _ask(_DELETE_QUEUE, 0, _traffic(link, 0, _ROOT))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINVAL):  # what the kernel says where it was not shaped
            raise


def remove(link: str) -> None:
    """Remove `link` and, for a cable, its other end. No error where there is none."""
    if link in (name for _index, name in socket.if_nameindex()):
        try:
            _ask(_DELETE_LINK, 0, _link(socket.if_nametoindex(link)))
        except OSError:
            # A cable also goes by itself, some time after the namespace of its other end: perhaps at this moment.
            if link in (name for _index, name in socket.if_nameindex()):
                raise


def _ask(kind: int, flags: int, body: bytes) -> None:
    number = next(_numbers)
    head = struct.pack("IHHII", 16 + len(body), kind, _REQUEST | _ACKNOWLEDGE | flags, number, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.bind((0, 0))
        kernel.send(head + body)
        answer = kernel.recv(65536)
    _length, answered, _flags, _number, _pid = struct.unpack_from("IHHII", answer)
    code = -struct.unpack_from("i", answer, 16)[0] if answered == _ERROR else errno.EPROTO
    if code:
        raise OSError(code, f"the kernel refused to change the emulated network: {os.strerror(code)}")


def _traffic(link: str, handle: int, parent: int, info: int = 0) -> bytes:
    return struct.pack("BBHiIII", socket.AF_UNSPEC, 0, 0, socket.if_nametoindex(link), handle, parent, info)


def _kind(name: str, options: bytes) -> bytes:
    return attribute(_KIND, _text(name)) + attribute(_OPTIONS, options)


def _rate(bits: float) -> bytes:
    # The link layer is named (1: Ethernet), so that the kernel asks for no table of times by packet size.
    return struct.pack("BBHhHI", 0, 1 if bits else 0, 0, 0, 0, int(bits / 8))


def _burst(rate: float) -> int:
    return int(max(_LARGEST_PACKET, rate / 8 * _BURST_SECONDS))


def _ticks(size: int, rate: float) -> int:
    return min(int(size / (rate / 8) / _TICK), 0xFFFF_FFFF)


def _link(index: int = 0, flags: int = 0) -> bytes:
    return struct.pack("BBHiII", socket.AF_UNSPEC, 0, 0, index, flags, flags)


def attribute(kind: int, value: bytes) -> bytes:
    """A netlink attribute."""
    return struct.pack("HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _text(value: str) -> bytes:
    return value.encode() + b"\0"
