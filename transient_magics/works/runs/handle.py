"""The handle of a run."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...client import commands, lookup
from ...client.cluster_handle import Cluster
from ...client.commands import fetch
from ...client.display_hook import Log, displayed
from ...client.recorded_run import Metrics, RecordedRun
from ...errors import ClusterError, TrainingError
from ...journal import ClusterState, Cost, RunState, metrics
from ...journal.declared import agree_to_code, is_brought
from ...protocol import layout
from ...protocol.cluster_commands import Agree, Evaluate, Logs, Move, Save
from ...protocol.measures.step_parts import part_words
from ...protocol.vm_events import TrainEvaluated
from .stalls.handle import Stalls

if TYPE_CHECKING:
    import pandas
    from numpy import ndarray

    from ...planner.deflation import Advice
    from ...planner.forecast import Forecast

# The chief gives it 900 s and three times a tenth of the run's time.
_EVALUATION_SECONDS = 1200.0
_EVALUATION_SHARE = 0.5
_SERVER = "ps-0"
_LOG = f"Its log: run.logs({_SERVER!r})"
_OF_A_RUN = frozenset(
    {
        layout.RUN,
        layout.CELL,
        layout.MODEL,
        layout.EVENTS,
        layout.METRICS,
        layout.INCLUDE,
        layout.WHEELS,
        layout.CHECKPOINTS,
    }
)


class Run(RecordedRun):
    """A run of a cluster: the training of one model."""

    def advice(self, question: str) -> Advice:
        """What it means to give up processors, where the provider asks for them:
        `run.advice("reclaim 1")`.

        Seconds and dollars with a worker lost, with all shrunk, and with a few shrunk for as much
        ("reclaim 0.5": half of what one has), the fastest first; and what was measured when VMs of
        the cluster were shrunk or revoked. Raises DeclarationError, and PlanError where the run
        does not train, or has no more workers than that.
        """
        from ...client.planning.forecasts import advice

        return advice(self, question)

    def cost(self) -> Cost:
        """Return the cost of the run so far and its projected cost at its end, in US dollars, as of
        other work.
        """
        from ...client.planning.forecasts import projected

        found = super().cost()
        if found.over:
            return found
        return projected(found, self)

    def forecast(self, revocations: str | None = None) -> Forecast:
        """Return when the run ends and what it will have cost, with intervals, given all that
        happened.

        `revocations`: `published` lifetimes or `none`; by default as the emulator's weather is, and
        `published` on Compute Engine. Raises PlanError where it is over, or too young to tell.
        """
        from ...client.planning.forecasts import forecast

        return forecast(self, revocations)

    def agree(self, proposal: int | None = None) -> None:
        """Have the workers that are proposed for it now (`--adapt ask`), or those of the proposal
        of that number.

        Raises ClusterError where nothing is proposed, or something else by now.
        """
        known = self.state.deadline
        if known is None or known.proposed is None:
            raise ClusterError(
                f"Nothing is proposed for {self.name}", fix="Its panel shows what is."
            )
        commands.send(
            self.cluster.directory, Agree(run=self.name, proposal=proposal or known.proposed.seq)
        )

    def move(self, before: str | None = None) -> None:
        """Have the run, which waits, begin before the one called `before`; by default before all
        that wait.

        Raises ClusterError where either does not wait.
        """
        commands.send(self.cluster.directory, Move(run=self.name, before=before or ""))

    def save(self) -> None:
        """Have a checkpoint written now; training goes on. Raises ClusterError where it does not
        train.
        """
        commands.send(self.cluster.directory, Save(run=self.name))

    def history(self) -> pandas.DataFrame:
        """The metrics as a DataFrame, a row per worker and second.

        Columns: time (UTC), worker, step (global, after the row's last one), loss,
        steps_per_second, batch_size (examples; of uneven mini-batches of text tokens), staleness
        (other workers' steps while one was computed); since the worker's row before: steps, samples
        (examples), compute_seconds and wait_seconds (of all those steps); learning_rate_divisor, by
        which --lr-policy divided the rate of the row's last step; where those seconds went,
        split_input (waiting for examples), split_pull (for variables), split_compute, split_push
        (until the gradients were applied), split_barrier (for other workers), split_rest (between
        steps), which add up to compute_seconds and wait_seconds; hidden_pull and hidden_push, which
        went on beneath input and compute; split_own, the backward pass, part of compute, by which
        --batching dynamic goes; server_share, the part of its cores that the busiest parameter
        server took (0 to 1). Rows in which gradients were measured have their squared norms too
        (journal.metrics.GRADIENTS), others NaN.

        When a long run is over (32 MiB: some ten hours of four workers), all but its last hour is
        kept by the minute: steps, samples and seconds are those of the minute, the others its
        averages.
        """
        import pandas

        rows = metrics.read(self.directory / layout.METRICS)
        columns = [
            "time",
            "worker",
            "step",
            "loss",
            "steps_per_second",
            "batch_size",
            "staleness",
            "steps",
            "samples",
            "compute_seconds",
            "wait_seconds",
            "learning_rate_divisor",
            *metrics.SPLIT,
            metrics.SERVER_SHARE,
            *metrics.GRADIENTS,
        ]
        rows = [{**row, **metrics.split(row)} for row in rows]
        frame = pandas.DataFrame(
            rows, columns=[name for name in columns if name != "steps_per_second"]
        )
        frame["time"] = pandas.to_datetime(frame["time"], utc=True)
        frame["steps_per_second"] = pandas.array(metrics.speeds(rows), dtype="float64")
        return frame.loc[:, columns]

    def evaluations(self) -> pandas.DataFrame:
        """All evaluations as a DataFrame, a row for each: step, time (UTC), and a column for each
        metric.

        Where the dev split was not taken as a whole, the column `part` says how much of it. Steps
        that were made twice, because a parameter server's VM was lost, may be there twice.
        """
        import pandas

        found = [
            event
            for event in self.cluster.events()
            if isinstance(event, TrainEvaluated) and event.run == self.name
        ]
        rows = [
            {"step": each.step, "time": each.time, **dict.fromkeys(each.undefined), **each.metrics}
            for each in found
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        frame = pandas.DataFrame(rows, columns=names or ["step", "time"])
        parts = [part_words(each.examples, each.complete, each.of, each.endless) for each in found]
        if any(parts):
            frame.insert(2, "part", parts, allow_duplicates=True)
        frame["time"] = pandas.to_datetime(frame["time"], utc=True)
        return frame

    def tensorboard(self, folder: str | Path | None = None) -> Path:
        """Write the run's metrics and events for TensorBoard into `folder` (default: in the run's
        own), and return it.

        Called again it appends what is new: `%tensorboard --logdir FOLDER` follows. One run has one
        folder.
        """
        from ...client.results.tensorboard import write

        return write(self, Path(folder).expanduser() if folder else self.directory / "tensorboard")

    def profile(self, file: str | Path, worker: str = "") -> Path:
        """Have one step of a worker traced, all its operations and those of the parameter servers,
        and write it.

        `file`: Chrome's trace format, for Perfetto and chrome://tracing (gzipped where it ends with
        `.gz`), or, where it ends with `.xplane.pb`, what TensorBoard's profiler reads;
        `run.tensorboard()` takes it along, too. `worker`: by default the first that trains. A
        traced step is several times slower than others, and is counted in no speed and by no
        mini-batch. So there is one at most every five minutes, and more seldom where it was
        expensive. Raises TrainingError where it is too early for another, or none came,
        ClusterError where nobody trains.
        """
        from ...client.results.profile import profile

        return profile(self, Path(file).expanduser(), worker)

    def evaluate(self, now: bool = False) -> Metrics:
        """The dev split's metrics as last evaluated; `now`: of the model as it is, while training
        goes on.

        Where they are of a part of the split, they say so when they are printed, and in `part`.
        Raises TrainingError where it has not been evaluated yet, or could not be (it says why);
        with `now`, ClusterError where it does not train.
        """
        if now:
            before = self.state.evaluations[-1:], self.state.unevaluated
            commands.send(self.cluster.directory, Evaluate(run=self.name))

            def done(state: ClusterState) -> bool:
                run = state.of(RunState).get(self.name)
                return run is None or run.over or (run.evaluations[-1:], run.unevaluated) != before

            taken = time.time() - (self.state.started_at or time.time())
            if (
                self.cluster.follow(done, max(_EVALUATION_SECONDS, _EVALUATION_SHARE * taken))
                is None
            ):
                raise TrainingError(f"{self.name} could not be evaluated", fix=_LOG)
        state = self.state
        found = Metrics(state.metrics, part_words(*state.evaluated))
        failed = state.unevaluated
        if failed and (now or not found):
            raise TrainingError(
                f"{self.name} could not be evaluated at step {failed[1]:,}: {failed[2]}", fix=_LOG
            )
        if not found:
            if self.state.over:
                when = "was not evaluated"
            else:
                when = "has not been evaluated yet"
            raise TrainingError(f"{self.name} {when}", where=self.cluster.name)
        return found

    def predict(
        self,
        inputs: Any,
        data_dir: str | Path | None = None,
        trust: bool = False,
        *,
        checkpoint: str | int = "last",
    ) -> ndarray | dict[str, ndarray]:
        """What the model of a checkpoint answers to `inputs`, on this machine; the cluster may be
        gone.

        `inputs`: an array or list of examples, or a dict of them by feature name, as the problem's
        generator makes them (an image's pixels, a text's token numbers; or texts); the problem's
        own preprocessing is applied. A classifier gives probabilities of shape (examples, classes).
        Every other model needs its targets too (`{"inputs": ..., "targets": ...}`) and gives its
        logits for them; `decode` gives texts. `data_dir`: where the problem's vocabulary is, where
        it is not the one beside the checkpoint. A model that the cell defines takes features as its
        input_fn gives them, and gives its predictions. Starting TensorFlow takes some seconds, so
        ask for many at once. `checkpoint`: `"last"`, `"best"` (of a run with --keep-best), or the
        step of one that is kept. `trust` agrees to run the code of a run that another machine
        declared. Raises TrainingError, CellError or AgreementError.
        """
        from ...client.results.models import predict

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return predict(self, inputs, data_dir, checkpoint)

    def decode(
        self,
        texts: Any,
        data_dir: str | Path | None = None,
        *,
        beam_size: int = 1,
        alpha: float = 0.6,
        average: int = 1,
        checkpoint: str | int = "last",
        trust: bool = False,
    ) -> list[str]:
        """The texts that a Tensor2Tensor model answers `texts` with, on this machine.

        `texts`: a list of them (or of rows of token numbers), or a dict of such lists by feature
        name. The problem's own encoders turn them into token numbers and back. A model with inputs
        answers them, a language model goes on from them, a classifier names their classes.
        `data_dir`: where the problem's vocabulary is, where it is not the one beside the
        checkpoint.

        Each token is the likeliest one, unless `beam_size` is more than 1: then the best of so many
        beginnings is written, by Tensor2Tensor's beam search, which prefers longer texts the larger
        `alpha` is (its t2t_decoder takes 4 and 0.6, and so many times the time). `average`: use the
        mean of the last so many checkpoints, as t2t_avg_all makes it; the run must have kept them
        (`--keep`). `checkpoint` and `trust`: as of `predict`. Raises TrainingError, CellError or
        AgreementError.
        """
        from ...client.results.models import decode

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return decode(self, texts, data_dir, checkpoint, beam_size, alpha, average)

    def export(
        self,
        folder: str | Path,
        data_dir: str | Path | None = None,
        trust: bool = False,
        *,
        checkpoint: str | int = "last",
    ) -> Path:
        """Write the model of a checkpoint as a SavedModel into `folder`, which must be new or
        empty.

        Its signature `serving_default` takes and gives what `predict` does, with the preprocessing
        inside; plain `tf.saved_model.load` and TensorFlow Serving read it. `checkpoint` and
        `trust`: as of `predict`. Raises TrainingError, CellError or AgreementError.
        """
        from ...client.results.models import export

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return export(self, Path(folder).expanduser(), data_dir, checkpoint)

    def model(
        self, file: str | Path | None = None, *, checkpoint: str | int = "last", trust: bool = False
    ) -> Any:
        """The compiled Keras model of the run's cell, with the weights of a checkpoint, in this
        process.

        It can be evaluated, trained on and looked into like any other; its optimizer begins anew.
        `file`, which must be new and end in `.keras`, is written too. This brings TensorFlow into
        this process, which nothing else does, and says so: the cell runs here. Of the checkpoint
        come arrays alone, which must be those of the model's weights. `checkpoint` and `trust`: as
        of `predict`. Raises TrainingError, also for a model of Tensor2Tensor's and for a model_fn,
        CellError or AgreementError.
        """
        from ...client.results.keras_model import keras_model

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return keras_model(self, Path(file).expanduser() if file else None, checkpoint)

    def logs(self, worker: str, lines: int = 200) -> Log:
        """The last lines that `worker` (a VM's name) wrote in this run."""
        return Log(
            commands.send(self.cluster.directory, Logs(vm=worker, run=self.name, lines=lines))[
                "text"
            ]
        )

    def fetch(self, folder: str | Path) -> Path:
        """Bring checkpoints, metrics, events, the cell and the declaration into `folder` (made if
        needed).

        From the bucket, where the run has its place in one; the cluster may be gone. Raises
        CloudError, and TrainingError where they cannot be written.
        """
        target = Path(folder).expanduser()
        try:
            self._copy_to(target)
        except (OSError, shutil.Error) as error:
            why = getattr(error, "strerror", None) or error
            raise TrainingError(
                f"The results of {self.name} cannot be written: {why}", where=str(target)
            ) from error
        if place := self.place:
            fetch(*place, target, results=self.recorded.over)
        return target

    def _copy_to(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        brought = is_brought(self.cluster.directory, self.name)
        for path in self.directory.iterdir():
            if path.name == layout.HOME or (brought and path.name not in _OF_A_RUN):
                continue  # a VM named it, and a folder may hold names that programs heed
            if path.is_dir():
                shutil.copytree(path, target / path.name, dirs_exist_ok=True)
            elif path.name == layout.RUN:
                values = {
                    key: value
                    for key, value in json.loads(path.read_text(encoding="utf-8")).items()
                    if key != "token"
                }
                (target / path.name).write_text(json.dumps(values, indent=1), encoding="utf-8")
            else:
                shutil.copy2(path, target / path.name)
        shutil.copy2(self.cluster.directory / layout.JOURNAL, target / layout.JOURNAL)

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return displayed(self)


def handle(name: str, cluster: Cluster) -> Run | Stalls:
    """Return the handle of a run, or of the measurement of stalls that it is."""
    known = cluster.state.of(RunState).get(name)
    if known and known.spec.stalls:
        return Stalls(name, cluster)
    return Run(name, cluster)


def run(name: str | None = None, cluster: Cluster | str | None = None) -> Run:
    """Return the run called `name`, of `cluster` or of the last one that has it; without a name the
    latest run.

    Raises
    ------
    UnknownWorkError
        There is no such run.
    ClusterError
        No cluster is named, and several that are not deleted have such work.
    """
    found = lookup.find_work("run", name, cluster)
    return Run(found.name, found.cluster)
