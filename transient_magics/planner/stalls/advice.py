"""One line of advice: the longest stall, what would mend it, and the option that says so."""

from __future__ import annotations

from collections.abc import Mapping

from .parts import Stalls

_FITS = 4e9
"""Bytes that a VM's page cache has room for, whatever VM it is."""
_MENDS: Mapping[str, str] = {
    "serialisation": "bigger mini-batches have fewer steps to send (--hparams batch_size=..., or batch_size in the "
    "cell), and --wire bf16 halves what is sent",
    "network": "workers nearer to the parameter servers (--zone with a single zone), fewer and faster GPUs, or --wire "
    "bf16, which halves what is sent",
    "contention": "one more parameter server shares the work (--ps {more})",
    "preparation": "more cores prepare more (--machine-type), or the records hold examples that are prepared already",
    "fetch": "a faster disk (--disk 200GB:ssd), or fewer bytes for each example",
}


def advice(stalls: Stalls, servers: int = 1) -> str:
    """What to do about the stalls of these workers, which have so many parameter `servers`."""
    found = [each for each in stalls.stalled if not _once(each.name, stalls)]
    if found:
        first = found[0]
        mend = _MENDS[first.name].format(more=servers + 1)
        return f"{first.share:.0%} of a step is {first.name}: {mend}."
    once = [each for each in stalls.stalled if _once(each.name, stalls)]
    if once:
        fits = f"the data ({stalls.bytes / 1e6:,.0f} MB) fit into the VM's memory"
        return f"Fetching is paid in the first pass only: {fits}. There is no other stall."
    share = f"{min(stalls.compute.share, 1):.0%} of a step is computing"
    return f"No stall stands out of the noise: {share}. A faster GPU is what would help."


def _once(name: str, stalls: Stalls) -> bool:
    return name == "fetch" and stalls.bytes < _FITS
