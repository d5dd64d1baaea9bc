"""Common parts of the benchmarks: measures, homes, training clusters, use of processes, a slow link."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transient_magics import client, places
from transient_magics.client import Cluster, Declaration, Run
from transient_magics.journal import ClusterState, metrics

ROOT = Path(__file__).resolve().parent.parent
CELL = (ROOT / "templates" / "digits.py").read_text(encoding="utf-8")
KERAS_CELL = """
import keras
from sklearn.datasets import load_digits

model = keras.Sequential([
    keras.layers.Reshape((8, 8, 1)),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
    keras.layers.Flatten(),
    keras.layers.Dense(10, "softmax"),
])
model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])

def input_fn(mode):
    images, digits = load_digits(return_X_y=True)
    part = slice(360, None) if mode == "train" else slice(360)
    return images[part].astype("float32") / 16, digits[part]
"""
"""A small convolutional network on the digits; `lr` is its learning rate."""
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_BLOCK = 1 << 14


def parser_of(doc: str | None, quick: str, measures: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of a program with several measures: `--quick`, with its help, and `--only MEASURE ...`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    names = list(measures)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="MEASURE",
                        help=f"measure only these (default: all): {', '.join(names)}")  # fmt: skip
    return parser


def run_measures(measures: Mapping[str, Callable[[argparse.Namespace], None]], options: argparse.Namespace) -> None:
    """Run the measures of `--only`. Several run one after the other, each in a process of its own."""
    if len(options.only) == 1:
        measures[options.only[0]](options)
        return
    for name in options.only:
        print(f"# {name}", flush=True)
        done = subprocess.run([sys.executable, *sys.argv, "--only", name], check=False)
        if done.returncode:
            sys.exit(done.returncode)


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
    cluster.follow(
        lambda state: bool(state.current_or_next_run and len(state.current_or_next_run.workers) >= workers), 180
    )


def revoke_one(cluster: Cluster) -> str:
    """Have a worker revoked, with its notice, of those whose VMs are not on their way out; its name."""
    state = cluster.follow(lambda state: bool(_able(state)) or state.current_or_next_run is None, 180)
    if state is None or not _able(state):
        raise SystemExit("no worker trains that could be revoked")
    lost = _able(state)[0]
    cluster.revoke(lost)
    cluster.follow(lambda state: state.vms[lost].state != "ready", 60)
    return lost


def _able(state: ClusterState) -> list[str]:
    active = state.current_or_next_run
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


def ours(*marks: str) -> Iterator[Path]:
    """Folders in /proc of the processes of this benchmark's home whose command lines have all of these marks."""
    home = os.environ["TRANSIENT_MAGICS_HOME"].encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if home in line + (entry / "environ").read_bytes() and all(mark.encode() in line for mark in marks):
                    yield entry


def resident(*marks: str) -> float:
    """MiB of memory that such processes hold together."""
    total = 0
    for entry in ours(*marks):
        with contextlib.suppress(OSError):
            total += int((entry / "statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    return total / 2**20


def cpu(*marks: str) -> float:
    """Seconds of processors that such processes have used."""
    return sum(_used(entry / "stat") for entry in ours(*marks))


def main_thread_cpu(*marks: str) -> float:
    """The same of their first threads alone."""
    return sum(_used(entry / "task" / entry.name / "stat") for entry in ours(*marks))


def _used(stat: Path) -> float:
    try:
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Relay:
    """A port of this machine whose bytes all go to another one, `rate` of them a second each way (0: as they come)."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target, self.rate = (host, int(port)), 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = self._reached()
            for one, other in ((near, far), (far, near)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _reached(self) -> socket.socket:
        """The other end, which may be starting yet."""
        for _ in range(600):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(self._target)
            time.sleep(0.1)
        raise ConnectionRefusedError(f"nobody listens at {self._target}")

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while block := one.recv(_BLOCK):
                if self.rate:
                    time.sleep(len(block) / self.rate)
                other.sendall(block)
