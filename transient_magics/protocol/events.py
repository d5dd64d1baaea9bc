"""The format of events: one line of JSON with `seq`, `time`, `kind`, and the kind's fields.

`time` is in nanoseconds since 1970, UTC. Each kind has a class, whose annotations are the checks of
its fields. Kinds of newer versions are read as `Unknown`, and unknown fields are ignored, so an old
notebook can read a new journal.

Each kind is a fact or an intention. A fact reports what has happened, or gives something up: a
false fact makes no cluster rent, run or spend more. An intention states what is requested from now
on: what is declared, rented, tried, or in charge. When a machine takes its cluster back from a
controller on a VM, the facts that the VM wrote count. Its intentions count only if the files of
this machine agree (`controller/trust.py`).
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
    """Base class of all events. The journal sets `seq` and `time` when it appends the event."""

    kind: ClassVar[str] = ""
    provenance: ClassVar[Provenance] = INTENTION
    """Whether the kind is a fact or an intention. Unknown kinds count as intentions."""
    seq: checks.Count = 0
    time: checks.Count = 0

    @property
    def at(self) -> float:
        """The moment of the event, in seconds since 1970."""
        return self.time / 1e9

    @property
    def values(self) -> Mapping[str, object]:
        """The kind's own fields."""
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("seq", "time")
        }

    def work_of(self, kind: str) -> str:
        """Return the name of the work of this kind that the event concerns; empty if none."""
        name = getattr(self, kind, "")
        return name if isinstance(name, str) else ""

    def to_dict(self) -> dict[str, object]:
        """Return the event as JSON values, `seq`, `time` and `kind` first."""
        return {"seq": self.seq, "time": self.time, "kind": self.kind, **self.values}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Unknown(Event):
    """An event of a kind that is unknown to this version; `line` is the whole line."""

    line: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def values(self) -> Mapping[str, object]:
        """All fields of the line."""
        return self.line

    def to_dict(self) -> dict[str, object]:
        """Return the line as it was read."""
        return dict(self.line)


_KINDS: dict[str, type[Event]] = {}
"""The classes of imported events, by kind."""
_Kind = TypeVar("_Kind", bound=type[Event])


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def event(kind: str, provenance: Provenance) -> Callable[[_Kind], _Kind]:
    """Return a decorator that makes a class the event of `kind`, a fact or an intention."""

    def register(cls: _Kind) -> _Kind:
        cls = dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        cls.kind = kind
        cls.provenance = provenance
        _KINDS[kind] = cls
        return cls

    return register


def kinds() -> Mapping[str, type[Event]]:
    """Return the classes of events by kind, including those of each kind of work."""
    having("events")
    return _KINDS


def read_foreign(
    line: bytes, kinds: Mapping[str, type[Event]], sender: str, since: int, until: int
) -> Event:
    """Read an event of one of `kinds` from a foreign line.

    Its time must lie between `since` and `until` (ns), with a tolerance of one day. Control
    characters are removed from its texts, because tables and results may be printed in a terminal.
    Raises ValueError for any other line; `sender` names the sender in the error.
    """
    values = checks.parsed_object(line)
    kind = values.get("kind")
    if isinstance(kind, str):
        cls = kinds.get(kind)
    else:
        cls = None
    if cls is None:
        raise ValueError(f"{sender} sent an event of the unexpected kind {kind!r:.80}")
    values.pop("seq", None)
    found = checks.built(cls, values)
    if not since - _DAY <= found.time <= until + _DAY:
        raise ValueError(
            f"the time of a {kind} event is out of range ({found.time / 1e9:.0f} s since 1970)"
        )
    shown = {
        name: plain for name, value in found.values.items() if (plain := _plain(value)) != value
    }
    if shown:
        return replace(found, **shown)
    return found


def _plain(value: object) -> object:
    """Return texts without control characters, cut to the accepted length.

    This applies to a text, the texts of a sequence, and the keys of a mapping. The values of a
    mapping belong to a declaration, or are checked.
    """
    match value:
        case str():
            return checks.clipped(checks.all_plain(value))
        case tuple():
            return tuple(map(_plain, cast("tuple[object, ...]", value)))
        case Mapping():
            return {
                _plain(key): entry for key, entry in cast("Mapping[object, object]", value).items()
            }
        case _:
            return value


def decode(line: bytes) -> Event:
    """Read the event of one line. Raises ValueError for an invalid line, such as a torn one."""
    return from_values(checks.parsed_object(line))


def from_values(values: Mapping[str, object]) -> Event:
    """Read an event from plain values and check each of them.

    Raises ValueError with the name of the invalid field.
    """
    kind = values.get("kind")
    if not isinstance(kind, str):
        raise ValueError("the event has no kind")
    cls = kinds().get(kind)
    try:
        if cls is None:
            head = {name: values[name] for name in ("seq", "time") if name in values}
            return checks.built(Unknown, {**head, "line": values})
        return checks.built(cls, values)
    except ValueError as error:
        raise ValueError(f"a {kind:.80} event: {error}") from None
