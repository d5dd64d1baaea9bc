"""The sub-command that declares a sleep, and its options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...cli.option import Entry, Option, duration, group, word
from ...cli.options.shared import CLUSTER, ON_CLUSTER, OUTPUT, RETRIES, REVOCATIONS, name_of, wait_until
from ...cli.options.work import Code, WorkCommand
from ...errors import DeclarationError

if TYPE_CHECKING:
    from .handle import Sleep


def sleep() -> tuple[Option, ...]:
    """Return the options of a sleep."""
    return (
        replace(
            word("seconds", "TIME", "how long to sleep, such as 30s or 5m"),
            read=duration("TIME", "s"),
        ),
        *group(REVOCATIONS, replace(RETRIES, default="0")),
        *group(CLUSTER, ON_CLUSTER, name_of("sleep"), wait_until("the sleep is over"), OUTPUT),
    )


def _declare(values: dict[str, Any], code: Code) -> Sleep:
    """Declare a sleep."""
    from .handle import declare_sleep

    if code.source:
        raise DeclarationError("A sleep runs no code", fix="Write %sleep 30s on a line of its own.")
    return declare_sleep(**values)


COMMANDS = (
    WorkCommand(
        "sleep",
        sleep,
        _declare,
        guide="clusters",
        description="Sleep on a VM of a cluster.",
        entries=(Entry("sleep TIME [options]", "%sleep TIME [options]", "Sleep on a VM"),),
        example="30s",
        from_file=False,
    ),
)
