"""The text that terminals and panels show: states, events and bills in words.

All functions are pure: the folded state and the time `now` (seconds since 1970) go in, words come
out. The words of a kind of work are in its part `words` (`work.py`).
"""

from __future__ import annotations

from ...protocol.checks import MOST_CHARACTERS, plain
from ...spec import render_money as money
from ...spec import render_table as table
from .bills import (
    bill_words,
    hourly_words,
    lines_words,
    rate_words,
    saved_words,
    spent_words,
    transfer_words,
    work_cost,
)
from .events import event_line, event_words, group_words, grouped, quiet_kinds
from .screens import listing, listing_row, status
from .states import (
    NOTHING_TO_DELETE,
    RENTED,
    deleted_words,
    destination,
    ending_words,
    given_up_words,
    leaves_at,
    machine,
    phase_words,
    replacements,
    to_agree_words,
    transfer_price,
    vm_words,
)
from .words import (
    clock,
    count,
    examples_words,
    number,
    params_words,
    scores,
    scores_words,
    share_words,
    time_words,
    value_words,
)
from .work import declared_words, short_words, status_lines, work_line, work_phase, work_words

__all__ = [
    "MOST_CHARACTERS",
    "NOTHING_TO_DELETE",
    "RENTED",
    "bill_words",
    "clock",
    "count",
    "declared_words",
    "deleted_words",
    "destination",
    "ending_words",
    "event_line",
    "event_words",
    "examples_words",
    "given_up_words",
    "group_words",
    "grouped",
    "hourly_words",
    "leaves_at",
    "lines_words",
    "listing",
    "listing_row",
    "machine",
    "money",
    "number",
    "params_words",
    "phase_words",
    "plain",
    "quiet_kinds",
    "rate_words",
    "replacements",
    "saved_words",
    "scores",
    "scores_words",
    "share_words",
    "short_words",
    "spent_words",
    "status",
    "status_lines",
    "table",
    "time_words",
    "to_agree_words",
    "transfer_price",
    "transfer_words",
    "value_words",
    "vm_words",
    "work_cost",
    "work_line",
    "work_phase",
    "work_words",
]
