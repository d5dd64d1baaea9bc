"""The weather in words: what `%transient_weather` prints below the settings."""

from __future__ import annotations

from collections.abc import Sequence

from transient_magics.spec import render_duration

from . import reading
from .settings import SCALED, SCALED_NOTICE, Revocations, Settings, Stockout


def describe(weather: Settings, rate: float, stand_ins: Sequence[str], now: float) -> list[str]:
    """One sentence for each thing that differs from fair weather. `stand_ins`: what stands in for which VMs."""
    lines: list[str] = []
    if rate != 1:
        hours = rate / 60
        lines.append(
            f"An hour passes in {3600 / rate:.3g} s ({hours:g} h per minute) for lifetimes, boot times and time "
            f"limits; {'the work takes its' if weather.notice == SCALED else 'notices and the work take their'} time."
        )
    lines += _revocations(weather.revocations, weather.waves)
    lines += [
        f"{each.zone} has as many transient VMs {_with(each.gpu)} as {each.name} says of {each.trace.name}, "
        f"again after {each.trace.end / 3600:.4g} h; so it was when it was measured, which is no forecast."
        for each in weather.availability
    ]
    if weather.revocations.kind == "published" and (used := ", ".join(filter(None, stand_ins))):
        lines.append(f"Nobody published figures for some of these VMs, so they live like others: {used}.")
    if weather.credentials and weather.credentials.holds(now):
        until = weather.credentials.until
        lines.append(f"The API accepts no credentials{f' for {render_duration(until - now)}' if until else ''}.")
    lines += _notice(weather.notice, rate)
    if weather.creation_preemptions:
        lines.append(f"{weather.creation_preemptions:.0%} of new transient VMs are preempted before they run.")
    lines += [_stockout(each, now) for each in weather.stockout]
    lines += [
        f"At most {each.limit} {each.what.upper()} in {each.region or 'each region'}, Spot and on demand each."
        for each in weather.quota
    ]
    if weather.api_errors:
        lines.append(
            f"{weather.api_errors:.0%} of API requests fail, before or after they took effect: refused for their rate, "
            "HTTP 429, 500, 502, 503, or a dropped connection."
        )
    if weather.api_latency:
        low, high = weather.api_latency.low, weather.api_latency.high
        span = f"{low * 1000:g} ms" if low == high else f"{low * 1000:g} to {high * 1000:g} ms (nine of ten)"
        lines.append(f"The API answers {span} late.")
    if weather.boot == "published":
        lines.append("VMs take as long to start as measured in 2019: about 45 s until they run, 40 s more until SSH.")
    elif weather.boot == "fails":
        lines.append("VMs start, but their start-up script fails, so that they never answer.")
    elif weather.boot == "silent":
        lines.append("VMs start, but never answer, and nothing tells why.")
    elif isinstance(weather.boot, float):
        lines.append(f"VMs take {weather.boot:g} s to start.")
    if weather.gpu_driver == "fails":
        lines.append("TensorFlow does not see the GPUs of VMs.")
    if weather.gpu_speed == "published":
        lines.append(
            "Steps take as long as measured for ResNet-32: K80 0.219 s, P100 0.082 s, V100 0.064 s; with --pace in "
            "the same proportion, a K80's being the pace. GPUs that nobody measured are not paced."
        )
    elif weather.gpu_speed != "equal":
        lines.append(
            f"Steps are paced as on GPUs so many times as fast as a K80: {weather.gpu_speed}; a K80's step is that of "
            "--pace, or of 0.219 s. Other GPUs are not paced."
        )
    if weather.link:
        far = f", {weather.link.far / 1e6:g} Mbit/s between regions" if weather.link.far else ""
        if weather.link.round_trip is not None:
            far += f" with {1000 * weather.link.round_trip:g} ms there and back"
        lines.append(f"A VM's network carries {weather.link.rate / 1e6:g} Mbit/s each way{far}.")
    if weather.pressure and weather.pressure.holds(now):
        left = f" for {render_duration(weather.pressure.until - now)}" if weather.pressure.until else ""
        lines.append(f"Transient VMs give {weather.pressure.cpus:g} vCPUs{left}, each in proportion to its size.")
    if weather.reclaim:
        some, left = weather.reclaim, max(weather.reclaim.until - now, 0.0)
        wanted = f"{some.number} of the {len(some.vms)} workers of {some.cluster or 'a cluster'}"
        lines.append(f"The provider wants {wanted} back within {render_duration(left)}, whichever; then it takes them.")
    return lines


def _notice(notice: float | str | None, rate: float) -> list[str]:
    match notice:
        case None:
            return []
        case float(seconds):
            return [f"VMs are taken {render_duration(seconds)} after the notice." if seconds else
                    "VMs are taken without a notice."]  # fmt: skip
    here = f", {reading.seconds(float(f'{SCALED_NOTICE / rate:.3g}'))} here" if rate != 1 else ""
    return [f"VMs are taken {SCALED_NOTICE:g} s of emulated time after the notice{here}."]


def _revocations(rained: Revocations, waves: float) -> list[str]:
    match rained.kind:
        case "every":
            return [f"Every {rained.period:g} s one transient VM, picked at random, is taken back."]
        case "file":
            return [f"Transient VMs are taken back as {rained.name} says, {len(rained.rows)} rows of it."]
        case "published":
            return [
                "Transient VMs live as long as preemptible ones with their GPU did in their region in 2019 (CM-DARE, "
                f"ICDCS 2020; CPU: ICAC 2019); a wave takes {waves:.0%} of those with one GPU in one zone."
            ]
    return []


def _with(gpu: str) -> str:
    return "without a GPU" if gpu == "cpu" else f"with a {gpu.upper()}"


def _stockout(stockout: Stockout, now: float) -> str:
    what = "transient VMs" if stockout.spot else "VMs"
    which = {"": "", "cpu": " without a GPU"}.get(stockout.gpu, f" with a {stockout.gpu.upper()}")
    if stockout.until is None:
        return f"{stockout.zone} has no {what}{which}."
    left = stockout.until - now
    return f"{stockout.zone} has no {what}{which}" + (
        f" for {render_duration(left)}." if left > 0 else ", until a while ago."
    )
