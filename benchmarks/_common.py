"""What the benchmarks share: a home of their own, a training cluster, and how figures are printed."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transient_magics import client, places
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics

ROOT = Path(__file__).resolve().parent.parent
CELL = (ROOT / "templates" / "digits.py").read_text(encoding="utf-8")


@contextlib.contextmanager
def own_home() -> Iterator[Path]:
    """A home for one benchmark; its clusters are deleted, its processes ended and its files removed at the end.

    That is a process's of its own (_guard.py), for a benchmark that is killed leaves nothing behind either.
    """
    home = Path(tempfile.mkdtemp(prefix="tm-bench-"))
    ours = {"TRANSIENT_MAGICS_HOME": str(home), "XDG_RUNTIME_DIR": str(home)}  # the home of sockets, too
    os.environ |= {**ours, "TRANSIENT_BENCHMARK": home.name}
    command = [sys.executable, str(Path(__file__).with_name("_guard.py")), str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield home  # then its input is closed, and it is waited for


def train(
    workers: int,
    *,
    steps: int = 10**7,
    pace: float | None = None,
    names: tuple[str, str, str] = ("resnet", "resnet_digits", "image_digits"),
    check: bool = False,
    hparams: str = "",
) -> tuple[Cluster, Run]:
    """A cluster of that many workers, every one of them training; `names` are model, hparams set and problem."""
    cluster = client.declare(Declaration(f"k80x{workers}", name="bench", max_workers=4 * workers))
    model, hparams_set, problem = names
    run = start(
        cluster, steps=steps, pace_seconds=pace, model=model, hparams_set=hparams_set, problem=problem, check=check,
        hparams=hparams,
    )  # fmt: skip
    all_in(cluster, workers)
    return cluster, run


def start(cluster: Cluster, *, steps: int = 10**7, source: str = CELL, **options: Any) -> Run:
    """A run on the digits, with the quickstart's model where `options` (of RunSpec) name no other."""
    chosen = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits", "check": False, **options}
    return client.train(source=source, cluster=cluster, train_steps=steps, **chosen)


def rows_between(run: Run, since: float, until: float) -> list[dict[str, Any]]:
    """The metrics' lines of these seconds (UTC)."""
    rows = metrics.read(run.directory / "metrics.jsonl")
    return [row for row in rows if since <= row["time"] / 1e9 <= until]


def step_rate(run: Run, since: float, until: float) -> float:
    """Global steps per second between two moments (seconds, UTC)."""
    rows = rows_between(run, since, until)
    return (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["time"] - rows[0]["time"]) * 1e9


def all_in(cluster: Cluster, workers: int) -> None:
    """Wait until that many workers take part."""
    cluster.follow(lambda state: bool(state.active_run and len(state.active_run.workers) >= workers), 180)


def revoke_one(cluster: Cluster) -> str:
    """Have a worker revoked, with its notice, of those whose VMs are not on their way out; its name."""
    state = cluster.follow(lambda state: bool(_able(state)) or state.active_run is None, 180)
    if state is None or not _able(state):
        raise SystemExit("no worker trains that could be revoked")
    lost = _able(state)[0]
    cluster.revoke(lost)
    cluster.follow(lambda state: state.vms[lost].state != "ready", 60)
    return lost


def _able(state: ClusterState) -> list[str]:
    active = state.active_run
    return [name for name in sorted(active.workers) if state.vms[name].state == "ready"] if active else []


def vm_home(cluster: Cluster, vm: str) -> Path:
    """The home directory of an emulated VM, on this machine."""
    return places.emulator() / "vms" / f"{cluster.name}-{vm}" / "home"


def process(cluster: Cluster, vm: str, role: str) -> int:
    """The process number of a role (`worker`, `parameter_server`) on an emulated VM."""
    target = vm_home(cluster, vm)
    (home,) = [link for link in places.sockets().iterdir() if link.is_symlink() and link.readlink() == target]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if f"transient_magics.runtime.{role} " in line and str(home) in line:
                    return int(entry.name)
    raise LookupError(f"no {role} on {vm}")


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def card() -> str:
    """Return the name of the first NVIDIA GPU of this machine, or nothing."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60, encoding="utf-8"
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return listed.partition("(")[0].strip() if listed.startswith("GPU ") else ""


def say(name: str, value: float, unit: str, target: str = "", *, more: str = "") -> None:
    """One figure on one line."""
    aside = "; ".join(filter(None, [f"target {target}" if target else "", more]))
    print(f"{name:58} {value:9.3f} {unit:8} {aside}".rstrip(), flush=True)


def say_all(name: str, values: Sequence[float], unit: str, target: str = "") -> None:
    """The median of several samples, with their number and range, on one line."""
    say(name, median(values), unit, target, more=f"n {len(values)}, {min(values):.3f} to {max(values):.3f}")


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def say_never(what: str, times: int, of: int) -> None:
    """How often something came that never may; where it never did, what that is worth (the rule of three)."""
    bound = "" if times or not of else f"with 95 % confidence below {3 / of:.2g} of them"
    print(f"{what:58} {times:5} of {of:<6} {bound}".rstrip(), flush=True)
