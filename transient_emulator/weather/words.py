"""The weather in words: what `%transient_weather` prints below the settings."""

from __future__ import annotations

from collections.abc import Sequence

from transient_magics.spec import render_duration

from . import reading
from .availability import Replayed
from .reclaiming import Reclaim
from .settings import (
    SCALED,
    SCALED_NOTICE,
    Expired,
    GpuSpeeds,
    Latency,
    Link,
    Pressure,
    Quota,
    Revocations,
    Settings,
    Stockout,
)


def describe(weather: Settings, rate: float, stand_ins: Sequence[str], now: float) -> list[str]:
    """Return a sentence for each thing that differs from fair weather.

    Parameters ----------
    weather
        The settings.
    rate
        How many times as fast as this machine's clock the emulated one runs.
    stand_ins
        Clauses about VMs without published figures, and which figures they use; empty ones are left
        out.
    now
        The present, in seconds since 1970.
    """
    lines: list[str] = []
    if rate != 1:
        lines.append(_rate(rate, weather.notice))
    lines += _revocations(weather.revocations, weather.waves)
    lines += [_replayed(replayed) for replayed in weather.availability]
    used = ", ".join(filter(None, stand_ins))
    if weather.revocations.kind == "published" and used:
        lines.append(
            f"No figures are published for some of these VMs, so they live like others: {used}."
        )
    if weather.credentials and weather.credentials.holds(now):
        lines.append(_expired(weather.credentials, now))
    lines += _notice(weather.notice, rate)
    if weather.creation_preemptions:
        share = weather.creation_preemptions
        lines.append(f"{share:.0%} of new transient VMs are preempted before they run.")
    lines += [_stockout(stockout, now) for stockout in weather.stockout]
    lines += [_quota(quota) for quota in weather.quota]
    if weather.api_errors:
        lines.append(
            f"{weather.api_errors:.0%} of API requests fail, before or after they took effect: "
            "refused for their rate, HTTP 429, 500, 502, 503, or a dropped connection."
        )
    if weather.api_latency:
        lines.append(_latency(weather.api_latency))
    lines += _boot(weather.boot)
    if weather.gpu_driver == "fails":
        lines.append("TensorFlow does not see the GPUs of VMs.")
    lines += _gpu_speed(weather.gpu_speed)
    if weather.link:
        lines.append(_link(weather.link))
    if weather.pressure and weather.pressure.holds(now):
        lines.append(_pressure(weather.pressure, now))
    if weather.reclaim:
        lines.append(_reclaim(weather.reclaim, now))
    return lines


def _rate(rate: float, notice: float | str | None) -> str:
    if notice == SCALED:
        exception = "the work takes its time"
    else:
        exception = "notices and the work take their time"
    return (
        f"An hour passes in {3600 / rate:.3g} s ({rate / 60:g} h per minute) for lifetimes, boot "
        f"times and time limits; {exception}."
    )


def _revocations(revocations: Revocations, waves: float) -> list[str]:
    match revocations.kind:
        case "every":
            period = f"{revocations.period:g}"
            return [f"Every {period} s one transient VM, picked at random, is revoked."]
        case "file":
            rows = len(revocations.rows)
            return [f"Transient VMs are revoked by the {rows} rows of {revocations.name}."]
        case "published":
            return [
                "Transient VMs live as long as preemptible ones with their GPU did in their region "
                "in 2019 (CM-DARE, ICDCS 2020; CPU: ICAC 2019); a wave takes "
                f"{waves:.0%} of those with one GPU in one zone."
            ]
    return []


def _replayed(replayed: Replayed) -> str:
    return (
        f"{replayed.zone} has as many transient VMs {_with(replayed.gpu)} as {replayed.name} says "
        f"of {replayed.trace.name}, again after {replayed.trace.end / 3600:.4g} h; "
        "this was measured there, and is not a forecast."
    )


def _expired(credentials: Expired, now: float) -> str:
    if credentials.until is None:
        return "The API accepts no credentials."
    return f"The API accepts no credentials for {render_duration(credentials.until - now)}."


def _notice(notice: float | str | None, rate: float) -> list[str]:
    match notice:
        case None:
            return []
        case float(seconds):
            if not seconds:
                return ["VMs are taken without a notice."]
            return [f"VMs are taken {render_duration(seconds)} after the notice."]
    here = ""
    if rate != 1:
        rounded = float(f"{SCALED_NOTICE / rate:.3g}")
        here = f", {reading.seconds(rounded)} here"
    return [f"VMs are taken {SCALED_NOTICE:g} s of emulated time after the notice{here}."]


def _stockout(stockout: Stockout, now: float) -> str:
    vms = "transient VMs" if stockout.spot else "VMs"
    if stockout.gpu:
        vms += f" {_with(stockout.gpu)}"
    text = f"{stockout.zone} has no {vms}"
    if stockout.until is None:
        return f"{text}."
    left = stockout.until - now
    if left > 0:
        return f"{text} for {render_duration(left)}."
    return f"{text}, until a while ago."


def _with(gpu: str) -> str:
    if gpu == "cpu":
        return "without a GPU"
    return f"with a {gpu.upper()}"


def _quota(quota: Quota) -> str:
    where = quota.region or "each region"
    return f"At most {quota.limit} {quota.what.upper()} in {where}, Spot and on demand each."


def _latency(latency: Latency) -> str:
    low = latency.low * 1000
    high = latency.high * 1000
    if low == high:
        return f"The API answers {low:g} ms late."
    return f"The API answers {low:g} to {high:g} ms (nine of ten) late."


def _boot(boot: float | str | None) -> list[str]:
    match boot:
        case "published":
            return [
                "VMs take as long to start as measured in 2019: about 45 s until they run, 40 s "
                "more until SSH."
            ]
        case "fails":
            return ["VMs start, but their start-up script fails, so SSH never answers."]
        case "silent":
            return ["VMs start, but SSH never answers, and nothing reports why."]
        case float(seconds):
            return [f"VMs take {seconds:g} s to start."]
    return []


def _gpu_speed(speed: str | GpuSpeeds) -> list[str]:
    if speed == "equal":
        return []
    if speed == "published":
        return [
            "Steps take as long as measured for ResNet-32: K80 0.219 s, P100 0.082 s, V100 "
            "0.064 s; "
            "with --pace in the same proportion, a K80's being the pace. GPUs without a "
            "measurement are not paced."
        ]
    return [
        f"Steps are paced by speeds relative to a K80: {speed}; a K80's step is that of --pace, or "
        "of 0.219 s. Other GPUs are not paced."
    ]


def _link(link: Link) -> str:
    text = f"A VM's network carries {link.rate / 1e6:g} Mbit/s each way"
    if link.far:
        text += f", {link.far / 1e6:g} Mbit/s between regions"
    if link.round_trip is not None:
        text += f" with {1000 * link.round_trip:g} ms there and back"
    return f"{text}."


def _pressure(pressure: Pressure, now: float) -> str:
    span = ""
    if pressure.until is not None:
        span = f" for {render_duration(pressure.until - now)}"
    return f"Transient VMs give {pressure.cpus:g} vCPUs{span}, each in proportion to its size."


def _reclaim(reclaim: Reclaim, now: float) -> str:
    left = render_duration(max(reclaim.until - now, 0.0))
    cluster = reclaim.cluster or "a cluster"
    return (
        f"The provider wants {reclaim.number} of the {len(reclaim.vms)} workers of {cluster} back "
        f"within {left}, whichever; then it takes them."
    )
