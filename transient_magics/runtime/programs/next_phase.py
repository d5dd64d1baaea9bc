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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...files import write_atomically
from ...protocol import jsonl
from ...protocol.run import RunSpec
from ...protocol.vm_events import TrainEpoch
from ..folder import RunFolder
from ..phases import Phase, Phases
from ..training.loading import import_tensorflow
from ..training.usercode import provide_packages, reason


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
    ended = epochs_between(jsonl.read(folder.events), begin, step)
    calls, _ = expected_calls(folder, spec, later, Ending(step, begin, history(ended), rate(ended)))
    if not calls:
        return None
    total = step + sum(call.steps for call in calls)
    return Phase(step, calls[0].declaration(), history(ended), total, rate(ended))


def epochs_between(
    run_events: Iterable[Mapping[str, Any]], begin: int, end: int
) -> list[Mapping[str, Any]]:
    """Return the events of the epochs after the step `begin` up to the step `end`, in order."""
    found: dict[int, Mapping[str, Any]] = {}
    for event in run_events:
        if event["kind"] == TrainEpoch.kind and begin < event["step"] <= end:
            found[event["epoch"]] = event
    return [found[epoch] for epoch in sorted(found)]


def history(epochs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    """Return the metrics of these epochs by name, those that all of them have."""
    if not epochs:
        return {}
    names = [name for name in epochs[0]["logs"] if all(name in event["logs"] for event in epochs)]
    return {name: tuple(event["logs"][name] for event in epochs) for name in names}


def rate(epochs: Sequence[Mapping[str, Any]]) -> float:
    """Return the factor by which callbacks have changed the learning rate at the end."""
    if not epochs:
        return 1.0
    return float(epochs[-1].get("rate", 1.0))


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
