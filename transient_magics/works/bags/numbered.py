"""Immutable values under the numbers 0, 1, 2, ..., with cheap copies with one value replaced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Self, TypeVar

_Value = TypeVar("_Value")
_BLOCK = 128


class Numbered(Mapping[int, _Value]):
    """An immutable mapping from consecutive numbers.

    A copy with one value set shares all blocks but one, while a dict would be copied completely. A
    bag has up to 10,000 jobs with several events each.
    """

    __slots__ = ("_blocks", "_size")

    def __init__(self, values: Iterable[_Value] = ()) -> None:
        every = tuple(values)
        self._blocks = tuple(
            every[begin : begin + _BLOCK] for begin in range(0, len(every), _BLOCK)
        )
        self._size = len(every)

    def with_value(self, number: int, value: _Value) -> Self:
        """Return a copy with this value under an existing number or the next one.

        Raises KeyError for other numbers.
        """
        if not 0 <= number <= self._size:
            raise KeyError(number)
        at, within = divmod(number, _BLOCK)
        if at < len(self._blocks):
            block = self._blocks[at]
        else:
            block = ()
        made = type(self)()
        made._blocks = (
            *self._blocks[:at],
            (*block[:within], value, *block[within + 1 :]),
            *self._blocks[at + 1 :],
        )
        made._size = max(self._size, number + 1)
        return made

    def __getitem__(self, number: int) -> _Value:
        if not 0 <= number < self._size:
            raise KeyError(number)
        return self._blocks[number // _BLOCK][number % _BLOCK]

    def __iter__(self) -> Iterator[int]:
        return iter(range(self._size))

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[*self.values()]!r})"
