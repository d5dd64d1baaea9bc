"""The options of the emulator's weather, of shrinking VMs, and of measured availability."""

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
    "waves": "the share of the VMs with one GPU in one zone that a published wave revokes (default: 0.25)",
    "creation_preemptions": "the share of transient VMs that are preempted before they run (default: 0)",
    "api_latency": "how late the API answers: none, 100ms, or nine of ten within 50ms..400ms (default: none)",
    "gpu_driver": "works; fails: VMs answer, and TensorFlow does not see their GPUs (default: works)",
}
"""The weather that `--set NAME=VALUE` sets, by the emulator's names."""


def weather() -> tuple[Option, ...]:
    """Return the options of the emulator's weather. It parses their values itself."""
    return (
        ANY_CLUSTER,
        *group(REVOCATIONS, *_losses()),
        *group("Capacity", *_capacity()),
        *group("Machines and network", *_machines()),
        *group("Time", *_time()),
        *group("Compute Engine's API", *_api()),
        *group(
            "Setting",
            flag("--seed", "the seed of all chance: the same seed gives the same weather", str),
            flag("--reset", "return to fair weather before the other options apply"),
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
    """Give each setting its own name."""
    values.update(values.pop("settings", {}))


def _several(flags: str, help: str, **more: Any) -> Option:
    return flag(
        flags,
        f"{help}; several stand one after the other; none removes them",
        str,
        many="extend",
        **more,
    )


def _losses() -> tuple[Option, ...]:
    return (
        flag(
            "--revocations",
            "which VMs are revoked: none; published: lifetimes by GPU and region, in waves; "
            "every=60s: one VM at random each minute; or a CSV file with lifetime_hours (a row per VM) or "
            "at_hours,count (a row per wave)",
            str,
            choices=("none", "published", "every=60s"),
            metavar="HOW|FILE.csv",
        ),
        flag(
            "--notice",
            "the time from the notice of a preemption to the VM's end, 120s at most, of which VMs and events know "
            "nothing; scaled: 30 s of the time that --hours-per-minute makes faster",
            str,
            default="30s",
            choices=("30s", "0s", "scaled"),
            metavar="TIME|scaled",
        ),
        flag(
            "--reclaim",
            "revoke this number of the cluster's workers, which the cluster chooses (--give-up): 2, or 2,within=60s: "
            "after that time the emulator chooses; none",
            str,
            choices=("none", "1,within=60s"),
            metavar="N",
        ),
        flag(
            "--pressure",
            "take this number of vCPUs from all transient VMs together, which continue to run: 1cpu, 1cpu,for=5m; none",
            str,
            choices=("none", "1cpu,for=5m"),
            metavar="CPUS",
        ),
    )


def _capacity() -> tuple[Option, ...]:
    return (
        flag(
            "--availability",
            "how many transient VMs zones have, as measured: ZONE[:GPU]=FILE.csv:TRACE,... (a file "
            "alone: its traces for the cluster's zones first); google-h100-2025: zones like Google's in October 2025; "
            "none",
            str,
            choices=("none", "google-h100-2025"),
            metavar="ZONE=FILE:TRACE,...",
        ),
        _several(
            "--stockout",
            "zones without capacity: ZONE[:GPU][,spot][,for=10m][,delay=7s]",
            completes="zone",
            metavar="ZONE",
        ),
        _several("--quota", "limits of a region: GPU=N, cpus=N or GPU@REGION=N", metavar="GPU=N"),
    )


def _machines() -> tuple[Option, ...]:
    return (
        flag(
            "--boot",
            "how long VMs take to start: 2s; published: as measured in 2019; or VMs that never answer: "
            "fails (with an error), silent",
            str,
            choices=("2s", "published", "fails", "silent"),
            metavar="TIME|HOW",
        ),
        flag(
            "--gpu-speed",
            "equal; published: steps take as long as measured for the VM's GPU; or speeds in terms of a "
            "K80: k80=1,p100=2",
            str,
            choices=("equal", "published"),
            metavar="HOW|GPU=TIMES,...",
        ),
        flag(
            "--link",
            "the bandwidth of a VM each way: 100mbit, or 1gbit,far=100mbit/30ms (between regions, with a "
            "round trip of 30 ms)",
            str,
            choices=("none", "100mbit"),
            metavar="RATE",
        ),
    )


def _time() -> tuple[Option, ...]:
    return (
        flag(
            "--hours-per-minute",
            "how fast time passes for lifetimes, boot times, limits and bills, never for work; none: as usual",
            str,
            choices=("none", "1", "60"),
            metavar="HOURS",
        ),
    )


def _api() -> tuple[Option, ...]:
    return (
        flag(
            "--api-errors",
            "the share of API requests that fail, before or after they took effect",
            str,
            metavar="SHARE",
        ),
        flag(
            "--credentials",
            "accepted; expired: the API refuses every request (expired,for=60s)",
            str,
            choices=("accepted", "expired", "expired,for=60s"),
            metavar="HOW",
        ),
    )


def deflate() -> tuple[Option, ...]:
    """Return the options of shrinking VMs and of restoring them."""
    policies = ("proportional", "priority", "deterministic")
    return (
        CLUSTER_NAME,
        word("worker", "WORKER", "one of its VMs, such as worker-1", completes="worker", many="?"),
        flag(
            "--cpu",
            "the share of its CPU that it keeps: 50%",
            partial(parse_share, option="--cpu", least=LEAST),
            metavar="PART",
        ),
        flag(
            "--network",
            "the share of its network that it keeps: 50%",
            partial(parse_share, option="--network", least=LEAST),
            metavar="PART",
        ),
        flag(
            "--machine-type",
            "instead of these, in a project too: stop the worker, change its machine type, and "
            "start it again: n1-standard-2",
            str,
            metavar="TYPE",
        ),
        flag(
            "--reclaim",
            "instead of WORKER, take this number of vCPUs from all workers together, such as 1.5cpu",
            partial(parse_cpus, option="--reclaim"),
            metavar="CPUS",
        ),
        flag(
            "--policy",
            "how --reclaim is shared out: in proportion to the workers' size; less from expensive "
            "ones; or one after the other, the cheapest first",
            default="proportional",
            **one_of("--policy", policies),
        ),
        flag("--restore", "restore WORKER, or all VMs, to what was rented"),
    )


def check_deflate(values: dict[str, Any], called: str) -> None:
    """Refuse changes that contradict each other."""
    from ...client.project.deflation import check

    check(values)


def measure() -> tuple[Option, ...]:
    """Return the options of measured availability."""
    return (
        word(
            "gpu",
            "GPU",
            "the GPU to request; without it, show what was measured so far",
            many="?",
            completes="gpu",
        ),
        flag(
            "--zones",
            "where to request VMs, which are deleted immediately",
            partial(zones, option="--zones"),
            completes="zone",
            metavar="ZONE,...",
        ),
        flag(
            "--budget",
            "the most that it may cost in US dollars; each VM costs at least a minute",
            positive("--budget"),
            metavar="DOLLARS",
        ),
        flag(
            "--every",
            "the time between two requests: 10m",
            duration("--every", "m"),
            metavar="TIME",
        ),
        flag("--hours", "for how long", hours("--hours"), default="24h", metavar="TIME"),
        flag(
            "--provisioning-model",
            "how to request them: as Spot, or on demand, which costs more",
            default="spot",
            **one_of("--provisioning-model", ("spot", "standard")),
        ),
        PROJECT,
        flag("--stop", "end all measurements"),
    )
