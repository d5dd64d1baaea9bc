"""Evaluate a run at the end of each epoch, and call the callbacks of its cell.

`python -m transient_magics.runtime.programs.callbacks --run FOLDER --chief HOST:PORT` connects to
the chief (`Calls` in protocol/chief_messages.py), calls the hooks before the first step, and sends
what they did. Then it answers one `EpochEnded` after the other, until the chief closes the
connection. Its folder is `files` in the run's folder: what callbacks write there by relative names
comes to the notebook's machine with the results.
"""

from __future__ import annotations

import argparse
import os
import socket
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ...errors import TrainingError
from ...protocol import jsonl, layout
from ...protocol.chief_messages import Called, Calls, EpochEnded, read_callbacks
from ...protocol.run import RunSpec
from ...protocol.vm_events import TrainEpoch
from ..files.archive import pack
from ..files.checkpoints import Checkpoints
from ..folder import RunFolder
from ..role import host_and_port, log
from ..training.loading import load_model
from ..training.user_model.callbacks import CallbackCalls, CallbackError
from ..training.user_model.fit import Fit
from ..training.user_model.trainable import OwnModel
from ..training.usercode import reason
from .evaluate import NICE, Graphs, evaluate_model


class Epochs:
    """The model of a run with its callbacks, and evaluations of it."""

    def __init__(self, folder: RunFolder, spec: RunSpec) -> None:
        """Run the cell. Raises what that raises."""
        self._folder = folder
        self._spec = spec
        trainable = load_model(folder, spec, folder.data_directory(spec))
        if not isinstance(trainable, OwnModel) or not trainable.fit or not trainable.keras_model:
            raise TrainingError("the cell does not call fit of a Keras model")
        self._trainable = trainable
        self._model = trainable.keras_model
        self._graphs = Graphs(trainable, spec)
        self._fit: Fit = trainable.fit
        self._calls = CallbackCalls(
            self._model.model,
            self._fit.callbacks,
            self._fit.epochs,
            self._fit.steps_per_epoch,
            spec.line_offset,
        )

        self._evaluated: dict[str, Any] = {}
        """The last evaluation."""

    def begin(self) -> Called:
        """Call the callbacks before the first step, with the epochs that are over already."""
        past: list[tuple[int, Mapping[str, float]]] = []
        for event in jsonl.read(self._folder.events):
            values = cast("dict[str, Any]", event)
            if event.get("kind") == TrainEpoch.kind and values["step"] > self._trainable.begin:
                past.append((values["epoch"], values["logs"]))
        return self._calls.begin(self._fit.initial_epoch, past)

    def end(self, request: EpochEnded) -> Called:
        """Evaluate, and call the callbacks at the end of an epoch."""
        if not request.awaited and os.nice(0) < NICE:
            os.nice(NICE)
        prefix = Checkpoints(self._folder.checkpoints).prefix(request.step)
        self._model.load(str(prefix), request.step)
        evaluation: dict[str, Any] = {}
        logs = self._trainable.training_results(request.sums)
        if request.epoch < 0 and request.step == self._evaluated.get("step"):
            evaluation = self._evaluated  # callbacks have ended the run after the epoch before
        elif self._fit.validation is not None:
            self._calls.test_begin()
            evaluation = self._evaluate(request)
            self._calls.test_end(evaluation["metrics"])
            logs |= {f"val_{name}": value for name, value in evaluation["metrics"].items()}
        elif request.last:
            evaluation = self._evaluate(request)
        self._evaluated = evaluation
        called = self._calls.end_epoch(request.epoch, logs, last=request.last)
        if request.last or called.stop:
            self._pack_files()
        return replace(called, evaluation=evaluation)

    def _pack_files(self) -> None:
        """Pack the files that callbacks wrote; the log says why files are left out."""
        files = self._folder.path / layout.FILES
        if not any(files.iterdir()):
            return
        archive = self._folder.path / layout.FILES_ARCHIVE
        try:
            packed = pack(files, archive)
            if archive.stat().st_size > layout.MOST_FILES_BYTES:
                archive.unlink()
                raise ValueError(f"{packed.bytes:,} bytes are more than are copied")
        except (OSError, ValueError) as error:
            log(f"the files of callbacks stay on this VM: {error}")
        else:
            for entry in packed.left_out:
                log(f"not among the files of callbacks: {entry}")

    def _evaluate(self, request: EpochEnded) -> dict[str, Any]:
        return evaluate_model(
            self._graphs,
            self._folder,
            self._spec,
            request.step,
            request.seconds,
            request.before,
        )


def main() -> None:
    """Serve the chief until it closes the connection."""
    parser = argparse.ArgumentParser(description="Call the callbacks of a run's cell.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--chief", required=True, help="HOST:PORT")
    parser.add_argument("--answer", type=Path, help="unused: answers go to the chief")
    given = parser.parse_args()
    folder = RunFolder(given.run.absolute())
    spec = folder.spec()
    files = folder.path / layout.FILES
    files.mkdir(exist_ok=True, mode=0o700)
    os.chdir(files)
    with socket.create_connection(host_and_port(given.chief)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(Calls(token=spec.token).encoded)
        epochs: Epochs | None = None
        try:
            epochs = Epochs(folder, spec)
            answer = epochs.begin()
        except Exception as error:  # noqa: BLE001 - user code raises anything
            answer = _failed(error, spec)
        connection.sendall(answer.encoded)
        for line in connection.makefile("rb"):
            request = read_callbacks(line)
            if epochs is None or not isinstance(request, EpochEnded):
                return
            try:
                answer = epochs.end(request)
            except Exception as error:  # noqa: BLE001 - user code raises anything
                answer = _failed(error, spec)
            connection.sendall(answer.encoded)


def _failed(error: Exception, spec: RunSpec) -> Called:
    traceback.print_exc()
    if isinstance(error, CallbackError):
        return Called(error=error.what)
    return Called(error=reason(error, spec.line_offset))


if __name__ == "__main__":
    main()
