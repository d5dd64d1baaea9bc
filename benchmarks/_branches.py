"""Which branches of some code an input reaches: counted on the byte code, each conditional jump both ways."""

from __future__ import annotations

import contextlib
import dis
import sys
import types
from collections.abc import Iterator
from typing import Any

LEFT_OUT = {"clipped", "told"}  # what a VM does with its own words


def codes(thing: Any) -> Iterator[types.CodeType]:
    """The code of a function, or of all that a module defines."""
    if isinstance(thing, types.ModuleType):
        for each in vars(thing).values():
            if getattr(each, "__module__", "") == thing.__name__:
                if isinstance(each, type):
                    for method in vars(each).values():
                        yield from codes(getattr(method, "fget", method))
                else:
                    yield from codes(each)
        return
    function = getattr(thing, "__wrapped__", getattr(thing, "__func__", thing))
    waiting = [function.__code__] if hasattr(function, "__code__") and function.__name__ not in LEFT_OUT else []
    while waiting:
        code = waiting.pop()
        if not code.co_filename.startswith("<"):  # what dataclasses write themselves
            yield code
            waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def branches(code: types.CodeType) -> dict[int, set[int]]:
    """By offset of each conditional jump, where it may go."""
    found, instructions = {}, list(dis.get_instructions(code))
    for before, here, after in zip(instructions, instructions[1:], instructions[2:], strict=False):
        conditional = "_IF_" in here.opname or here.opname == "FOR_ITER"
        # Neither an exception that nobody foresaw nor an assertion that fails is a branch.
        if conditional and before.opname != "CHECK_EXC_MATCH" and after.opname != "LOAD_ASSERTION_ERROR":
            found[here.offset] = {here.argval, after.offset}
    return found


class Branches:
    """Which way the conditional jumps of the readers went."""

    def __init__(self, readers: tuple[Any, ...]) -> None:
        self.all = {code: branches(code) for reader in readers for code in codes(reader)}
        self.reached: set[tuple[types.CodeType, int, int]] = set()

    @property
    def total(self) -> int:
        return sum(len(ways) for found in self.all.values() for ways in found.values())

    def missed(self) -> list[str]:
        """Function and line of what was never reached."""
        found = []
        for code, jumps in self.all.items():
            where = {offset: line for begin, end, line in code.co_lines() for offset in range(begin, end)}
            for offset, ways in jumps.items():
                for way in ways:
                    if (code, offset, way) not in self.reached:
                        found.append(f"{code.co_filename.rpartition('/')[2]}:{where[offset]} {code.co_name}")
        return sorted(set(found))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        def called(frame: types.FrameType, event: str, _: Any) -> Any:
            jumps = self.all.get(frame.f_code)
            if not jumps:
                return None
            frame.f_trace_opcodes, last = True, -1

            def step(frame: types.FrameType, event: str, _: Any) -> Any:
                nonlocal last
                if event == "opcode":
                    if last in jumps and frame.f_lasti in jumps[last]:
                        self.reached.add((frame.f_code, last, frame.f_lasti))
                    last = frame.f_lasti
                return step

            return step

        before = sys.gettrace()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)
