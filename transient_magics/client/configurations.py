"""What `--on` says: the machines on which the runs of a study train, one configuration after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..catalog import ACCELERATORS
from ..errors import DeclarationError
from ..protocol.machines import parse_machines, render_machines
from ..spec import parse_groups

MOST = 100


def parse_configurations(on: str | Sequence[str]) -> tuple[str, ...]:
    """Read `k80x1,k80x4,k80x2+p100`, or a sequence of these. Raises DeclarationError."""
    texts = on.split(",") if isinstance(on, str) else [str(each) for each in on]
    if not any(each.strip() for each in texts):
        raise DeclarationError("There is no configuration", where="--on", fix="For example: --on k80x1,k80x4")
    if not all(each.strip() for each in texts):
        raise DeclarationError("Between two commas stands nothing", where="--on", fix="For example: --on k80x1,k80x4")
    if len(texts) > MOST:
        raise DeclarationError(f"{len(texts)} configurations are more than {MOST}", where="--on")
    found: list[str] = []
    for text in texts:
        machines = _machines(text)
        if twice := next((each for each in found if parse_machines(each) == machines), None):
            fix = "--repeat 5 trains each point five times."
            raise DeclarationError(f"{twice} is there twice", where="--on", fix=fix)
        found.append(render_machines(machines))
    return tuple(found)


def all_of(specs: Sequence[str]) -> str:
    """The SPEC of the smallest cluster that holds each of these."""
    found: Counter[str] = Counter()
    for each in specs:
        found |= _machines(each, zones=True)
    return render_machines(found)


def _machines(text: str, *, zones: bool = False) -> Counter[str]:
    try:
        groups = parse_groups(text, ACCELERATORS)
    except DeclarationError as error:
        raise DeclarationError(error.what, where="--on", fix=error.fix) from None
    found: Counter[str] = Counter()
    for group in groups:
        if group.zone and not zones:
            what = f"'{text.strip()}' names a zone, and a configuration takes its workers wherever they are"
            raise DeclarationError(what, where="--on", fix=f"Write {group.accelerator}x{group.count}.")
        found[group.accelerator] += group.count
    return found
