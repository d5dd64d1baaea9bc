"""Options: their flags, the functions that parse their values, and the words that complete them.

A function that parses a value raises DeclarationError, with one sentence, for invalid text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DeclarationError, unknown
from ..protocol.checks import fields_of
from ..protocol.literals import Value, parse_value
from ..protocol.machines import preparation_or_none
from ..protocol.objective import Objective, Patience
from ..protocol.run import Cache, choices
from ..spec import parse_duration, parse_interval, parse_name
from ..spec.units import parse_deadline


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the overview.

    Attributes
    ----------
    line : str
        The command in a terminal; empty if there is none.
    magic : str
        The command in a cell; empty if there is none.
    summary : str
        The purpose of the command.
    """

    line: str
    magic: str
    summary: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option (`flags` begin with '-') or one positional argument.

    Attributes
    ----------
    name : str
        The parameter of the client's function that gets the value.
    flags : tuple of str
        The flags, or the name of the positional argument.
    help : str
        The effect of the option.
    read : callable or None
        Parses the text of the value. None: a switch without a value.
    metavar : str or None
        The placeholder of the value in a help.
    choices : tuple of str
        Values for completion.
    completes : str
        The kind of words that complete the value: `gpu`, `zone`, `region`, `cluster`, `worker`,
        `run`, `work`, `image`, `workload` or `path`; empty for `choices`.
    many : str
        How often the value may be given: `?`, `*`, or `extend` for an option that may be repeated.
    negated : bool
        Whether `--no-...` exists too.
    required : bool
        Whether a line without it is refused.
    default : str
        The default in words; empty if there is none.
    group : str
        The title above the option in a help.
    """

    name: str
    flags: tuple[str, ...]
    help: str
    read: Callable[[str], Any] | None = str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    completes: str = ""
    many: str = ""
    negated: bool = False
    required: bool = False
    default: str = ""
    group: str = "Options"

    @property
    def is_position(self) -> bool:
        """Whether this is a positional argument."""
        return not self.flags[0].startswith("-")

    @property
    def explanation(self) -> str:
        """The help and the default, as a terminal shows them."""
        if self.required:
            return f"{self.help} (required)"
        if self.default:
            return f"{self.help} (default: {self.default})"
        return self.help

    @property
    def takes_value(self) -> bool:
        """Whether the option has a value; a switch has none."""
        return self.read is not None

    @property
    def spellings(self) -> tuple[str, ...]:
        """All flags of the option, with those that begin with `--no-`."""
        return (*self.flags, *(f"--no-{flag[2:]}" for flag in self.flags if self.negated))

    def for_argparse(self) -> dict[str, Any]:
        """Return the keyword arguments of `add_argument`.

        Options that are not given do not appear in the namespace.
        """
        import argparse

        common: dict[str, Any] = {"help": self.explanation.replace("%", "%%")}
        if not self.is_position:
            common |= {"dest": self.name, "default": argparse.SUPPRESS}
        if self.negated:
            return {**common, "action": argparse.BooleanOptionalAction}
        if self.read is None:
            return {
                **common,
                "action": "store_const",
                "const": not self.flags[0].startswith("--no-"),
            }
        if self.many == "extend":
            common |= {"nargs": "+", "action": "extend"}
        elif self.many:
            common["nargs"] = self.many
        return {**common, "type": self.read, "metavar": self.metavar}


def flag(
    flags: str,
    help: str,
    read: Callable[[str], Any] | None = None,
    *,
    name: str = "",
    metavar: str = "",
    **more: Any,
) -> Option:
    """Return an option from its flags, such as `--long` or `-x --long`.

    Without `read` it is a switch.
    """
    spelled = tuple(flags.split())
    long = spelled[-1].removeprefix("--")
    if read is None:
        long = long.removeprefix("no-")
    long = long.replace("-", "_")
    return Option(
        name or long, spelled, help, read, metavar or long.rpartition("_")[2].upper(), **more
    )


def word(name: str, metavar: str, help: str, **more: Any) -> Option:
    """Return a positional argument."""
    return Option(name, (name,), help, metavar=metavar, group="Arguments", **more)


def group(title: str, *options: Option) -> tuple[Option, ...]:
    """Return the options with the title under which a help lists them."""
    return tuple(replace(option, group=title) for option in options)


def one_of(option: str, words: Iterable[str]) -> dict[str, Any]:
    """Return keyword arguments of `flag` for an option with one of these values."""
    allowed = tuple(words)

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise unknown("value", text, allowed, where=option)
        return word

    return {"read": read, "choices": allowed, "metavar": "|".join(allowed)}


def whole(option: str, least: int = 1) -> Callable[[str], int]:
    """Return a parser of whole numbers that are `least` or more."""

    def read(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise DeclarationError(
                f"{option} must be a whole number of at least {least}, not '{text}'"
            )
        return int(text)

    return read


def positive(option: str) -> Callable[[str], float]:
    """Return a parser of numbers above zero; a leading dollar sign is ignored."""

    def read(text: str) -> float:
        try:
            value = float(text.strip().removeprefix("$"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise DeclarationError(f"{option} must be a number greater than 0, not '{text}'")
        return value

    return read


def deadline(text: str) -> str:
    """Check a deadline and return its text; the declaration computes its time."""
    parse_deadline(text, "--finish-by", time.time())
    return text.strip()


def share(option: str) -> Callable[[str], float]:
    """Return a parser of numbers from 0 to below 1."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < 1:
            raise DeclarationError(f"{option} must be at least 0 and less than 1, not '{text}'")
        return value

    return read


def batch_bounds(text: str) -> dict[str, Any]:
    """Parse the smallest and the largest mini-batch in examples, as `16,256`.

    Either number may be missing.
    """
    least, comma, most = (part.strip() for part in text.partition(","))
    read = whole("--batch-bounds")
    found: dict[str, Any] = {}
    if least:
        found["batch_least"] = read(least)
    if most:
        found["batch_most"] = read(most)
    if not comma or not found or (least and most and int(least) > int(most)):
        raise DeclarationError(
            f"Invalid --batch-bounds '{text}'", fix="Write LEAST,MOST, such as 16,256."
        )
    return found


def duration(option: str, unit: str) -> Callable[[str], float]:
    """Return a parser of durations in seconds; `unit` is the unit of a number without one."""
    return lambda text: parse_duration(text, option, unit=unit)


def hours(option: str) -> Callable[[str], float]:
    """Return a parser of durations in hours; a number without a unit is in hours."""
    return lambda text: parse_duration(text, option, unit="h") / 3600


def zones(text: str, option: str = "--zone") -> tuple[str, ...]:
    """Parse zones with commas between them."""
    from ..catalog import ZONES

    zones = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for zone in zones:
        if zone not in ZONES:
            raise unknown("zone", zone, ZONES, where=option)
    return zones


def one_gpu(text: str) -> str:
    """Parse one GPU."""
    found = gpus(text)
    if len(found) != 1:
        raise DeclarationError(
            "--gpus must be one GPU here", where=f"--gpus {text}", fix="For example: --gpus t4."
        )
    return found[0]


def gpus(text: str) -> tuple[str, ...]:
    """Parse GPUs with commas between them."""
    from ..catalog import ACCELERATORS

    gpus = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for gpu in gpus:
        if gpu not in ACCELERATORS:
            raise unknown("GPU", gpu, ACCELERATORS, where="--gpus")
    return tuple(dict.fromkeys(gpus))


def one_zone(option: str) -> Callable[[str], str]:
    """Return a parser of one zone."""

    def read(text: str) -> str:
        named = zones(text, option)
        if len(named) != 1:
            raise DeclarationError(f"{option} must be one zone, not '{text}'")
        return named[0]

    return read


def disk(text: str) -> str:
    """Parse the size and the kind of a disk."""
    from ..catalog import parse_disk

    gb, kind = parse_disk(text)
    return f"{gb}GB:{kind.removeprefix('pd-')}"


def fallback(text: str) -> float | None:
    """Parse `on-demand=10m`: the seconds after which workers are rented on demand. None: never."""
    word, _, time = text.strip().lower().partition("=")
    if word == "none" and not time:
        return None
    if word != "on-demand":
        raise DeclarationError(
            f"Invalid --fallback '{text}'",
            fix="Write none, on-demand, or on-demand=10m for another time.",
        )
    if time:
        return parse_duration(time, "--fallback", unit="m")
    return 600.0


def preemption_notice(text: str) -> int:
    """Parse the seconds of notice that are requested for Spot VMs: 120, or 0 for none."""
    if text.strip().lower() == "none":
        return 0
    seconds = parse_duration(text, "--preemption-notice", unit="s")
    if seconds not in (0, 120):
        raise DeclarationError(f"Invalid --preemption-notice '{text}'", fix="Write 120s or none.")
    return int(seconds)


def address_ranges(text: str) -> tuple[str, ...]:
    """Parse address ranges with commas between them."""
    import ipaddress

    found = [part.strip() for part in text.split(",") if part.strip()]
    for addresses in found:
        try:
            ipaddress.ip_network(addresses)
        except ValueError as error:
            raise DeclarationError(
                f"{error}", where="--ssh-from", fix="For example: 203.0.113.0/24."
            ) from None
    return tuple(found)


def new_name(text: str) -> str:
    """Parse the value of `--name`: a name of a cluster or of work."""
    return parse_name(text, "--name")


def project(text: str) -> str:
    """Parse the ID of a project."""
    from ..spec import parse_project

    return parse_project(text)


def bucket(text: str) -> str:
    """Parse the name of a bucket, with or without a folder; or `none`."""
    from ..spec import parse_bucket

    if text.strip().lower() == "none":
        return "none"
    return parse_bucket(text, "--bucket")


def which_checkpoint(text: str) -> str | int:
    """Parse `last`, `best`, or the step of a checkpoint."""
    word = text.strip().lower()
    if word not in ("last", "best") and not word.isdecimal():
        raise DeclarationError(f"--checkpoint must be last, best or a step, not '{text}'")
    if word.isdecimal():
        return int(word)
    return word


def variable(text: str) -> str:
    """Parse a variable's name."""
    if not text.isidentifier():
        raise DeclarationError(f"-o must be the name of a variable, not '{text}'")
    return text


def overrides(text: str) -> str:
    """Check hyperparameters: `NAME=VALUE,...`."""
    import re

    if text and not re.match(r"\s*\w+(\[\d+\])?\s*=", text):
        raise DeclarationError(f"Invalid --hparams '{text}'", fix="Write NAME=VALUE,NAME=VALUE.")
    return text


def parameter(text: str) -> tuple[str, Value]:
    """Parse `NAME=VALUE` of a parameter that a cell reads by its name."""
    from ..protocol.run import parameter_name

    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise DeclarationError(f"Invalid --param '{text}'", fix="Write NAME=VALUE, such as lr=0.1.")
    try:
        return parameter_name(name), parse_value(value)
    except ValueError as error:
        raise DeclarationError(f"Invalid --param: {error}") from None


def changes(text: str) -> dict[str, float]:
    """Parse the value of `--what-if`: `NAME=NUMBER,...`."""
    found = dict[str, float]()
    for change in text.split(","):
        name, equals, value = (part.strip() for part in change.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise DeclarationError(
                f"Invalid --what-if '{text}'", fix="Write NAME=NUMBER, such as cache=0.5,link=2."
            )
    return found


def space(text: str) -> str:
    """Check the values that a study tries, and return their text."""
    from ..protocol.space import parse_space

    try:
        parse_space(text)
    except ValueError as error:
        raise DeclarationError(f"Invalid --over: {error}") from None
    return text


def event_kind(text: str) -> str:
    """Parse a kind of events, or a group of kinds."""
    from ..journal import events

    if (kind := text.strip().lower()) not in events.kinds():
        raise unknown("kind of event", kind, events.kinds(), where="--kind")
    return kind


def evaluate_every(text: str) -> int:
    """Parse the number of steps between two evaluations; 0: only at the end."""
    word = text.strip().lower()
    if word != "end" and (not word.isdigit() or int(word) < 1):
        raise DeclarationError(
            f"--eval-every must be a number of steps of at least 1, or end, not '{text}'"
        )
    if word == "end":
        return 0
    return int(word)


def objective(option: str) -> Callable[[str], str]:
    """Return a parser of a metric and, if needed, its direction."""
    return lambda text: _written(Objective, text, option)


def condition(text: str) -> str:
    """Check the condition under which a run ends early."""
    return _written(Patience, text, "--stop-when")


def _written(what: type[Objective | Patience], text: str, option: str) -> str:
    try:
        return str(what.parse(text))
    except ValueError as error:
        raise DeclarationError(f"Invalid {option}: {error}") from None


def cache(text: str) -> str:
    """Check how much of the records a worker keeps, and where."""
    try:
        Cache.parse(text)
    except ValueError as error:
        raise DeclarationError(f"Invalid --cache: {error}") from None
    return text


def preparation(text: str) -> str:
    """Check which VMs prepare mini-batches."""
    try:
        return preparation_or_none("".join(text.lower().split()))
    except ValueError as error:
        raise DeclarationError(f"Invalid --prep: {error}") from None


def evaluation_batches(text: str) -> int:
    """Parse the number of batches of an evaluation; 0: all."""
    word = text.strip().lower()
    if word != "all" and (not word.isdigit() or int(word) < 1):
        raise DeclarationError(
            f"--eval-batches must be a whole number of at least 1, or all, not '{text}'"
        )
    if word == "all":
        return 0
    return int(word)


def interval(text: str) -> dict[str, Any]:
    """Parse an interval in steps or in time, or `auto`."""
    if text.strip().lower() == "auto":
        return {"checkpoint_steps": None, "checkpoint_auto": True}
    steps, seconds = parse_interval(text, "--checkpoint-every")
    return {"checkpoint_steps": steps, "checkpoint_seconds": seconds}


def setting(
    names: Collection[str], read: Callable[[str, str], Any]
) -> Callable[[str], tuple[str, Any]]:
    """Return a parser of `NAME=VALUE` for `--set`; `read` parses a value for its name."""

    def read_setting(text: str) -> tuple[str, Any]:
        name, equals, value = (part.strip() for part in text.partition("="))
        name = name.replace("-", "_").lower()
        if not equals or not value:
            raise DeclarationError(
                f"Invalid --set '{text}'", fix=f"Write NAME=VALUE, such as {min(names)}=VALUE."
            )
        if name not in names:
            raise unknown("setting", name, names, where="--set")
        return name, read(name, value)

    return read_setting


def field(record: type) -> Callable[[str, str], Any]:
    """Return a function that parses the text of a dataclass's field by its annotation."""

    def read(name: str, text: str) -> Any:
        allowed = choices(name, record)
        if allowed:
            if text not in allowed:
                raise unknown("value", text, allowed, where=f"--set {name}")
            return text
        try:
            number = float(text)
            if text.isdecimal():
                value = int(text)
            else:
                value = number
            return fields_of(record)[name](value)
        except ValueError as error:
            raise DeclarationError(f"Invalid --set {name}={text}: {error}") from None

    return read


def settings_help(meanings: Mapping[str, str], record: type | None = None) -> str:
    """Return the help of `--set`: a line for each setting, with its default in `record`."""
    lines = ["change a setting that is rarely needed. Can be repeated"]
    for name, meaning in meanings.items():
        default = ""
        if record:
            default = f" (default: {record.__dataclass_fields__[name].default})"
        lines.append(f"- {name}: {meaning}{default}")
    return "\n".join(lines)


def gpu(text: str) -> str:
    """Parse a GPU of the catalog, or `cpu`."""
    from ..catalog import accelerator

    return accelerator(text.strip().lower()).name


def known_region(text: str) -> str:
    """Parse a region of the catalog."""
    from ..catalog import ZONES, region

    regions = {region(zone) for zone in ZONES}
    if (place := text.strip().lower()) not in regions:
        raise unknown("region", place, regions, where="--region")
    return place
