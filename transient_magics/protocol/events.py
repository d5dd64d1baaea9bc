"""What an event is: one line of JSON with `seq`, `time` (nanoseconds since 1970, UTC), `kind`, and
the kind's fields.

A class per kind, whose annotations are the checks of what is read. Kinds of newer versions are read
as `Unknown` and fields that are not known are passed over, so that an old notebook can read a new
journal.

Each kind is a fact or an intention. A fact says what has happened, or gives something up: a false
one makes no cluster rent, run or spend more. An intention says what is wanted from now on: what is
declared, rented, tried, or in charge. When a machine takes its cluster back from a controller on a
VM, the facts that the VM wrote count and its intentions do not, unless the files of this machine
say the same (`controller/trust.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, TypeVar, cast, dataclass_transform

from ..kinds import having
from . import checks
from .messages import Line

_DAY = 86_400 * 10**9
Provenance = Literal["fact", "intention"]
FACT: Provenance = "fact"
INTENTION: Provenance = "intention"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Event(Line):
    """What all events have. `seq` and `time` are set by the journal when the event is appended."""

    kind: ClassVar[str] = ""
    provenance: ClassVar[Provenance] = INTENTION
    """Whether the kind is a fact or an intention. Unknown kinds count as intentions."""
    seq: checks.Count = 0
    time: checks.Count = 0

    @property
    def at(self) -> float:
        """`time` in seconds since 1970."""
        return self.time / 1e9

    @property
    def values(self) -> Mapping[str, object]:
        """The kind's own fields."""
        return {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if each.name not in ("seq", "time")
        }

    def work_of(self, kind: str) -> str:
        """Return the name of the work of this kind that the event is about; empty where it is about
        none.
        """
        name = getattr(self, kind, "")
        return name if isinstance(name, str) else ""

    def to_dict(self) -> dict[str, object]:
        """The event as plain JSON values, `seq`, `time` and `kind` first."""
        return {"seq": self.seq, "time": self.time, "kind": self.kind, **self.values}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unknown(Event):
    """An event of a kind that this version does not know; `line` is all of it."""

    line: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def values(self) -> Mapping[str, object]:
        return self.line

    def to_dict(self) -> dict[str, object]:
        return dict(self.line)


_KINDS: dict[str, type[Event]] = {}
"""The classes of events that were imported, by their kinds."""
_Kind = TypeVar("_Kind", bound=type[Event])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def event(kind: str, provenance: Provenance) -> Callable[[_Kind], _Kind]:
    """Make a class that of the events of `kind`, which are facts or intentions."""

    def register(cls: _Kind) -> _Kind:
        cls = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        cls.kind = kind
        cls.provenance = provenance
        _KINDS[kind] = cls
        return cls

    return register


def kinds() -> Mapping[str, type[Event]]:
    """Return the classes of events by their kinds, with those of each kind of work."""
    having("events")
    return _KINDS


def taken(
    line: bytes, kinds: Mapping[str, type[Event]], teller: str, since: int, until: int
) -> Event:
    """The event of one of `kinds` on a foreign line, told of a moment from `since` to `until` (ns),
    give or take a day.

    Its texts are plain: they go on into tables and results, which anybody may print in a terminal.
    Raises ValueError for everything else, whatever it is; `teller` is who does not tell such a
    thing.
    """
    values = checks.parsed_object(line)
    kind = values.get("kind")
    if isinstance(kind, str):
        cls = kinds.get(kind)
    else:
        cls = None
    if cls is None:
        raise ValueError(f"{teller} does not tell {kind!r:.80}")
    values.pop("seq", None)
    found = checks.built(cls, values)
    if not since - _DAY <= found.time <= until + _DAY:
        raise ValueError(f"a {kind} event of another time ({found.time / 1e9:.0f} s since 1970)")
    shown = {
        name: plain for name, value in found.values.items() if (plain := _plain(value)) != value
    }
    if shown:
        return replace(found, **shown)
    return found


def _plain(value: object) -> object:
    """A text, texts of a sequence and the keys of a mapping as plain text, and no longer than is
    read again. The values of a mapping are those of a declaration, or checked.
    """
    match value:
        case str():
            return checks.clipped(checks.all_plain(value))
        case tuple():
            return tuple(map(_plain, cast("tuple[object, ...]", value)))
        case Mapping():
            return {
                _plain(key): each for key, each in cast("Mapping[object, object]", value).items()
            }
        case _:
            return value


def decode(line: bytes) -> Event:
    """The event of one line. Raises ValueError for a line that is none (as a torn one)."""
    return from_values(checks.parsed_object(line))


def from_values(values: Mapping[str, object]) -> Event:
    """The event of plain values, each checked. Raises ValueError with the field that is not as it
    should be.
    """
    kind = values.get("kind")
    if not isinstance(kind, str):
        raise ValueError("no kind")
    cls = kinds().get(kind)
    try:
        if cls is None:
            head = {name: values[name] for name in ("seq", "time") if name in values}
            return checks.built(Unknown, {**head, "line": values})
        return checks.built(cls, values)
    except ValueError as error:
        raise ValueError(f"a {kind:.80} event: {error}") from None
