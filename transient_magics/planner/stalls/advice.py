"""One line of advice: the longest stall, what would mend it, and the option that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .parts import LEAST_REPEATS, Estimate, Stalls
from .terms import Terms
from .what_if import Change

_UNEVEN = 0.1
"""Of a step: a part within the noise that takes more in the mean may be a stall all the same."""
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
    """What to do about the stalls of these workers, which have so many parameter `servers`; empty where there are too
    few repeats to claim anything."""
    if len(stalls.repeats) < LEAST_REPEATS:
        return ""
    found = [each for each in stalls.stalled if not _once(each.name, stalls)]
    if found:
        first = found[0]
        mend = _MENDS[first.name].format(more=servers + 1)
        return f"{first.share:.0%} of a step is {first.name}: {mend}."
    once = [each for each in stalls.stalled if _once(each.name, stalls)]
    if once:
        fits = f"the data ({stalls.bytes / 1e6:,.0f} MB) fit into the VM's memory"
        return f"Fetching is paid in the first pass only: {fits}. There is no other stall."
    uneven = max(stalls.parts, key=lambda each: each.share)
    if uneven.share >= _UNEVEN:
        often = f"{uneven.name} took {uneven.share:.0%} of a step in the mean, and not evenly"
        return f"No stall stands out of the noise, but {often}: take more --repeats, or longer --seconds."
    share = f"{min(stalls.compute.share, 1):.0%} of a step is computing"
    faster = "A GPU" if stalls.kind.partition("/")[0] == "cpu" else "A faster GPU"
    return f"No stall stands out of the noise: {share}. {faster} is what would help."


def terms_words(which: str, terms: Terms, change: Change) -> str:
    """What a step on `which` worker is made of with the change, each part with its interval; empty where the measure
    claims no stall, and nothing is changed."""
    told, parts = terms.stalls, terms.parts(change)
    sure = {_PARTS.get(each.name, each.name) for each in told.stalled}
    after = terms.parts(terms.change(terms.place))
    moved = {name for name, each in parts.items() if not math.isclose(each.mean, after[name].mean, rel_tol=1e-3)}
    shown = [name for name in parts if name in sure or name == "computing" or (sure and name in moved)]
    if not sure:
        return ""
    said = ", ".join(f"{name} {milliseconds(parts[name])}" for name in shown)
    hidden = [name for name in parts if name not in shown]
    noise = f" ({', '.join(hidden)}: within the noise)" if hidden else ""
    with_ = "" if "contention" not in shown else f", {terms.workers} workers and --ps {terms.servers}"
    computed = "" if not moved else ", computed for these"
    return (
        f"A step on the {which}: {said}{noise}, as {terms.run} measured on {terms.place.vcpus} vCPUs in "
        f"{len(told.repeats)} repeats{with_}{computed}."
    )


_PARTS = {"preparation": "waiting for input", "fetch": "waiting for input"}


def milliseconds(seconds: Estimate) -> str:
    """As `41.2 ms ± 0.8`."""
    spread = f" ± {1000 * seconds.half:.1f}" if seconds.half < 1e3 else " ± ?"
    return f"{round(1000 * seconds.mean, 1) + 0.0:.1f} ms{spread}"  # no -0.0


def _once(name: str, stalls: Stalls) -> bool:
    return name == "fetch" and stalls.fits
