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
from ...errors import ClusterError, TrainingError, reason_of
from ...journal import ClusterState, Cost, RunState, metrics
from ...journal.declared import agree_to_code, is_brought
from ...protocol import layout
from ...protocol.cluster_commands import Agree, Evaluate, Logs, Move, Save
from ...protocol.step_parts import part_words
from ...protocol.vm_events import TrainEpoch, TrainEvaluated, TrainStarted
from ...runtime.files.archive import unpack
from .fit_history import FitHistory
from .stalls.handle import Stalls

if TYPE_CHECKING:
    import pandas
    from numpy import ndarray

    from ...planner.deflation import Advice
    from ...planner.forecast import Forecast

# The chief's own limit is 900 s and three times a tenth of the duration of the run.
_EVALUATION_SECONDS = 1200.0
_EVALUATION_SHARE = 0.5
_SERVER = "ps-0"
_LOG = f"See its log: run.logs({_SERVER!r})"
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
    """A run of a cluster: the training of one model.

    A handle stores nothing: it reads the cluster's journal and sends commands to its controller.

    Examples
    --------
    >>> run = tm.run("run-1")
    >>> run.wait()
    >>> run.evaluate()["accuracy"]
    >>> run.export("exported")
    """

    def advice(self, question: str) -> Advice:
        """Return the cost of giving up processors that the provider reclaims.

        The advice compares a lost worker, all workers shrunk, and a few workers shrunk, the fastest
        first. It also contains measurements from when VMs of the cluster were shrunk or revoked.

        Parameters
        ----------
        question : str
            The provider's request, such as `"reclaim 1"` for one worker, or `"reclaim 0.5"` for
            half of a worker.

        Returns
        -------
        Advice
            Seconds and US dollars of each choice.

        Raises
        ------
        DeclarationError
            The question is invalid.
        PlanError
            The run is not training, or has too few workers.

        Examples
        --------
        >>> print(tm.run("run-1").advice("reclaim 1"))
        """
        from ...client.planning.forecasts import advice

        return advice(self, question)

    def cost(self) -> Cost:
        """Return the cost of the run so far and its projected cost at its end.

        Returns
        -------
        Cost
            US dollars: `total` so far, and the projection while the run trains.
        """
        from ...client.planning.forecasts import projected

        found = super().cost()
        if found.over:
            return found
        return projected(found, self)

    def forecast(self, revocations: str | None = None) -> Forecast:
        """Return the expected end and the expected cost of the run, with intervals.

        The forecast uses everything that has happened so far.

        Parameters
        ----------
        revocations : {"published", "none"}, optional
            The lifetimes of VMs to expect (default: those of the emulator's weather; `published` on
            Compute Engine).

        Returns
        -------
        Forecast
            The end of the run and its cost in US dollars, with intervals of 90 %.

        Raises
        ------
        PlanError
            The run is over, or has not trained long enough.
        """
        from ...client.planning.forecasts import forecast

        return forecast(self, revocations)

    def agree(self, proposal: int | None = None) -> None:
        """Agree to the workers that are proposed for the run (`--adapt ask`).

        Parameters
        ----------
        proposal : int, optional
            The number of the proposal (default: the present one).

        Raises
        ------
        ClusterError
            Nothing is proposed, or another proposal has replaced it.
        """
        deadline = self.state.deadline
        if deadline is None or deadline.proposed is None:
            raise ClusterError(
                f"{self.name} has no proposal to agree to", fix="Its panel shows proposals."
            )
        commands.send(
            self.cluster.directory, Agree(run=self.name, proposal=proposal or deadline.proposed.seq)
        )

    def move(self, before: str | None = None) -> None:
        """Let a waiting run begin before another waiting run.

        Parameters
        ----------
        before : str, optional
            The name of the other run (default: the first one that waits).

        Raises
        ------
        ClusterError
            One of the two does not wait.
        """
        commands.send(self.cluster.directory, Move(run=self.name, before=before or ""))

    def save(self) -> None:
        """Write a checkpoint now, while training continues.

        Raises
        ------
        ClusterError
            The run does not train.
        """
        commands.send(self.cluster.directory, Save(run=self.name))

    def history(self) -> pandas.DataFrame:
        """Return the metrics as a DataFrame with a row per worker and second.

        When a run of some ten hours with four workers (32 MiB of metrics) is over, all but its last
        hour is kept by the minute: steps, samples and seconds are sums of the minute, all other
        columns its means.

        Returns
        -------
        pandas.DataFrame
            These columns; unknown figures are NaN.

            time
                UTC.
            worker
                The name of its VM.
            step
                The global step after the row's last step.
            loss
                The training loss.
            steps_per_second
                The speed of the worker.
            batch_size
                Examples; tokens for uneven mini-batches of text.
            staleness
                Steps of other workers while one step was computed.
            steps, samples
                Steps and examples since the worker's row before.
            compute_seconds, wait_seconds
                The seconds of all these steps.
            learning_rate_divisor
                The number by which --lr-policy divided the rate of the row's last step.
            split_input, split_pull, split_compute, split_push, split_barrier, split_rest
                Seconds of waiting for examples, waiting for variables, computing, waiting until
                gradients were applied, waiting for other workers, and between steps. Their sum is
                compute_seconds and wait_seconds.
            hidden_pull, hidden_push
                Seconds of transfers that overlapped with input and computing.
            split_own
                Seconds of the backward pass, a part of split_compute, which --batching dynamic
                uses.
            server_share
                The share of its cores that the busiest parameter server used, 0 to 1.
            gradient columns (`journal.metrics.GRADIENTS`)
                Squared norms, in rows in which gradients were measured.
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
        """Return all evaluations as a DataFrame with a row for each.

        Steps that were repeated because a parameter server was lost can have two rows.

        Returns
        -------
        pandas.DataFrame
            The columns step, time (UTC), and one for each metric. If an evaluation used only a part
            of the dev split, the column `part` describes it.
        """
        import pandas

        found = [
            event
            for event in self.cluster.events()
            if isinstance(event, TrainEvaluated) and event.run == self.name
        ]
        rows = [
            {
                "step": event.step,
                "time": event.time,
                **dict.fromkeys(event.undefined),
                **event.metrics,
            }
            for event in found
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        frame = pandas.DataFrame(rows, columns=names or ["step", "time"])
        parts = [
            part_words(event.examples, event.complete, event.of, event.endless) for event in found
        ]
        if any(parts):
            frame.insert(2, "part", parts, allow_duplicates=True)
        frame["time"] = pandas.to_datetime(frame["time"], utc=True)
        return frame

    def epochs(self) -> pandas.DataFrame:
        """Return the metrics of the cell's `model.fit` as a DataFrame with a row for each epoch.

        Training metrics are those of all workers, as Keras computes them over an epoch.

        Returns
        -------
        pandas.DataFrame
            The columns epoch (as Keras counts, from 0), step, time (UTC), and one for each metric:
            those of validation data begin with `val_`.

        Examples
        --------
        >>> tm.run("run-1").epochs().plot("epoch", ["loss", "val_loss"])
        """
        import pandas

        found = self._epochs()
        rows = [
            {"epoch": event.epoch, "step": event.step, "time": event.time, **event.logs}
            for event in found
        ]
        names = list(dict.fromkeys(name for row in rows for name in row))
        frame = pandas.DataFrame(rows, columns=names or ["epoch", "step", "time"])
        frame["time"] = pandas.to_datetime(frame["time"], utc=True)
        return frame

    def fit_history(self) -> FitHistory:
        """Return the metrics by epoch in the form that the last `model.fit` returns.

        `%%train` binds it to the name to which the cell binds the result of `model.fit`.

        Returns
        -------
        FitHistory
            `history`, `epoch` and `params`, as of `keras.callbacks.History`. They wait for the end
            of the run.
        """

        def params() -> dict[str, int]:
            spec = self.state.spec
            epochs = -(-spec.train_steps // max(spec.epoch_steps, 1))
            return {"epochs": spec.first_epoch + epochs, "steps": spec.epoch_steps}

        return FitHistory(self.name, self.wait, self._last_epochs, params)

    def output(self) -> str:
        """Return what the callbacks of `model.fit` have printed so far.

        Returns
        -------
        str
            The last 2,000 characters of each epoch.
        """
        return "".join(event.output for event in self._epochs())

    def files(self) -> Path:
        """Return a folder with the files that the callbacks of `model.fit` have written.

        They are here at the end of the run: the files that callbacks write by relative names, such
        as `CSVLogger("log.csv")`, at most 256 MiB.

        Returns
        -------
        Path
            The folder `files` in the run's own folder.

        Raises
        ------
        TrainingError
            No files have arrived.
        """
        target = self.directory / layout.FILES
        archive = self.directory / layout.FILES_ARCHIVE
        if target.exists():
            return target
        try:
            unpack(archive, target)
        except FileNotFoundError:
            raise TrainingError(
                f"The callbacks of {self.name} have no files here", fix="They arrive at its end."
            ) from None
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The files of callbacks cannot be unpacked: {reason_of(error)}", where=str(archive)
            ) from error
        return target

    def _last_epochs(self) -> list[TrainEpoch]:
        """Return the epochs of the cell's last call of `fit`."""
        started = [
            event
            for event in self.cluster.events()
            if isinstance(event, TrainStarted) and event.run == self.name
        ]
        last = max((event.phase for event in started), default=0)
        begin = min((event.step for event in started if event.phase == last), default=0)
        return [event for event in self._epochs() if event.step > begin]

    def _epochs(self) -> list[TrainEpoch]:
        return [
            event
            for event in self.cluster.events()
            if isinstance(event, TrainEpoch) and event.run == self.name
        ]

    def tensorboard(self, folder: str | Path | None = None) -> Path:
        """Write the metrics and events of the run for TensorBoard.

        A second call appends new values. `%tensorboard --logdir FOLDER` shows them.

        Parameters
        ----------
        folder : str or Path, optional
            The folder of this one run (default: `tensorboard` in the run's own folder).

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        TrainingError
            The folder belongs to another run.
        """
        from ...client.results.tensorboard import write

        return write(self, Path(folder).expanduser() if folder else self.directory / "tensorboard")

    def profile(self, file: str | Path, worker: str = "") -> Path:
        """Trace one step of a worker with all its operations and those of the parameter servers.

        A traced step is several times slower than other steps, and does not count for speeds and
        mini-batches. At most one step is traced in five minutes, or fewer if tracing is expensive.

        Parameters
        ----------
        file : str or Path
            The file to write: Chrome's trace format, for Perfetto and chrome://tracing (compressed
            if the name ends in `.gz`), or the format of TensorBoard's profiler if it ends in
            `.xplane.pb`. `run.tensorboard()` includes the trace, too.
        worker : str, optional
            The name of the worker (default: the first one that trains).

        Returns
        -------
        Path
            The file.

        Raises
        ------
        TrainingError
            It is too early for another trace, or no trace arrived.
        ClusterError
            No worker trains.
        """
        from ...client.results.profile import profile

        return profile(self, Path(file).expanduser(), worker)

    def evaluate(self, now: bool = False) -> Metrics:
        """Return the metrics of the dev split.

        Parameters
        ----------
        now : bool, default False
            Evaluate the model as it is now, while training continues, and wait for the result.
            Otherwise return the result of the last evaluation.

        Returns
        -------
        Metrics
            The metrics by name. `part` names the part of the split that was evaluated, if not all of it.

        Raises
        ------
        TrainingError
            The run was not evaluated yet, or the evaluation failed.
        ClusterError
            `now`, and the run does not train.

        Examples
        --------
        >>> tm.run("run-1").evaluate(now=True)["accuracy"]
        """
        if now:
            before = self.state.evaluations[-1:], self.state.unevaluated
            commands.send(self.cluster.directory, Evaluate(run=self.name))

            def done(state: ClusterState) -> bool:
                run = state.of(RunState).get(self.name)
                return run is None or run.over or (run.evaluations[-1:], run.unevaluated) != before

            trained = time.time() - (self.state.started_at or time.time())
            timeout = max(_EVALUATION_SECONDS, _EVALUATION_SHARE * trained)
            if self.cluster.follow(done, timeout) is None:
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
        """Return the predictions of the model of a checkpoint, computed on this machine.

        The cluster can be deleted. TensorFlow takes seconds to start, so compute many predictions
        with one call.

        Parameters
        ----------
        inputs : array, list or dict
            Examples, or a dict of them by feature name: an image's pixels, a text's token numbers,
            or texts. The preprocessing of the problem is applied. A model of the cell takes
            features as its input_fn returns them. A model of Tensor2Tensor that is not a classifier
            needs its targets, too: `{"inputs": ..., "targets": ...}`.
        data_dir : str or Path, optional
            The folder with the vocabulary of the problem (default: the one beside the checkpoint).
        trust : bool, default False
            Agree to run the code of a run that another machine declared.
        checkpoint : {"last", "best"} or int, default "last"
            Which checkpoint: the last one, the best one of a run with --keep-best, or the one of a
            step that was kept.

        Returns
        -------
        ndarray or dict of ndarray
            Probabilities of shape (examples, classes) for a classifier, logits for other models of
            Tensor2Tensor, predictions for a model of the cell.

        Raises
        ------
        TrainingError
            There is no such checkpoint, or the model cannot be computed.
        CellError
            The cell does not define the model.
        AgreementError
            Another machine declared the run, and `trust` is False.

        Examples
        --------
        >>> tm.run("run-1").predict(images).argmax(axis=1)
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
        """Return the output texts of a Tensor2Tensor model for input texts.

        The encoders of the problem convert texts to token numbers and back. A
        sequence-to-sequence model returns its outputs, a language model continues the texts, and
        a classifier returns the names of classes. With a `beam_size` of 1, decoding is greedy.
        Larger sizes use Tensor2Tensor's beam search, whose duration grows in proportion. The
        program t2t_decoder uses 4.

        Parameters
        ----------
        texts : list or dict
            Texts or rows of token numbers, or a dict of such lists by feature name.
        data_dir : str or Path, optional
            The folder with the vocabulary of the problem (default: the one beside the checkpoint).
        beam_size : int, default 1
            The beam size.
        alpha : float, default 0.6
            The length penalty of the beam search. Larger values prefer longer texts.
        average : int, default 1
            Use the mean of this many last checkpoints, which the run must have kept (`--keep`).
        checkpoint : {"last", "best"} or int, default "last"
            Which checkpoint, as in `predict`.
        trust : bool, default False
            Agree to run the code of a run that another machine declared.

        Returns
        -------
        list of str
            The output for each text.

        Raises
        ------
        TrainingError, CellError, AgreementError
            As in `predict`.
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
        """Write the model of a checkpoint as a SavedModel.

        The signature `serving_default` has the inputs and outputs of `predict`, and includes the
        preprocessing. `tf.saved_model.load` and TensorFlow Serving read the folder.

        Parameters
        ----------
        folder : str or Path
            A new or empty folder.
        data_dir : str or Path, optional
            The folder with the vocabulary of the problem (default: the one beside the checkpoint).
        trust : bool, default False
            Agree to run the code of a run that another machine declared.
        checkpoint : {"last", "best"} or int, default "last"
            Which checkpoint, as in `predict`.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        TrainingError, CellError, AgreementError
            As in `predict`.
        """
        from ...client.results.models import export

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return export(self, Path(folder).expanduser(), data_dir, checkpoint)

    def model(
        self, file: str | Path | None = None, *, checkpoint: str | int = "last", trust: bool = False
    ) -> Any:
        """Return the compiled Keras model of the cell with the weights of a checkpoint.

        The cell runs in this process and imports TensorFlow here. No other method does this. The
        model can be evaluated and trained like any other; its optimizer is new. Only arrays
        are read from the checkpoint, and they must fit the weights of the model.

        Parameters
        ----------
        file : str or Path, optional
            A new file ending in `.keras` to write the model to.
        checkpoint : {"last", "best"} or int, default "last"
            Which checkpoint, as in `predict`.
        trust : bool, default False
            Agree to run the code of a run that another machine declared.

        Returns
        -------
        keras.Model
            The model.

        Raises
        ------
        TrainingError
            There is no such checkpoint, or the run trains a model of Tensor2Tensor or a model_fn.
        CellError, AgreementError
            As in `predict`.
        """
        from ...client.results.keras_model import keras_model

        agree_to_code(self.cluster.directory, self.name, trust=trust)
        return keras_model(self, Path(file).expanduser() if file else None, checkpoint)

    def logs(self, worker: str, lines: int = 200) -> Log:
        """Return the last lines that a worker logged for the run.

        Parameters
        ----------
        worker : str
            The name of its VM, such as `worker-0`.
        lines : int, default 200
            The number of lines.

        Raises
        ------
        ClusterError
            The controller does not answer, or the VM has no log.
        """
        command = Logs(vm=worker, run=self.name, lines=lines)
        return Log(commands.send(self.cluster.directory, command)["text"])

    def fetch(self, folder: str | Path) -> Path:
        """Copy checkpoints, metrics, events, the cell and the declaration to a folder.

        Results in a bucket are downloaded; the cluster may be gone.

        Parameters
        ----------
        folder : str or Path
            The folder, which is created if needed.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        CloudError
            The bucket cannot be read.
        TrainingError
            The files cannot be written.
        """
        target = Path(folder).expanduser()
        try:
            self._copy_to(target)
        except (OSError, shutil.Error) as error:
            why = reason_of(error)
            raise TrainingError(
                f"The results of {self.name} cannot be written: {why}",
                where=str(target),
                fix="Choose another folder, or free some space.",
            ) from error
        if place := self.place:
            fetch(*place, target, results=self.recorded.over)
        return target

    def _copy_to(self, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        brought = is_brought(self.cluster.directory, self.name)
        for path in self.directory.iterdir():
            if path.name == layout.HOME or (brought and path.name not in _OF_A_RUN):
                # A VM named this file, and programs may act on files of certain names.
                continue
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
    state = cluster.state.of(RunState).get(name)
    if state and state.spec.stalls:
        return Stalls(name, cluster)
    return Run(name, cluster)


def run(name: str | None = None, cluster: Cluster | str | None = None) -> Run:
    """Return a run.

    Parameters
    ----------
    name : str, optional
        The name of the run (default: the latest).
    cluster : Cluster or str, optional
        Its cluster (default: the latest one that has such a run).

    Raises
    ------
    UnknownWorkError
        There is no such run.
    ClusterError
        No cluster is named, and several that are not deleted have such work.

    Examples
    --------
    >>> tm.run().wait()
    """
    found = lookup.find_work("run", name, cluster)
    return Run(found.name, found.cluster)
