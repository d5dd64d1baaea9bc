"""What may be said of the emulator's weather."""

from __future__ import annotations

from typing import Any

from ...errors import DeclarationError
from ...protocol.share import LEAST
from ...spec import parse_cpus, parse_share
from ..option import (
    Option,
    duration,
    flag,
    hours,
    one_of,
    positive,
    word,
    zones,
)
from .shared import ANY_CLUSTER, CLUSTER_NAME, PROJECT


def weather() -> tuple[Option, ...]:
    """Of the emulator's weather."""

    # Texts go to the emulator as they are: it alone knows what can be set.
    def several(flags: str, help: str, **more: Any) -> Option:
        return flag(flags, f"{help}; several stand one after the other; none: no more", str, many="extend", **more)

    return (
        ANY_CLUSTER,
        flag("--revocations", "none; published: lifetimes by GPU and region, in waves; every=60s: one VM at random "
              "each minute; or a CSV file with lifetime_hours (a row per VM) or at_hours,count (a row per wave)", str,
              choices=("none", "published", "every=60s"), metavar="HOW|FILE.csv"),
        flag("--availability", "how many transient VMs zones have, as measured: ZONE[:GPU]=FILE.csv:TRACE,... (a file "
              "alone: its traces for the cluster's zones, then others); google-h100-2025: zones like Google's in "
              "October 2025; none", str, choices=("none", "google-h100-2025"),
              metavar="ZONE=FILE:TRACE,..."),
        flag("--waves", "the share of the VMs with one GPU in one zone that a published wave takes (0.25)", str,
              metavar="SHARE"),
        flag("--hours-per-minute", "how fast time passes for lifetimes, boot times, limits and bills, never for "
              "work; none: as ever", str, choices=("none", "1", "60"), metavar="HOURS"),
        several("--stockout", "no capacity: ZONE[:GPU][,spot][,for=10m][,delay=7s]", completes="zone",
                metavar="ZONE"),
        several("--quota", "at most so many in a region: GPU=N, cpus=N or GPU@REGION=N", metavar="GPU=N"),
        flag("--api-errors", "the share of API requests that fail, before or after they took effect", str,
              metavar="SHARE"),
        flag("--api-latency", "how late the API answers: 100ms, or nine of ten within 50ms..400ms", str,
              choices=("none", "50ms..400ms"), metavar="TIME"),
        flag("--credentials", "accepted; expired: the API refuses every request (expired,for=60s)", str,
              choices=("accepted", "expired", "expired,for=60s"), metavar="HOW"),
        flag("--creation-preemptions", "the share of transient VMs that are preempted before they run", str,
              metavar="SHARE"),
        flag("--boot", "how long VMs take to start: 2s; published: as measured in 2019; they never answer: fails (and "
              "say so), silent", str, choices=("2s", "published", "fails", "silent"), metavar="TIME|HOW"),
        flag("--notice", "the time from the notice of a preemption to the VM's end, 120s at most (30s); scaled: 30 s "
              "of the time that --hours-per-minute makes faster", str, choices=("30s", "0s", "scaled"),
              metavar="TIME|scaled"),
        flag("--gpu-driver", "works; fails: VMs answer, and TensorFlow does not see their GPUs", str,
              choices=("works", "fails"), metavar="HOW"),
        flag("--gpu-speed", "equal; published: steps are paced as measured for the VM's GPU; or how many times as fast "
              "as a K80: k80=1,p100=2", str, choices=("equal", "published"), metavar="HOW|GPU=TIMES,..."),
        flag("--link", "what a VM's network carries each way: 100mbit, or 1gbit,far=100mbit/30ms (between regions, "
              "there and back in 30 ms)", str,
              choices=("none", "100mbit"), metavar="RATE"),
        flag("--pressure", "so many vCPUs are taken from all transient VMs together, which run on: 1cpu, 1cpu,for=5m; "
              "none", str, choices=("none", "1cpu,for=5m"), metavar="CPUS"),
        flag("--reclaim", "the provider wants so many of the cluster's workers back and leaves the choice to it: 2, or "
              "2,within=60s; what is missing then it takes (the cluster's --give-up says who goes); none", str,
              choices=("none", "1,within=60s"), metavar="N"),
        flag("--seed", "what all chance follows from: the same seed, the same weather", str),
        flag("--reset", "fair weather again, before anything else that is given"),
    )  # fmt: skip


def shares() -> dict[str, tuple[Option, ...]]:
    """Of shrinking VMs, and giving back what was taken."""
    policies = ("proportional", "priority", "deterministic")
    return {
        "deflate": (
            CLUSTER_NAME,
            word("worker", "WORKER", "one of its VMs, as worker-1", completes="worker", many="?"),
            flag("--cpu", "which part of its CPU it keeps: 50%", lambda text: parse_share(text, "--cpu", LEAST),
                  metavar="PART"),
            flag("--machine-type", "in the place of these, in a project too: the worker is stopped, made this machine, "
                  "and started again: n1-standard-2", str, metavar="TYPE"),
            flag("--network", "which part of its network it keeps: 50%",
                  lambda text: parse_share(text, "--network", LEAST), metavar="PART"),
            flag("--reclaim", "in the place of WORKER: so many vCPUs from all workers together, as 1.5cpu",
                  lambda text: parse_cpus(text, "--reclaim"), metavar="CPUS"),
            flag("--policy", "which of them give how much: in proportion to their size; dearer ones less; or one after "
                  "the other, the cheapest first (proportional)", **one_of("--policy", policies)),
        ),
        "inflate": (
            CLUSTER_NAME,
            word("worker", "WORKER", "one of its VMs (default: all)", completes="worker", many="?"),
        ),
    }  # fmt: skip


def check_deflate(values: dict[str, Any], called: str) -> None:
    """A VM and what it keeps, or what all of them give."""
    parts = {"cpu", "network", "machine_type"} & values.keys()
    if ("reclaim" in values) == ("worker" in values) or bool(parts) != ("worker" in values):
        fix = f"For example: {called} k80x4 worker-1 --cpu 50%, or {called} k80x4 --reclaim 1.5cpu"
        what = f"{called} takes a VM with --cpu, --network or --machine-type, or --reclaim alone"
        raise DeclarationError(what, fix=fix)
    if "machine_type" in parts and len(parts) > 1:
        what = "--machine-type cannot be used with --cpu or --network"
        raise DeclarationError(what, fix="Shrink it further when it is ready.")
    if "policy" in values and "reclaim" not in values:
        raise DeclarationError(f"--policy says how {called} --reclaim is shared out", fix="Add --reclaim 1.5cpu.")


def measure() -> tuple[Option, ...]:
    """Of measured availability."""
    return (
        word("gpu", "GPU", "the GPU that zones may have; without one: what was seen so far", many="?",
             completes="gpu"),
        flag("--zones", "where VMs are asked for, and given back at once", lambda text: zones(text, "--zones"),
             completes="zone", metavar="ZONE,..."),
        flag("--budget", "what that may cost in US dollars, a minute of each VM at least", positive("--budget"),
             metavar="DOLLARS"),
        flag("--every", "from one look to the next: 10m", duration("--every", "m"), metavar="TIME"),
        flag("--hours", "for how long (24h)", hours("--hours"), metavar="TIME"),
        flag("--provisioning-model", "how they are asked for: as Spot, or on demand, which costs more (spot)",
             **one_of("--provisioning-model", ("spot", "standard"))),
        PROJECT,
        flag("--stop", "look no more: ends all measurements"),
    )  # fmt: skip
