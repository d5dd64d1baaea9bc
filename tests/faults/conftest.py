"""One emulated cluster with a run that never ends, shared by the fault tests; each hurts it and sees it heal.

Everything is real: the emulator, SSH, TensorFlow processes, a detached controller. Processes are found by what they are
on the host (a VM's processes have the VM's home in their command line), and only those are hurt.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import zygotes
from tests.ends import all_end
from transient_magics import client, emulator, places
from transient_magics.cli import arguments, verbs
from transient_magics.journal import ClusterState, Event, events
from transient_magics.protocol.vm_events import TrainShipped

CELL = (Path(__file__).parents[2] / "templates" / "digits.py").read_text(encoding="utf-8")
SMALL_CELL = """
import numpy as np
import tensorflow.compat.v1 as tf
from own_layers import SIZE

batch_size = 8

def input_fn(mode):
    pixels = np.random.default_rng(1).random((64, SIZE)).astype("float32")
    return pixels, (pixels.sum(1) > SIZE / 2).astype("int64")

def model_fn(features, labels, mode):
    logits = features @ tf.get_variable("weights", [SIZE, 2], initializer=tf.random_normal_initializer(stddev=0.01))
    answer = {"predictions": {"scores": tf.nn.softmax(logits)}}
    if mode != "infer":
        answer["loss"] = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == "train":
        answer |= {"optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.01}
    if mode == "eval":
        answer["eval_metric_ops"] = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
    return answer
"""
"""A model whose graph is built in a moment; its size comes from a package that is sent along (`--include`)."""
LINE_CELL = """
import numpy as np
import tensorflow.compat.v1 as tf

def input_fn(mode):
    points = np.linspace(-1, 1, 64, dtype="float32")[:, None]
    return points, 3 * points

def model_fn(features, labels, mode):
    line = features * tf.get_variable("slope", [1])
    answer = {"predictions": {"line": line}}
    if mode != "infer":
        answer["loss"] = tf.reduce_mean(tf.square(line - labels))
    if mode == "train":
        answer |= {"optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.1}
    return answer
"""
"""A model of one variable, for runs of which nothing else matters."""
PACE = 0.3  # seconds per step: the workers leave the two cores some air
PATIENCE = 300.0  # far more than anything takes: a machine with two busy cores is no failure


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these tests lives through a cluster's story."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)


def processes(*marks: str) -> list[int]:
    """Process numbers whose command line holds all the marks, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if all(mark in line for mark in marks):
                    found.append(int(entry.name))
    return sorted(found)


def end(numbers: list[int]) -> None:
    """kill -9 of processes, of those that are there still."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def stand_still(number: int) -> None:
    """SIGSTOP, and wait until every thread has heard of it: until then they go on."""
    os.kill(number, signal.SIGSTOP)
    deadline = time.monotonic() + PATIENCE

    def states() -> set[str]:
        return {
            task.joinpath("stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{number}/task").iterdir()
        }

    while states() != {"T"}:
        assert time.monotonic() < deadline, f"process {number} goes on"
        time.sleep(0.001)


@contextlib.contextmanager
def full_disk(process: int, path: Path) -> Iterator[None]:
    """As long as it lasts, the process can write no file further than `path` reaches."""
    limits = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, limits)


def said(line: str) -> str:
    """What a cell or a terminal shows of a line."""
    verb, *words = line.split()
    answer = verbs.act(arguments.parse(verb, words))
    return "\n".join(map(str, answer if isinstance(answer, Iterator) else [answer]))


class Patient:
    """A cluster under treatment, and what the tests ask about it."""

    def __init__(self, cluster: client.Cluster, run: client.Run | None = None) -> None:
        self.cluster = cluster
        self.run = run

    def process(self, vm: str, role: str) -> int:
        """Return the host's number of a process on a VM: of a role, of the agent, or of work (`jobs`)."""
        program = f"works.{role}.on_vm" if role == "jobs" else f"runtime.{role}"
        found = processes(f"transient_magics.{program} ", str(self.home(vm)))
        assert found, f"no {role} on {vm}"
        return found[-1]

    def home(self, vm: str) -> Path:
        """The short path by which the VM's processes know their home."""
        target = places.emulator() / "vms" / f"{self.cluster.name}-{vm}" / "home"
        (found,) = [link for link in places.sockets().iterdir() if link.is_symlink() and link.readlink() == target]
        return found

    def kill(self, vm: str, role: str) -> int:
        """kill -9 of a role process on a VM."""
        number = self.process(vm, role)
        os.kill(number, signal.SIGKILL)
        return number

    def another_agent(self, vm: str) -> None:
        """kill -9 of the agent on a VM, and wait for the one that follows it."""
        old = self.kill(vm, "agent")
        self.sees(lambda: set(processes(str(self.home(vm)), "runtime.agent ")) - {old}, f"new agent on {vm}")

    def controller(self) -> int:
        """The process number of the controller."""
        return int((self.cluster.directory / "controller.lock").read_text(encoding="utf-8"))

    def emulator(self) -> int:
        """The process number of the emulator."""
        return self.emulators()[-1]

    def emulators(self) -> list[int]:
        """The process numbers of emulators of this home: of one that ends and of its successor."""
        return processes("transient_emulator", "--inside", str(places.home()))

    def mark(self) -> int:
        """A moment in the journal."""
        return self.cluster.state.seq

    def since(self, mark: int, kind: type[Event]) -> list[Event]:
        """Events of a kind after a moment."""
        return [event for event in self.cluster.events() if event.seq > mark and isinstance(event, kind)]

    def until(self, reached: Callable[[ClusterState], object], what: str, timeout: float = PATIENCE) -> ClusterState:
        """Wait until the state is as it should be."""
        state = self.cluster.follow(lambda now: bool(reached(now)), timeout)
        assert state is not None, f"not {what} within {timeout:.0f} s: {_summary(self.cluster)}"
        return state

    def event(self, mark: int, kind: type[Event], timeout: float = PATIENCE, **fields: object) -> Event:
        """Wait for an event of a kind, with these fields, after a moment."""

        def found() -> list[Event]:
            every = self.since(mark, kind)
            return [each for each in every if all(getattr(each, name) == value for name, value in fields.items())]

        self.until(lambda _: found(), f"{kind.kind} {fields}", timeout)
        return found()[0]

    def shipped(self) -> int:
        """Wait until a checkpoint is safe that has steps, which the first one has not; its step."""
        self.until(lambda _: any(each.step for each in self.since(0, TrainShipped)), "shipped")  # type: ignore[attr-defined]
        return self.since(0, TrainShipped)[-1].step  # type: ignore[attr-defined]

    def workers(self) -> list[str]:
        """VMs whose workers take part in the run now."""
        run = self.cluster.state.current_or_next_run
        return sorted(run.workers) if run else []

    def whole(self) -> None:
        """Wait until as many workers as declared take part again."""

        def reached(state: ClusterState) -> bool:
            run, spec = state.current_or_next_run, state.spec
            return run is not None and spec is not None and len(run.workers) == spec.worker_count

        self.until(reached, "all workers that are declared")

    def settled(self) -> None:
        """Wait until every VM that is there is ready, the declared number of them, and their workers take part."""

        def reached(state: ClusterState) -> bool:
            assert state.spec
            workers = {vm.name for vm in state.living if vm.role == "worker"}
            taking_part = set(state.current_or_next_run.workers) if state.current_or_next_run else set()
            whole = len(workers) == state.spec.worker_count and taking_part == workers
            return whole and all(vm.state == "ready" for vm in state.living)

        self.until(reached, "settled")

    def server(self) -> str:
        """The VM of the parameter server."""
        (name,) = [vm.name for vm in self.cluster.state.living if vm.role == "ps"]
        return name

    def ends_at_once(self, *vms: str, hours: float = 24.0) -> None:
        """See that Compute Engine itself ends every VM, these among them, so many hours after the declaration."""
        assert self.cluster.state.spec
        all_end(self.cluster.name, self.cluster.state.spec.declared_at + 3600 * hours, *vms)

    def saved_at_home(self) -> int:
        """The step of the newest checkpoint on this machine, -1 if there is none."""
        assert self.run
        names = (path.stem for path in (self.run.directory / "checkpoints").glob("model.ckpt-*.index"))
        return max((int(name.rpartition("-")[2]) for name in names), default=-1)

    def has_the_chiefs_metrics(self) -> Path:
        """See that the metrics here are what the chief wrote, no line lost or doubled; the chief's file."""
        assert self.run
        here = (self.run.directory / "metrics.jsonl").read_bytes()
        place = self.home(self.server()) / "transient" / "runs" / self.run.name / "metrics.jsonl"
        there = place.read_bytes()
        assert here
        assert there.startswith(here), "not what the chief wrote"
        lines = there.splitlines()
        assert len(lines) == len(set(lines)), "the chief's lines are doubled"
        return place

    def goes_on(self) -> None:
        """See the training make steps from now on."""
        began = time.time_ns()

        def made() -> bool:
            steps = [row["step"] for row in self._rows() if row["time"] > began]
            return bool(steps) and max(steps) - min(steps) > 3

        self.sees(made, "steps")

    def others_trained(self, lost: Collection[str], since: float, until: float) -> None:
        """See that all others made steps between two moments, at a quarter or more of the speed that they had before.

        Less would be a stall that ended with the replacement; a busy machine is slow before, too.
        """
        rest = lambda: [row for row in self._rows() if row["worker"] not in lost]  # noqa: E731
        self.sees(lambda: any(row["time"] / 1e9 > until + 2 for row in rest()), "later steps of the others")

        def speed(begin: float, end: float) -> float:
            return sum(row["steps"] for row in rest() if begin < row["time"] / 1e9 <= end) / (end - begin)

        before, meanwhile = speed(since - 15, since), speed(since, until + 2)
        assert meanwhile > before / 4, f"{meanwhile:.1f} steps/s while {lost} were away, {before:.1f} before"

    def trains(self, worker: str) -> None:
        """See a worker's own steps in the run's metrics, whose rows come once a second and a while later."""
        self.sees(lambda: any(row["worker"] == worker and row["steps"] for row in self._rows()), f"steps of {worker}")

    def sees(self, reached: Callable[[], object], what: str) -> None:
        """Wait for something that no event tells."""
        deadline = time.monotonic() + PATIENCE
        while not reached():
            assert time.monotonic() < deadline, f"no {what} within {PATIENCE:.0f} s: {_summary(self.cluster)}"
            time.sleep(0.2)

    def _rows(self) -> list[dict[str, Any]]:
        from transient_magics.journal import metrics

        assert self.run
        return metrics.read(self.run.directory / "metrics.jsonl")


def _summary(cluster: client.Cluster) -> str:
    state = cluster.state
    vms = ", ".join(f"{vm.name} {vm.state}" for vm in state.living)
    run = state.run
    log = (cluster.directory / "controller.log").read_text(encoding="utf-8").splitlines()[-15:]
    return (
        f"{state.phase}; {vms}; {run and (run.phase, run.step, sorted(run.workers), run.reason)}; {state.trouble}\n"
        + ("\n".join(line[:300] for line in log if "stamina" not in line))
    )


@contextlib.contextmanager
def started_with(patient: Patient, vm: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Python programs that are started on a VM meanwhile have this environment, too, as have those that they start.

    A PYTHONPATH goes behind the one that they have.
    """
    program = places.emulator() / "vms" / f"{patient.cluster.name}-{vm}" / "bin" / "transient-python"
    before = program.read_text(encoding="utf-8")
    path = {"PYTHONPATH": f"$PYTHONPATH:{environment['PYTHONPATH']}"} if "PYTHONPATH" in environment else {}
    lines = [f'export {name}="{value}"\n' for name, value in {**environment, **path}.items()]
    program.write_text(before.replace("exec ", "".join(lines) + "exec ", 1), encoding="utf-8")
    try:
        yield
    finally:
        if program.exists():
            program.write_text(before, encoding="utf-8")


def take_away(vm: str) -> None:
    """Delete a VM behind the controller's back, as Compute Engine may lose one that is on demand."""
    _behind_its_back(vm, "delete_unary")


def reboot(vm: str) -> None:
    """Let a VM boot again, as its start-up script does where it needs a newer kernel."""
    _behind_its_back(vm, "reset_unary")


def _behind_its_back(vm: str, method: str) -> None:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    instances = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator.running()}
    )
    scopes = instances.aggregated_list(project="emulated-project")
    found = next(each for _, scope in scopes for each in scope.instances if each.name == vm)
    zone = found.zone.rpartition("/")[2]
    getattr(instances, method)(project="emulated-project", zone=zone, instance=vm)


@pytest.fixture(scope="package")
def home() -> Iterator[Path]:
    """A home of our own for everything that the product keeps, and nothing left of it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="tm-"))
    with pytest.MonkeyPatch.context() as patch, zygotes.own_ones():
        patch.setenv("TRANSIENT_MAGICS_HOME", str(directory))
        sockets = places.sockets()
        yield directory
        running = lambda: processes(str(directory)) + processes(str(sockets))  # noqa: E731
        try:
            with contextlib.ExitStack() as deletions:  # one that fails keeps none of the others from being deleted
                for cluster in client.clusters():
                    deletions.callback(cluster.delete, PATIENCE)
            deadline = time.monotonic() + PATIENCE  # the emulator waits ten seconds for another VM
            while (left := running()) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert not left, f"left running: {left}"
            assert not list((directory / "emulator" / "vms").glob("*")), "files of VMs were left"
        finally:
            end(running())  # nothing trains on beside the tests that follow
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def training(home: Path, tiny_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """Two workers that train for ever, with a package that has to be installed on every VM, and a folder of our own.

    They keep a core busy, and so end with the module.
    """
    layers = tmp_path_factory.mktemp("modules") / "own_layers"
    (layers / "deep").mkdir(parents=True)
    (layers / "__init__.py").write_text("from .deep.sizes import SIZE\n", encoding="utf-8")
    (layers / "deep" / "sizes.py").write_text("SIZE = 64\n", encoding="utf-8")
    cluster = client.declare(client.Declaration("k80x2", name="patient", max_workers=8))
    run = client.train(
        source=f"import tiny_package\nprint('printed by the cell')\n{SMALL_CELL}",
        include=(str(layers),), pip=(str(tiny_wheel),), cluster=cluster,
        train_steps=10**7, checkpoint_steps=40, checkpoint_seconds=None, pace_seconds=PACE, check=False,
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    yield patient
    cluster.delete(PATIENCE)


@pytest.fixture
def patient(training: Patient) -> Patient:
    """The shared cluster, whole and training."""
    training.settled()
    training.goes_on()
    return training


__all__ = ["Patient", "events"]
