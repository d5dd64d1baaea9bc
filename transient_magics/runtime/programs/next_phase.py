"""Find the next phase of a run whose cell calls `fit` several times.

`python -m transient_magics.runtime.programs.next_phase --run FOLDER --step N` executes the cell
behind the call of `fit` whose phase ended with the checkpoint of step N, with the weights of that
checkpoint, which it stores (runtime/phases.py). It is a process of its own, because it has Keras's
model in memory, and the cell may evaluate it.

It prints one line of JSON: `{"phase": {...}}` with the fields of a Phase, `{"phase": null}` if the
cell does not call `fit` once more, or `{"refused": "sentence"}`.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files import write_atomically
from ...protocol import jsonl
from ...protocol.run import RunSpec
from ...protocol.vm_events import TrainEvaluated, TrainProgress
from ..folder import RunFolder
from ..phases import Phase, Phases
from ..training.loading import import_tensorflow
from ..training.usercode import provide_packages, reason

if TYPE_CHECKING:
    from ..training.user_model.fit import Fit


def next_phase(folder: RunFolder, spec: RunSpec, step: int) -> Phase | None:
    """Return the phase that begins with the checkpoint of `step`; None if the training is over.

    Raises what the cell raises.
    """
    from ..training.user_model.replay import Ending
    from ..training.user_model.trainable import expected_calls

    provide_packages(folder)
    import_tensorflow(spec)
    later = Phases(folder).later()
    begin = 0
    if later:
        begin = later[-1].begin
    run_events = list(jsonl.read(folder.events))
    made = range(begin, step)
    metrics: dict[str, list[float]] = {}

    def take_history(fit: Fit) -> Mapping[str, Sequence[float]]:
        validated = fit.validation is not None
        metrics.update(history(run_events, made, fit.steps_per_epoch, validated=validated))
        return metrics

    calls, _ = expected_calls(folder, spec, later, Ending(step, take_history))
    if not calls:
        return None
    total = step + sum(call.steps for call in calls)
    kept = {name: tuple(values) for name, values in metrics.items()}
    return Phase(step, calls[0].declaration(), kept, total)


def history(
    run_events: Sequence[Mapping[str, Any]], steps: range, epoch_steps: int, *, validated: bool
) -> dict[str, list[float]]:
    """Return the metrics of a phase by name, one value per epoch, as Keras's History has them.

    An epoch has the values of the first evaluation and of the first report of the loss at its end
    or later. Without validation data, evaluations are of the training data.
    """
    prefix = ""
    if validated:
        prefix = "val_"
    evaluated: list[tuple[int, Mapping[str, float]]] = []
    reported: list[tuple[int, Mapping[str, float]]] = []
    for event in run_events:
        step = event.get("step")
        if not isinstance(step, int) or not steps.start < step <= steps.stop:
            continue
        if event["kind"] == TrainEvaluated.kind:
            found = {f"{prefix}{name}": value for name, value in event["metrics"].items()}
            evaluated.append((step, found))
        elif event["kind"] == TrainProgress.kind and event.get("loss") is not None:
            reported.append((step, {"loss": event["loss"]}))
    length = epoch_steps or len(steps)
    ends = range(steps.start + length, steps.stop + 1, length) or [steps.stop]
    columns: dict[str, list[float]] = {}
    for end in ends:
        row = {**_at(reported, end), **_at(evaluated, end)}
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: values for name, values in columns.items() if len(values) == len(ends)}


def _at(points: Sequence[tuple[int, Mapping[str, float]]], end: int) -> Mapping[str, float]:
    """Return the values of the first point at the step `end` or later, else of the last one."""
    found = next((values for step, values in points if step >= end), None)
    if found is not None:
        return found
    if points:
        return points[-1][1]
    return {}


def main() -> None:
    """Print the answer as one line of JSON."""
    parser = argparse.ArgumentParser(description="Find the next phase of a run.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--answer", type=Path, help="file that gets the line, too")
    given = parser.parse_args()
    folder = RunFolder(given.run)
    spec = folder.spec()
    answer: dict[str, Any]
    try:
        phase = next_phase(folder, spec, given.step)
        answer = {"phase": phase and asdict(phase)}
    except Exception as error:  # noqa: BLE001 - user code and TensorFlow raise anything
        traceback.print_exc()
        answer = {"refused": reason(error, spec.line_offset)}
    line = json.dumps(answer)
    if given.answer:
        write_atomically(given.answer, line, durable=False)
    print(line, flush=True)
    sys.exit("refused" in answer)


if __name__ == "__main__":
    main()
