"""Handles: a cluster and a run, as one holds them in a cell or a script.

A handle owns nothing. It reads the journal for what is, and sends commands to the controller for what should be, so any
number of them, in any number of processes, say the same. How a handle is displayed is set by `set_display`.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .. import places
from ..errors import ClusterError, DeclarationError, TrainingError, TransientError
from ..journal import (
    Bill,
    ClusterState,
    Event,
    RunState,
    bill,
    cost_between,
    events,
    kept,
    metrics,
    now,
    read,
    replay,
    unknown_run,
)
from ..journal.declared import ATTACHED, agree_to_code, agreed, declared_run, is_brought, run_folder, was_elsewhere
from ..protocol.names import is_path
from . import commands
from .follower import follower

if TYPE_CHECKING:
    import pandas
    from numpy import ndarray

    from ..planner.forecast import Forecast
    from .weather import Weather

_EVALUATION_SECONDS = 960.0  # the chief gives it 900
_SERVER = "ps-0"
_LOG = f"Its log: run.logs({_SERVER!r})"
_OF_A_RUN = frozenset(
    ("run.json", "cell.py", "model.json", "events.jsonl", "metrics.jsonl", "include", "wheels", "checkpoints")
)
_DISPLAY: list[Callable[[Any], Any]] = []


def set_display(function: Callable[[Any], Any]) -> None:
    """Have `function(handle)` show handles in IPython (it returns a MIME bundle)."""
    _DISPLAY[:] = [function]


class Log(str):
    """What a VM wrote, which a notebook shows line by line."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


@dataclass(frozen=True)
class Result:
    """How a run ended: `seconds` from its start to its end, and the `cost` of its cluster from its declaration on, in
    US dollars."""

    step: int
    loss: float | None
    seconds: float
    cost: float
    checkpoint: Path | str | None
    """On this machine, or as `gs://...` in the cluster's bucket: what TensorFlow calls its path."""
    metrics: dict[str, float]


class Cluster:
    """One cluster, by its name. As a context manager it is deleted at the end of the block, whatever happened there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the cluster and wait until it is gone. Raises as `delete` does."""
        self.delete()

    @property
    def directory(self) -> Path:
        """The folder with the cluster's journal, runs and logs."""
        return places.cluster(self.name)

    @property
    def followed(self) -> str:
        """Of a cluster that another machine declared: what this machine follows, in a sentence; else nothing."""
        try:
            return (self.directory / ATTACHED).read_text()
        except FileNotFoundError:
            return ""

    @property
    def state(self) -> ClusterState:
        """What the journal says now; what was declared, until its first line is written."""
        state = kept(self.directory / "journal.jsonl").read()
        return state if state.seq else replay(self._declared())

    def _declared(self) -> list[Event]:
        try:
            spec = agreed(self.directory)
        except DeclarationError:
            return []
        return [events.ClusterDeclared(spec=spec.to_dict(), time=int(1e9 * spec.declared_at))]

    def events(self, kind: str | None = None) -> list[Event]:
        """All events, or those of one kind (`vm.revoked`) or family (`vm`)."""
        every = read(self.directory / "journal.jsonl")
        return [event for event in every if kind is None or event.kind == kind or event.kind.startswith(f"{kind}.")]

    def wait(self, timeout: float | None = None, until: str = "ready") -> ClusterState:
        """Block until the cluster is `ready` or `deleted`. Raises ClusterError when that cannot be any more.

        Interrupting the wait changes nothing: the cluster goes on.
        """

        def reached(state: ClusterState) -> bool:
            if until == "ready" and state.phase in ("deleting", "deleted"):
                what = "is deleted" if state.over else "is being deleted"
                raise ClusterError(f"{self.name} {what}: {state.reason or 'asked by the user'}")
            return state.phase == until or state.over

        state = self.follow(reached, timeout)
        if state is None:
            now = self.state
            waiting = ", ".join(f"{vm.name} {vm.state}" for vm in now.living if vm.state != "ready")
            what = f"{self.name} is not {until} after {timeout:.0f} s"
            raise ClusterError(f"{what} ({waiting})" if waiting else what, fix=now.trouble)
        return state

    def follow(self, reached: Callable[[ClusterState], bool], timeout: float | None = None) -> ClusterState | None:
        """Block until `reached(state)`; None after `timeout` seconds. What `reached` raises is raised here."""
        states: queue.SimpleQueue[ClusterState] = queue.SimpleQueue()
        end = follower().subscribe(self.name, lambda state, _: states.put(state))
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                try:
                    state = states.get(timeout=min(left or 0.5, 0.5))  # wakes often, so that Ctrl-C is heard
                except queue.Empty:
                    continue
                if reached(state):
                    return state
        finally:
            end()

    def revoke(self, worker: str, seconds: float = 0.0) -> None:
        """Have Compute Engine take the VM of `worker` back (simulateMaintenanceEvent), after `seconds`."""
        commands.send(self.directory, {"do": "revoke", "vm": worker, "seconds": seconds})

    def weather(self, **settings: Any) -> Weather:
        """What the emulator that the cluster lives in does to VMs; sets what is given first.

        Settings are called as the options of `%transient_weather`: `revocations="published"`, `hours_per_minute=60`,
        `stockout=["us-west1-b:k80"]`, ...; None is as in fair weather, `reset=True` makes all of it fair. Raises
        DeclarationError, and ClusterError for a cluster in a project, where the weather is Google's.
        """
        from .weather import weather

        return weather(self, settings)

    def resize(self, spec: str) -> None:
        """Have the workers of `spec` instead. Raises DeclarationError."""
        from .clusters import resized

        history = self.events()
        current = agreed(self.directory, history) if was_elsewhere(history) else self.state.spec
        if current is None:
            raise ClusterError(f"{self.name} is not declared yet")
        commands.send(self.directory, {"do": "resize", "spec": resized(current, spec).to_dict()})

    def logs(self, worker: str, lines: int = 200) -> Log:
        """The last lines that `worker` (a VM's name) wrote in the latest run."""
        return Log(commands.send(self.directory, {"do": "logs", "vm": worker, "lines": lines})["text"])

    def delete(self, timeout: float | None = 300.0, *, by_name: bool = False) -> None:
        """End every VM and wait until Compute Engine lists none. Results stay. Deleting twice is no mistake.

        What was declared before clusters had an id is known in its project by names only: ClusterError says which VMs
        would go, and `by_name` deletes them.
        """
        state = self.state
        if state.over:
            return
        if state.spec and not state.spec.id and state.spec.project and not by_name:
            names = ", ".join(f"{self.name}-{vm.name} in {vm.zone}" for vm in state.living) or "none that is known here"
            what = (
                f"{self.name} was declared by an earlier version: its VMs are known by name and owner alone ({names})"
            )
            fix = (
                f"If they are yours: %transient_cluster delete {self.name} --by-name (in Python delete(by_name=True))."
            )
            raise ClusterError(what, where=f"project {state.spec.project}", fix=fix)
        try:
            commands.send(self.directory, {"do": "delete", "reason": "asked by the user"})
        except ClusterError:
            if not self.state.over:  # somebody else's deletion may have come first
                raise
        if timeout:
            self.wait(timeout, until="deleted")

    def cost(self) -> Bill:
        """What it has cost so far, costs per hour, and would have cost on demand."""
        return bill(self.state, now())

    def run(self, name: str | None = None) -> Run:
        """The run called `name`, else the latest one. Raises ClusterError where there is none."""
        runs = self.state.runs
        chosen = name or next(reversed(runs), None)
        if chosen is None or (name and name not in runs and not (self.directory / "runs" / name / "run.json").exists()):
            raise ClusterError(f"{self.name} has no run{f' {name}' if name else ' yet'}")
        return Run(chosen, self)

    def __repr__(self) -> str:
        return f"<Cluster {self.name}: {self.state.phase}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return _DISPLAY[0](self) if _DISPLAY else {"text/plain": repr(self)}


class Run:
    """One run of one cluster."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster

    @property
    def directory(self) -> Path:
        """The folder with the run's cell, metrics and checkpoints."""
        return run_folder(self.cluster.directory, self.name)

    @property
    def state(self) -> RunState:
        """What the journal says now."""
        found = self.cluster.state.runs.get(self.name)
        return found or unknown_run(self.name)

    @property
    def place(self) -> tuple[str, str | None] | None:
        """Where its checkpoints are kept (`gs://bucket/path`) and in which project, as this machine knows it."""
        try:
            store = declared_run(self.cluster.directory, self.state).spec.store
            return (store, agreed(self.cluster.directory).project) if store else None
        except TransientError:  # nothing of it is here yet
            return None

    def reach(self, step: int, timeout: float | None = None) -> int:
        """Block until the run has made `step` global steps (or is over); returns the step as last reported.

        Raises TrainingError after `timeout` seconds, or where the run failed before.
        """

        def there(state: ClusterState) -> bool:
            run = state.runs.get(self.name)
            return state.over or (run is not None and (run.over or run.step >= step))

        state = self.cluster.follow(there, timeout)
        if state is None:
            raise TrainingError(
                f"{self.name} has not reached step {step} after {timeout:.0f} s", where=self.cluster.name
            )
        run = state.runs.get(self.name)
        if run is None or run.phase == "failed" or run.step < step:
            reason = run.reason if run and run.reason else f"{self.name} ended before step {step}"
            raise TrainingError(reason.rstrip("."), where=self.cluster.name)
        return run.step

    def wait(self, timeout: float | None = None) -> Result:
        """Block until the run is over. Raises TrainingError when it failed or `timeout` seconds have passed.

        Interrupting the wait changes nothing: the run goes on.
        """

        def over(state: ClusterState) -> bool:
            run = state.runs.get(self.name)
            return state.over or (run is not None and run.over)

        state = self.cluster.follow(over, timeout)
        if state is None:
            raise TrainingError(f"{self.name} is not over after {timeout:.0f} s", where=self.cluster.name)
        return self._result(state)

    def __await__(self) -> Generator[Any, None, Result]:
        """`await run`: like `wait`, while the notebook's loop goes on."""
        return asyncio.to_thread(self.wait).__await__()

    def forecast(self, revocations: str | None = None) -> Forecast:
        """When the run ends and what its cluster will have cost by then, with intervals, given all that happened.

        `revocations`: `published` lifetimes or `none`; by default as the emulator's weather is, and `published` on
        Compute Engine. Raises PlanError where it is over, or too young to tell.
        """
        from .planning import forecast

        return forecast(self, revocations)

    def stop(self) -> None:
        """End the run where it stands, with a last checkpoint."""
        commands.send(self.cluster.directory, {"do": "stop", "run": self.name})

    def save(self) -> None:
        """Have a checkpoint written now; training goes on. Raises ClusterError where it does not train."""
        commands.send(self.cluster.directory, {"do": "save", "run": self.name})

    def history(self) -> pandas.DataFrame:
        """The metrics as a DataFrame, a row per worker and second.

        Columns: time (UTC), worker, step (global, after the row's last one), loss, steps_per_second, batch_size
        (examples; of uneven mini-batches of text tokens), staleness (other workers' steps while one was computed);
        since the worker's row before: steps, samples (examples), compute_seconds and wait_seconds (of all those steps);
        learning_rate_divisor, by which --lr-policy divided the rate of the row's last step. Rows in which gradients
        were measured have their squared norms too (journal.metrics.GRADIENTS), others NaN.

        When a long run is over (32 MiB: some ten hours of four workers), all but its last hour is kept by the minute:
        steps, samples and seconds are those of the minute, the others its averages.
        """
        import pandas

        rows = metrics.read(self.directory / "metrics.jsonl")
        columns = [
            "time", "worker", "step", "loss", "steps_per_second", "batch_size", "staleness", "steps", "samples",
            "compute_seconds", "wait_seconds", "learning_rate_divisor", *metrics.GRADIENTS,
        ]  # fmt: skip
        frame = pandas.DataFrame(rows, columns=[name for name in columns if name != "steps_per_second"])
        frame["time"] = pandas.to_datetime(frame["time"], utc=True)
        frame["steps_per_second"] = pandas.array(metrics.speeds(rows), dtype="float64")
        return frame.loc[:, columns]

    def tensorboard(self, folder: str | Path | None = None) -> Path:
        """Write the run's metrics and events for TensorBoard into `folder` (default: in the run's own), and return it.

        Called again it appends what is new: `%tensorboard --logdir FOLDER` follows. One run has one folder.
        """
        from .tensorboard import write

        return write(self, Path(folder).expanduser() if folder else self.directory / "tensorboard")

    def evaluate(self, now: bool = False) -> dict[str, float]:
        """The dev split's metrics as last evaluated; `now`: of the model as it is, while training goes on.

        Raises TrainingError where it has not been evaluated yet, or could not be (it says why); with `now`,
        ClusterError where it does not train.
        """
        if now:
            before = self.state.evaluations[-1:], self.state.unevaluated
            commands.send(self.cluster.directory, {"do": "evaluate", "run": self.name})

            def done(state: ClusterState) -> bool:
                run = state.runs.get(self.name)
                return run is None or run.over or (run.evaluations[-1:], run.unevaluated) != before

            if self.cluster.follow(done, _EVALUATION_SECONDS) is None:
                raise TrainingError(f"{self.name} could not be evaluated", fix=_LOG)
        found, failed = dict(self.state.metrics), self.state.unevaluated
        if failed and (now or not found):
            raise TrainingError(f"{self.name} could not be evaluated at step {failed[1]:,}: {failed[2]}", fix=_LOG)
        if not found:
            when = "was not evaluated" if self.state.over else "has not been evaluated yet"
            raise TrainingError(f"{self.name} {when}", where=self.cluster.name)
        return found

    def predict(
        self, inputs: Any, data_dir: str | Path | None = None, trust: bool = False
    ) -> ndarray | dict[str, ndarray]:
        """What the model of the last checkpoint answers to `inputs`, on this machine; the cluster may be gone.

        `inputs`: an array or list of examples, or a dict of them by feature name, as the problem's generator makes
        them (an image's pixels, a text's token numbers; or texts); the problem's own preprocessing is applied. A
        classifier gives probabilities of shape (examples, classes). Every other model needs its targets too
        (`{"inputs": ..., "targets": ...}`) and gives its logits for them; `decode` gives texts. `data_dir`: where the
        problem's vocabulary is, where it is not the one beside the checkpoint. A model that the cell defines takes
        features as its input_fn gives them, and gives its predictions. Starting TensorFlow takes some seconds, so ask
        for many at once. `trust` agrees to run the code of a run that another machine declared. Raises TrainingError,
        CellError or AgreementError.
        """
        from .models import predict

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return predict(self, inputs, data_dir)

    def decode(
        self,
        texts: Any,
        data_dir: str | Path | None = None,
        *,
        beam_size: int = 1,
        alpha: float = 0.6,
        average: int = 1,
        trust: bool = False,
    ) -> list[str]:
        """The texts that a Tensor2Tensor model answers `texts` with, on this machine.

        `texts`: a list of them (or of rows of token numbers), or a dict of such lists by feature name. The problem's
        own encoders turn them into token numbers and back. A model with inputs answers them, a language model goes on
        from them, a classifier names their classes. `data_dir`: where the problem's vocabulary is, where it is
        not the one beside the checkpoint.

        Each token is the likeliest one, unless `beam_size` is more than 1: then the best of so many beginnings is
        written, by Tensor2Tensor's beam search, which prefers longer texts the larger `alpha` is (its t2t_decoder takes
        4 and 0.6, and so many times the time). `average`: use the mean of the last so many checkpoints, as
        t2t_avg_all makes it; the run must have kept them (`--keep`). Raises TrainingError or CellError.
        """
        from .models import decode

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return decode(self, texts, data_dir, beam_size, alpha, average)

    def export(self, folder: str | Path, data_dir: str | Path | None = None, trust: bool = False) -> Path:
        """Write the model of the last checkpoint as a SavedModel into `folder`, which must be new or empty.

        Its signature `serving_default` takes and gives what `predict` does, with the preprocessing inside; plain
        `tf.saved_model.load` and TensorFlow Serving read it. Raises TrainingError or CellError.
        """
        from .models import export

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return export(self, Path(folder).expanduser(), data_dir)

    def logs(self, worker: str, lines: int = 200) -> Log:
        """The last lines that `worker` (a VM's name) wrote in this run."""
        command = {"do": "logs", "vm": worker, "run": self.name, "lines": lines}
        return Log(commands.send(self.cluster.directory, command)["text"])

    def fetch(self, folder: str | Path) -> Path:
        """Bring checkpoints, metrics, events, the cell and the declaration into `folder` (made if needed).

        From the bucket, where the run has its place in one; the cluster may be gone. Raises CloudError, and
        TrainingError where they cannot be written.
        """
        target = Path(folder).expanduser()
        try:
            self._copy_to(target)
        except (OSError, shutil.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise TrainingError(f"The results of {self.name} cannot be written: {why}", where=str(target)) from error
        if place := self.place:
            from .clusters import fetch

            fetch(*place, target, results=self.state.over)
        return target

    def _copy_to(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        brought = is_brought(self.cluster.directory, self.name)
        for path in self.directory.iterdir():
            if brought and path.name not in _OF_A_RUN:
                continue  # a VM named it, and a folder may hold names that programs heed
            if path.is_dir():
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)
            elif path.name == "run.json":
                values = {key: value for key, value in json.loads(path.read_text()).items() if key != "token"}
                (target / path.name).write_text(json.dumps(values, indent=1))
            else:
                shutil.copy2(path, target / path.name)
        shutil.copy2(self.cluster.directory / "journal.jsonl", target / "journal.jsonl")

    def _result(self, state: ClusterState) -> Result:
        run = state.runs.get(self.name)
        if run is None or not run.over:
            raise TrainingError(f"{self.cluster.name} was deleted before {self.name} began")
        if run.phase == "failed":
            raise TrainingError(run.reason.rstrip("."), where=self.name)
        return Result(
            step=run.step,
            loss=run.loss,
            seconds=max(0.0, run.finished_at - run.started_at) if run.started_at else 0.0,
            cost=cost_between(state, run.declared_at, run.finished_at),
            checkpoint=self._checkpoint(run),
            metrics=dict(run.metrics),
        )

    def _checkpoint(self, run: RunState) -> Path | str | None:
        here = self.directory / run.checkpoint if is_path(run.checkpoint) else None
        place = self.place
        in_place = place is not None and run.shipped.startswith(f"{place[0]}/")  # where it is, the chief tells
        if in_place and ((run.shipped_step or 0) >= (run.checkpoint_step or 0) or not _is_here(here)):
            return run.shipped
        return here

    def __repr__(self) -> str:
        run = self.state
        return f"<Run {self.name} on {self.cluster.name}: {run.phase}, step {run.step} of {run.train_steps}>"

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return _DISPLAY[0](self) if _DISPLAY else {"text/plain": repr(self)}


def _is_here(checkpoint: Path | None) -> bool:
    return checkpoint is not None and checkpoint.with_name(f"{checkpoint.name}.index").exists()
