"""What a terminal shows: states, events and bills as plain text, and the small words that the
panels share.

Everything is a pure function of folded state and of the moment `now` (seconds since 1970); nothing
here prints.
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
from .deadlines import declared_words, outlook_facts
from .events import event_line, event_words, group_words, grouped, quiet_kinds
from .records import data_words
from .screens import listing, listing_row, status
from .states import (
    NOTHING_TO_DELETE,
    RENTED,
    counted_words,
    deleted_words,
    destination,
    ending_words,
    given_up_words,
    is_evaluated,
    leaves_at,
    machine,
    phase_words,
    replacements,
    run_words,
    to_agree_words,
    transfer_price,
    vm_words,
    waits_for,
    was_stopped,
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
    value_words,
)
from .work import short_words, status_lines, work_phase, work_words

__all__ = [
    "MOST_CHARACTERS",
    "NOTHING_TO_DELETE",
    "RENTED",
    "bill_words",
    "clock",
    "count",
    "counted_words",
    "data_words",
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
    "is_evaluated",
    "leaves_at",
    "lines_words",
    "listing",
    "listing_row",
    "machine",
    "money",
    "number",
    "outlook_facts",
    "params_words",
    "phase_words",
    "plain",
    "quiet_kinds",
    "rate_words",
    "replacements",
    "run_words",
    "saved_words",
    "scores",
    "scores_words",
    "share_words",
    "short_words",
    "spent_words",
    "status",
    "status_lines",
    "table",
    "to_agree_words",
    "transfer_price",
    "transfer_words",
    "value_words",
    "vm_words",
    "waits_for",
    "was_stopped",
    "work_cost",
    "work_phase",
    "work_words",
]
