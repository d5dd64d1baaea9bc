"""One option: where its value goes, how its text becomes a value, which words complete it.

What reads a text raises DeclarationError in one sentence for what cannot be meant.
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
from ..protocol.measures.objective import Objective, Patience
from ..protocol.run import Cache, choices
from ..spec import parse_duration, parse_interval, parse_name
from ..spec.units import parse_deadline


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the overview: what is typed in a terminal (`line`) and in a cell (`magic`), where
    it exists there.
    """

    line: str
    magic: str
    summary: str


@dataclass(frozen=True, slots=True)
class Option:
    """One option (`flags` begin with '-') or one word by position.

    Attributes
    ----------
    help : str
        What it does.
    default : str
        What holds without it, in words; empty where the help needs none.
    group : str
        The title under which a help lists it.
    completes : str
        What completes its value: `gpu`, `zone`, `region`, `cluster`, `worker`, `run`, `work`,
        `image`, `path`, or nothing.
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
        """Whether it is a word by position."""
        return not self.flags[0].startswith("-")

    @property
    def explanation(self) -> str:
        """Its help and its default, as a terminal shows them."""
        if self.required:
            return f"{self.help} (required)"
        if self.default:
            return f"{self.help} (default: {self.default})"
        return self.help

    @property
    def takes_value(self) -> bool:
        """False for a switch."""
        return self.read is not None

    @property
    def spellings(self) -> tuple[str, ...]:
        """All flags under which it can be given."""
        return (*self.flags, *(f"--no-{flag[2:]}" for flag in self.flags if self.negated))

    def for_argparse(self) -> dict[str, Any]:
        """The keyword arguments with which argparse declares it. Nothing is set that the user did
        not give.
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
    """An option that begins with `--` (or `-x --long`); without `read` a switch."""
    spelled = tuple(flags.split())
    long = (
        spelled[-1].removeprefix("--").removeprefix("no-" if read is None else "").replace("-", "_")
    )
    return Option(
        name or long, spelled, help, read, metavar or long.rpartition("_")[2].upper(), **more
    )


def word(name: str, metavar: str, help: str, **more: Any) -> Option:
    """A word by position."""
    return Option(name, (name,), help, metavar=metavar, group="Arguments", **more)


def group(title: str, *options: Option) -> tuple[Option, ...]:
    """Return the options with the title under which a help lists them."""
    return tuple(replace(option, group=title) for option in options)


def one_of(option: str, words: Iterable[str]) -> dict[str, Any]:
    """How one of some words is read, for the keyword arguments of `flag`."""
    allowed = tuple(words)

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in allowed:
            raise unknown("value", text, allowed, where=option)
        return word

    return {"read": read, "choices": allowed, "metavar": "|".join(allowed)}


def whole(option: str, least: int = 1) -> Callable[[str], int]:
    """A reader of whole numbers from `least` on."""

    def read(text: str) -> int:
        if not text.strip().isdecimal() or int(text) < least:
            raise DeclarationError(f"{option} takes a whole number from {least} on, not '{text}'")
        return int(text)

    return read


def positive(option: str) -> Callable[[str], float]:
    """A reader of numbers above zero; a dollar sign before it is passed over."""

    def read(text: str) -> float:
        try:
            value = float(text.strip().removeprefix("$"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise DeclarationError(f"{option} takes a number above zero, not '{text}'")
        return value

    return read


def deadline(text: str) -> str:
    """A deadline, as it is written: when that is, follows when it is declared."""
    parse_deadline(text, "--finish-by", time.time())
    return text.strip()


def share(option: str) -> Callable[[str], float]:
    """A reader of numbers from 0 to 1; 1 itself is too much."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < 1:
            raise DeclarationError(f"{option} takes a number from 0 to below 1, not '{text}'")
        return value

    return read


def batch_bounds(text: str) -> dict[str, Any]:
    """The least and the most examples of a mini-batch, as `16,256`; either may be left out."""
    least, comma, most = (each.strip() for each in text.partition(","))
    read = whole("--batch-bounds")
    if least:
        found = {"batch_least": read(least)}
    else:
        found = {}
    found |= {"batch_most": read(most)} if most else {}
    if not comma or not found or (least and most and int(least) > int(most)):
        raise DeclarationError(f"Invalid --batch-bounds '{text}'", fix="For example: 16,256")
    return found


def duration(option: str, unit: str) -> Callable[[str], float]:
    """A reader of durations, in seconds; a bare number counts `unit`s."""
    return lambda text: parse_duration(text, option, unit=unit)


def hours(option: str) -> Callable[[str], float]:
    """A reader of durations, in hours, which a bare number counts, too."""
    return lambda text: parse_duration(text, option, unit="h") / 3600


def zones(text: str, option: str = "--zone") -> tuple[str, ...]:
    """Zones, by commas."""
    from ..catalog import ZONES

    zones = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for zone in zones:
        if zone not in ZONES:
            raise unknown("zone", zone, ZONES, where=option)
    return zones


def one_gpu(text: str) -> str:
    """A GPU."""
    found = gpus(text)
    if len(found) != 1:
        raise DeclarationError("--gpus takes one GPU here", where=f"--gpus {text}")
    return found[0]


def gpus(text: str) -> tuple[str, ...]:
    """GPUs, by commas."""
    from ..catalog import ACCELERATORS

    gpus = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for gpu in gpus:
        if gpu not in ACCELERATORS:
            raise unknown("GPU", gpu, ACCELERATORS, where="--gpus")
    return tuple(dict.fromkeys(gpus))


def one_zone(option: str) -> Callable[[str], str]:
    """A reader of one zone."""

    def read(text: str) -> str:
        named = zones(text, option)
        if len(named) != 1:
            raise DeclarationError(f"{option} takes one zone")
        return named[0]

    return read


def disk(text: str) -> str:
    """The size of a disk, and its kind."""
    from ..catalog import parse_disk

    gb, kind = parse_disk(text)
    return f"{gb}GB:{kind.removeprefix('pd-')}"


def fallback(text: str) -> float | None:
    """The seconds after which a worker is rented on demand, as `on-demand=10m`; None: never."""
    word, _, time = text.strip().lower().partition("=")
    if word == "none" and not time:
        return None
    if word != "on-demand":
        raise DeclarationError(
            f"Invalid --fallback '{text}'",
            fix="Write on-demand, or on-demand=10m for another time.",
        )
    if time:
        return parse_duration(time, "--fallback", unit="m")
    return 600.0


def preemption_notice(text: str) -> int:
    """Return the seconds of notice that are requested for Spot VMs: 120, or 0 for none."""
    if text.strip().lower() == "none":
        return 0
    seconds = parse_duration(text, "--preemption-notice", unit="s")
    if seconds not in (0, 120):
        raise DeclarationError(
            f"Invalid --preemption-notice '{text}'", fix="Compute Engine takes 120s or none."
        )
    return int(seconds)


def address_ranges(text: str) -> tuple[str, ...]:
    """Ranges of addresses, by commas."""
    import ipaddress

    found = [each.strip() for each in text.split(",") if each.strip()]
    for each in found:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise DeclarationError(
                f"{error}", where="--ssh-from", fix="For example: 203.0.113.0/24."
            ) from None
    return tuple(found)


def new_name(text: str) -> str:
    """The name of a cluster or of work, as `--name` takes it."""
    return parse_name(text, "--name")


def project(text: str) -> str:
    """The ID of a project."""
    from ..spec import parse_project

    return parse_project(text)


def bucket(text: str) -> str:
    """The name of a bucket, with a folder in it or without."""
    from ..spec import parse_bucket

    if text.strip().lower() == "none":
        return "none"
    return parse_bucket(text, "--bucket")


def which_checkpoint(text: str) -> str | int:
    """The last, the best, or that of a step."""
    word = text.strip().lower()
    if word not in ("last", "best") and not word.isdecimal():
        raise DeclarationError(f"--checkpoint takes last, best or a step, not '{text}'")
    if word.isdecimal():
        return int(word)
    return word


def variable(text: str) -> str:
    """A name that Python can bind."""
    if not text.isidentifier():
        raise DeclarationError(f"-o takes a variable's name, not '{text}'")
    return text


def overrides(text: str) -> str:
    """`NAME=VALUE,...` of hyper-parameters."""
    import re

    if text and not re.match(r"\s*\w+(\[\d+\])?\s*=", text):
        raise DeclarationError(f"Invalid --hparams '{text}'", fix="Write name=value,name=value.")
    return text


def parameter(text: str) -> tuple[str, Value]:
    """`NAME=VALUE` of a parameter that a cell reads by its name."""
    from ..protocol.run import parameter_name

    name, equals, value = (each.strip() for each in text.partition("="))
    if not equals or not value:
        raise DeclarationError(f"Invalid --param '{text}'", fix="Write name=value, as lr=0.1.")
    try:
        return parameter_name(name), parse_value(value)
    except ValueError as error:
        raise DeclarationError(f"Invalid --param: {error}") from None


def changes(text: str) -> dict[str, float]:
    """`NAME=NUMBER,...` of a what-if."""
    found = dict[str, float]()
    for each in text.split(","):
        name, equals, value = (part.strip() for part in each.partition("="))
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise DeclarationError(f"Invalid --what-if '{text}'", fix="Write cache=0.5,link=2.")
    return found


def environment_variable(text: str) -> tuple[str, str]:
    """`NAME=VALUE` of a job's environment; the value may have anything in it."""
    from ..protocol.job import variable_name

    name, equals, value = text.partition("=")
    if not equals:
        raise DeclarationError(f"Invalid --env '{text}'", fix="Write NAME=VALUE.")
    try:
        return variable_name(name), value
    except ValueError as error:
        raise DeclarationError(f"Invalid --env: {error}") from None


def space(text: str) -> str:
    """The values that a study tries, checked."""
    from ..protocol.study import parse_space

    try:
        parse_space(text)
    except ValueError as error:
        raise DeclarationError(f"Invalid --over: {error}") from None
    return text


def event_kind(text: str) -> str:
    """A kind of events, or a family of kinds."""
    from ..journal import events

    if (kind := text.strip().lower()) not in events.kinds():
        raise unknown("kind of event", kind, events.kinds(), where="--kind")
    return kind


def evaluate_every(text: str) -> int:
    """Every how many steps to evaluate; 0: at the end."""
    word = text.strip().lower()
    if word != "end" and (not word.isdigit() or int(word) < 1):
        raise DeclarationError(
            f"--eval-every takes a whole number of steps from 1 on, or end, not '{text}'"
        )
    if word == "end":
        return 0
    return int(word)


def objective(option: str) -> Callable[[str], str]:
    """A reader of a metric, and which way is better, where its name does not tell."""
    return lambda text: _written(Objective, text, option)


def condition(text: str) -> str:
    """When a run ends before its steps are made."""
    return _written(Patience, text, "--stop-when")


def _written(what: type[Objective | Patience], text: str, option: str) -> str:
    try:
        return str(what.parse(text))
    except ValueError as error:
        raise DeclarationError(f"Invalid {option}: {error}") from None


def cache(text: str) -> str:
    """How much of the records a worker keeps, and where."""
    try:
        Cache.parse(text)
    except ValueError as error:
        raise DeclarationError(f"Invalid --cache: {error}") from None
    return text


def preparation(text: str) -> str:
    """Which VMs prepare mini-batches."""
    try:
        return preparation_or_none("".join(text.lower().split()))
    except ValueError as error:
        raise DeclarationError(f"Invalid --prep: {error}") from None


def evaluation_batches(text: str) -> int:
    """How many batches an evaluation takes; 0: all."""
    word = text.strip().lower()
    if word != "all" and (not word.isdigit() or int(word) < 1):
        raise DeclarationError(
            f"--eval-batches takes a whole number from 1 on, or all, not '{text}'"
        )
    if word == "all":
        return 0
    return int(word)


def interval(text: str) -> dict[str, Any]:
    """An interval in steps or in time."""
    if text.strip().lower() == "auto":
        return {"checkpoint_steps": None, "checkpoint_auto": True}
    steps, seconds = parse_interval(text, "--checkpoint-every")
    return {"checkpoint_steps": steps, "checkpoint_seconds": seconds}


def setting(
    names: Collection[str], read: Callable[[str, str], Any]
) -> Callable[[str], tuple[str, Any]]:
    """Return a reader of `NAME=VALUE` for `--set`. `read` makes a value of a name and its text."""

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
    """Return a function that reads the text of a field of a dataclass, as its annotation says."""

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
    lines = ["change what is seldom changed; may be repeated"]
    for name, meaning in meanings.items():
        if record:
            default = f" (default: {record.__dataclass_fields__[name].default})"
        else:
            default = ""
        lines.append(f"- {name}: {meaning}{default}")
    return "\n".join(lines)


def gpu(text: str) -> str:
    """A GPU of the catalog, or `cpu`."""
    from ..catalog import accelerator

    return accelerator(text.strip().lower()).name


def known_region(text: str) -> str:
    """A region of the catalog."""
    from ..catalog import ZONES, region

    regions = {region(zone) for zone in ZONES}
    if (place := text.strip().lower()) not in regions:
        raise unknown("region", place, regions, where="--region")
    return place
