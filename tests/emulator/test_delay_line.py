"""What is under way between regions: in order, never early, never more than there is room for."""

from __future__ import annotations

import ipaddress
import socket
import time

from hypothesis import given
from hypothesis import strategies as st

from transient_emulator.network.delay_line import HARDWARE_ADDRESS, Line, carry
from transient_emulator.vms.machine import hardware_address


def frame(address: str, body: bytes = b"") -> bytes:
    """From a VM to an address: Ethernet, an IPv4 header with that destination, a body."""
    header = bytearray(20)
    header[16:20] = ipaddress.IPv4Address(address).packed
    return bytes(6) + bytes(6) + b"\x08\x00" + bytes(header) + body


def hexadecimal(address: str) -> bytes:
    return bytes.fromhex(address.replace(":", ""))


def test_a_frame_goes_on_to_the_vm_whose_address_is_in_it() -> None:
    line = Line(0.015)
    assert line.take(frame("10.128.1.7", b"hello"), 1.0)
    assert line.due(1.0149) is None
    onward = line.due(1.015)
    assert onward
    assert onward[:6] == hexadecimal(hardware_address("10.128.1.7"))
    assert onward[6:12] == hexadecimal(HARDWARE_ADDRESS), "the bridge is to look for no VM where the line is"
    assert onward[12:] == frame("10.128.1.7", b"hello")[12:]
    assert not line.take(bytes(12) + b"\x08\x06" + bytes(28), 1.0), "who has which address is no secret to be asked"
    assert not line.take(b"", 1.0)


@given(st.lists(st.tuples(st.floats(0, 0.1), st.integers(0, 1500)), max_size=50), st.floats(0, 0.5))
def test_all_arrive_in_order_and_none_early(sent: list[tuple[float, int]], seconds: float) -> None:
    line, now, due = Line(seconds), 0.0, []
    for number, (after, size) in enumerate(sent):
        now += after
        assert line.take(frame("10.128.0.9", number.to_bytes(2) + bytes(size)), now)
        due.append(now + seconds)
    for number, moment in enumerate(due):
        assert line.wait(0.0) == max(moment, 0.0)
        if moment > 0:
            assert line.due(moment * (1 - 1e-9) - 1e-9) is None
        arrived = line.due(moment)
        assert arrived
        assert int.from_bytes(arrived[34:36]) == number
    assert line.wait(now) is None


def test_what_there_is_no_room_for_is_lost_and_then_there_is_room_again() -> None:
    line = Line(1.0, most=200)
    assert [line.take(frame("10.128.0.9", bytes(66)), 0.0) for _ in range(3)] == [True, True, False]
    assert line.due(1.0)
    assert line.take(frame("10.128.0.9", bytes(66)), 1.0)


def test_a_frame_is_not_early_where_the_process_of_the_line_is_held_up() -> None:
    """The frame arrives while the line has no time from the machine, between two reads."""
    tap, network = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ended, emulator = socket.socketpair()
    tap.setblocking(False)
    sent: list[float] = []
    taken: list[float] = []

    class HeldUp(Line):
        def take(self, frame: bytes, now: float) -> bool:
            taken.append(now)
            if len(taken) == 1:
                time.sleep(0.01)
                sent.append(time.monotonic())
                network.send(frame)
            else:
                emulator.close()
            return super().take(frame, now)

    with tap, network, ended, emulator:
        network.send(frame("10.128.0.9"))
        carry(tap.fileno(), ended.fileno(), HeldUp(60.0))
    assert len(taken) == 2
    assert taken[1] >= sent[0]
