"""What a cluster costs, in words."""

from __future__ import annotations

from ...journal import Bill
from ...spec import render_money as money


def bill_words(bill: Bill, *, emulated: bool) -> str:
    """The bill in some lines: so far, per hour, on demand, the saving, data transfer, whose prices."""
    text = f"{money(bill.total)} so far, {money(bill.hourly)} per hour now; on demand {money(bill.on_demand)}"
    if bill.projected is not None:
        text += f"; about {money(bill.projected)} at the end of the run"
    saving = ""
    if bill.on_demand > 0 and bill.saved >= 0.005:
        saving = f"{bill.saved:.0%} saved against Google's on-demand price."
    notes = [f"Prices: {bill.source}."] if bill.source else []
    if emulated:
        notes.insert(0, "Emulated, nothing is billed.")
    lines = [text, saving, transfer_words(bill), " ".join(notes)]
    return "\n".join(line for line in lines if line)


def transfer_words(bill: Bill) -> str:
    """What data transfer between zones costs, with a warning where it rivals the VMs; nothing where there is none."""
    if bill.transfer <= 0:
        return ""
    said = f"{money(bill.transfer)} of it for data transfer between zones, {money(bill.transfer_hourly)} per hour now"
    if bill.transfer_hourly > 0.5 * (bill.hourly - bill.transfer_hourly):
        return f"{said}: it rivals the VMs. Workers in the zone of the parameter servers pay nothing for it."
    return f"{said}."
