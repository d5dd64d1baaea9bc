"""The grammar of a SPEC: `GROUP(+GROUP)*`, GROUP = `GPU[xCOUNT][@ZONE]`.

`k80x4`, `v100`, `k80x2@us-west1-b+p100@us-central1-a`, `cpux2`. Case and blanks are ignored. The
valid words (GPUs and zones) are arguments, because the catalog lists them and the grammar does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ..errors import DeclarationError, TransientError, unknown

MOST_WORKERS = 1000
_COUNT = re.compile(r"^(?P<accelerator>.*?)x(?P<count>\d*)$")
_WORD = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """`count` workers with one `accelerator` each (`cpu`: none).

    `zone` None means any zone of the cluster.
    """

    accelerator: str
    count: int = 1
    zone: str | None = None


def parse_groups(
    text: str, accelerators: Collection[str], zones: Collection[str] = ()
) -> tuple[WorkerGroup, ...]:
    """Return the groups of a SPEC.

    Parameters
    ----------
    text
        The SPEC as typed.
    accelerators
        Valid GPUs.
    zones
        Valid zones; empty: any well-formed zone.

    Raises
    ------
    DeclarationError
        Names the column (from 1), what was expected there and the nearest valid word.
    """
    if not text.strip():
        raise DeclarationError(
            "A cluster needs at least one group of workers", fix="For example: k80x4"
        )
    groups: list[WorkerGroup] = []
    start = 0
    for piece in text.split("+"):
        groups.append(_group(text, start, piece, accelerators, zones))
        start += len(piece) + 1
    total = sum(group.count for group in groups)
    if total > MOST_WORKERS:
        raise DeclarationError(
            f"{total} workers exceed the limit of {MOST_WORKERS}",
            where="SPEC",
            fix="Declare fewer.",
        )
    return tuple(groups)


def render_groups(groups: Iterable[WorkerGroup]) -> str:
    """Return the SPEC that `parse_groups` reads as the same groups."""
    return "+".join(_render_group(group) for group in groups)


def _render_group(group: WorkerGroup) -> str:
    text = group.accelerator
    if group.count != 1:
        text += f"x{group.count}"
    if group.zone:
        text += f"@{group.zone}"
    return text


def _group(
    text: str, start: int, piece: str, accelerators: Collection[str], zones: Collection[str]
) -> WorkerGroup:
    body, at, zone_text = piece.partition("@")
    machine = "".join(body.lower().split())
    begin = start + len(body) - len(body.lstrip())
    if not machine:
        raise _mistake(text, begin, "expected a GPU here", "For example: k80x4")
    count = 1
    if machine not in accelerators and (match := _COUNT.match(machine)):
        accelerator = match["accelerator"]
        digits = match["count"]
        if accelerator in accelerators or digits:
            machine = accelerator
            column = begin + body[begin - start :].lower().rfind("x") + 1
            if not digits:
                raise _mistake(
                    text,
                    column,
                    f"expected a count after '{accelerator}x'",
                    f"For example: {accelerator}x4",
                )
            count = int(digits)
            if not 1 <= count <= MOST_WORKERS:
                raise _mistake(
                    text, column, f"a count must be from 1 to {MOST_WORKERS}, not {digits}", ""
                )
    if machine not in accelerators:
        raise _unknown_accelerator(text, begin, machine, accelerators)
    zone = "".join(zone_text.lower().split())
    if not at:
        return WorkerGroup(machine, count)
    column = start + len(body) + 1 + len(zone_text) - len(zone_text.lstrip())
    if not zone:
        raise _mistake(text, column, "expected a zone after '@'", "For example: k80x4@us-west1-b")
    if (zones and zone not in zones) or not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", zone):
        raise unknown("zone", zone, zones, at=_at(text, column))
    return WorkerGroup(machine, count, zone)


def _unknown_accelerator(
    text: str, begin: int, machine: str, accelerators: Collection[str]
) -> TransientError:
    if odd := _WORD.sub("", machine):
        column = begin + text[begin:].find(odd[0])
        expected = "Write GPUxCOUNT@ZONE, groups joined by '+', for example: k80x2+p100"
        return _mistake(text, column, f"'{odd[0]}' has no meaning in a SPEC", expected)
    return unknown("GPU", machine, accelerators, at=_at(text, begin))


def _mistake(text: str, index: int, what: str, fix: str) -> DeclarationError:
    return DeclarationError(f"{_at(text, index)}: {what}", fix=fix)


def _at(text: str, index: int) -> str:
    return f"SPEC '{text.strip()}', column {index + 1}"
