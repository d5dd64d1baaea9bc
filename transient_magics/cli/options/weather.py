"""Options of the emulator's weather, of shrinking VMs, and of measured availability."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...protocol.machines import LEAST
from ...spec import parse_cpus, parse_share
from ..option import (
    Option,
    duration,
    flag,
    group,
    hours,
    one_of,
    positive,
    setting,
    settings_help,
    word,
    zones,
)
from .shared import ANY_CLUSTER, CLUSTER_NAME, PROJECT, REVOCATIONS

SETTINGS = {
    "waves": "the share of VMs, of those with one kind of GPU in one zone, that a published wave "
    "revokes (default: 0.25)",
    "creation_preemptions": "the share of transient VMs that are preempted before they run "
    "(default: 0)",
    "api_latency": "latency of the API: none, 100ms, or 50ms..400ms for nine of ten requests "
    "(default: none)",
    "gpu_driver": "works, or fails: VMs answer, but TensorFlow does not see their GPUs (default: "
    "works)",
}
"""Settings of `--set NAME=VALUE`, by their names in the emulator."""


def weather() -> tuple[Option, ...]:
    """Return the options of `weather`. The emulator parses their values."""
    return (
        ANY_CLUSTER,
        *group(REVOCATIONS, *_losses()),
        *group("Capacity", *_capacity()),
        *group("Machines and network", *_machines()),
        *group("Time", *_time()),
        *group("Compute Engine's API", *_api()),
        *group(
            "Setting",
            flag("--seed", "seed of all random events. The same seed gives the same weather", str),
            flag("--reset", "first reset all settings, then apply the other options"),
            flag(
                "--set",
                settings_help(SETTINGS),
                setting(SETTINGS, lambda name, text: text),
                name="settings",
                many="extend",
                choices=tuple(f"{name}=" for name in SETTINGS),
                metavar="NAME=VALUE",
            ),
        ),
    )


def check_weather(values: dict[str, Any], called: str) -> None:
    """Replace `settings` by one value for each setting."""
    values.update(values.pop("settings", {}))


def _several(flags: str, help: str, **more: Any) -> Option:
    return flag(
        flags,
        f"{help}. Can be repeated; none removes all",
        str,
        many="extend",
        **more,
    )


def _losses() -> tuple[Option, ...]:
    return (
        flag(
            "--revocations",
            "revoke VMs. none: never; published: by the published lifetimes for GPU and region, "
            "in waves; every=60s: one random VM per minute; FILE.csv: a file with lifetime_hours "
            "(a row for each VM) or at_hours,count (a row for each wave)",
            str,
            choices=("none", "published", "every=60s"),
            metavar="HOW|FILE.csv",
        ),
        flag(
            "--notice",
            "time from the preemption notice to the end of the VM, at most 120s. VMs and events "
            "do not report this time. scaled: 30 s of the time that --hours-per-minute speeds up",
            str,
            default="30s",
            choices=("30s", "0s", "scaled"),
            metavar="TIME|scaled",
        ),
        flag(
            "--reclaim",
            "reclaim this number of workers. 2: the cluster chooses the VMs (--give-up); "
            "2,within=60s: the emulator chooses if the cluster has not chosen within this time; "
            "none",
            str,
            choices=("none", "1,within=60s"),
            metavar="N",
        ),
        flag(
            "--pressure",
            "take this number of vCPUs from all transient VMs together, while they run: 1cpu; "
            "1cpu,for=5m; none",
            str,
            choices=("none", "1cpu,for=5m"),
            metavar="CPUS",
        ),
    )


def _capacity() -> tuple[Option, ...]:
    return (
        flag(
            "--availability",
            "replay the measured number of transient VMs in zones: ZONE[:GPU]=FILE.csv:TRACE,...; "
            "FILE.csv: its traces, those for the cluster's zones first; google-h100-2025: zones "
            "like Google's in October 2025; none",
            str,
            choices=("none", "google-h100-2025"),
            metavar="ZONE=FILE:TRACE,...",
        ),
        _several(
            "--stockout",
            "reject requests for VMs in a zone: ZONE[:GPU][,spot][,for=10m][,delay=7s]",
            completes="zone",
            metavar="ZONE",
        ),
        _several("--quota", "set a quota: GPU=N, cpus=N or GPU@REGION=N", metavar="GPU=N"),
    )


def _machines() -> tuple[Option, ...]:
    return (
        flag(
            "--boot",
            "boot time of VMs. 2s: this time; published: as measured in 2019; fails: VMs report "
            "an error and never answer; silent: VMs never answer",
            str,
            choices=("2s", "published", "fails", "silent"),
            metavar="TIME|HOW",
        ),
        flag(
            "--gpu-speed",
            "speed of the GPUs. equal: all are equal; published: steps take as long as published; "
            "k80=1,p100=2: multiples of a K80",
            str,
            choices=("equal", "published"),
            metavar="HOW|GPU=TIMES,...",
        ),
        flag(
            "--link",
            "bandwidth of a VM in each direction: 100mbit; or 1gbit,far=100mbit/30ms, where far "
            "is between regions, with a round-trip time of 30 ms",
            str,
            choices=("none", "100mbit"),
            metavar="RATE",
        ),
    )


def _time() -> tuple[Option, ...]:
    return (
        flag(
            "--hours-per-minute",
            "speed up the time for lifetimes, boot times, limits and bills, but not for work; "
            "none: real time",
            str,
            choices=("none", "1", "60"),
            metavar="HOURS",
        ),
    )


def _api() -> tuple[Option, ...]:
    return (
        flag(
            "--api-errors",
            "share of API requests that fail, before or after they have taken effect",
            str,
            metavar="SHARE",
        ),
        flag(
            "--credentials",
            "state of the credentials. accepted: valid; expired: the API rejects every request; "
            "expired,for=60s: for this time",
            str,
            choices=("accepted", "expired", "expired,for=60s"),
            metavar="HOW",
        ),
    )


def deflate() -> tuple[Option, ...]:
    """Return the options of `deflate`."""
    policies = ("proportional", "priority", "deterministic")
    return (
        CLUSTER_NAME,
        word(
            "worker",
            "WORKER",
            "a worker of the cluster, such as worker-1",
            completes="worker",
            many="?",
        ),
        flag(
            "--cpu",
            "share of its CPU that the worker keeps: 50%",
            partial(parse_share, option="--cpu", least=LEAST),
            metavar="PART",
        ),
        flag(
            "--network",
            "share of its network that the worker keeps: 50%",
            partial(parse_share, option="--network", least=LEAST),
            metavar="PART",
        ),
        flag(
            "--machine-type",
            "stop the worker, change its machine type, and start it again; also in a project: "
            "n1-standard-2",
            str,
            metavar="TYPE",
        ),
        flag(
            "--reclaim",
            "take this number of vCPUs from all workers together, instead of from WORKER: 1.5cpu",
            partial(parse_cpus, option="--reclaim"),
            metavar="CPUS",
        ),
        flag(
            "--policy",
            "how to distribute --reclaim. proportional: in proportion to the size of the workers; "
            "priority: less from expensive workers; deterministic: from one worker after the "
            "other, the cheapest first",
            default="proportional",
            **one_of("--policy", policies),
        ),
        flag("--restore", "restore WORKER, or all VMs, to the size that was rented"),
    )


def check_deflate(values: dict[str, Any], called: str) -> None:
    """Refuse changes that contradict each other."""
    from ...client.project.deflation import check

    check(values)


def measure() -> tuple[Option, ...]:
    """Return the options of `measure`."""
    return (
        word(
            "gpu",
            "GPU",
            "the GPU to request; without it, show earlier measurements",
            many="?",
            completes="gpu",
        ),
        flag(
            "--zones",
            "zones in which to request VMs",
            partial(zones, option="--zones"),
            completes="zone",
            metavar="ZONE,...",
        ),
        flag(
            "--budget",
            "upper limit of the cost in US dollars. Each VM costs at least a minute",
            positive("--budget"),
            metavar="DOLLARS",
        ),
        flag(
            "--every",
            "time between two requests in a zone",
            duration("--every", "m"),
            default="10m",
            metavar="TIME",
        ),
        flag(
            "--hours",
            "duration of the measurement",
            hours("--hours"),
            default="24h",
            metavar="TIME",
        ),
        flag(
            "--provisioning-model",
            "how to request VMs. spot: as Spot VMs; standard: on demand, which costs more",
            default="spot",
            **one_of("--provisioning-model", ("spot", "standard")),
        ),
        PROJECT,
        flag("--stop", "stop all measurements"),
    )
