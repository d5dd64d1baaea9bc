"""Models of odd names and of texts, used as `serve` uses them: `... FOLDER`; as JSON.

For each: how far predictions and those of an exported model are from Keras's, and how many weights came back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy

from tests.runtime.saved_run import STEP, saved
from tests.runtime.test_own_cells import COMPILED, NESTED, ODD_NAMES, READS_WORDS, TWINS, WORDS, cell
from transient_magics.client.results import keras_model
from transient_magics.runtime.programs import serve
from transient_magics.runtime.training.user_model import structure
from transient_magics.runtime.training.user_model.trainable import OwnModel

MODEL = "keras.Sequential([layers.Dense(2)])"
CELLS = {
    "odd names": cell(
        ("return DATA", 'return {name: np.ones((8, 1), "f") for name in NAMES}, DATA[1]'), (MODEL, "Named()"),
        head=ODD_NAMES,
    ),
    "nested": cell(
        ("return DATA", "return FEATURES, LABELS"), (MODEL, "Nested()"), (COMPILED, "'mse'"), head=NESTED,
    ),
    "texts": cell(("return DATA", "return FEATURES, DATA[1]"), READS_WORDS, head=WORDS),
    "twins": cell((MODEL, "Twins()"), head=TWINS),
}  # fmt: skip


def used(place: Path, text: str) -> dict[str, Any]:
    """What `serve` and the client make of the run of a cell."""
    import tensorflow

    folder, trainable = saved(place, text)
    serve.load_model = lambda *_: trainable
    model, spec = trainable.keras_model.model, folder.spec()
    draw = numpy.random.RandomState(1)

    def drawn(_: object, given: Any) -> Any:
        if structure.is_text(given):
            return draw.choice(["good", "a bad film", "rome", "oslo", "größe"], given.shape)
        return draw.normal(size=given.shape).astype("f")

    features = structure.mapped(drawn, trainable.keras_model.example)
    found = [(structure.name_of("inputs", path), value) for path, value in structure.leaves(features)]
    inputs = dict(zip(structure.unique(name for name, _ in found), (value for _, value in found), strict=True))
    theirs = [value.numpy() for _, value in structure.leaves(model(features, training=False))]

    given, answered = place / "inputs.npz", place / "outputs.npz"
    structure.write_arrays(given, inputs)
    serve.predict(folder, spec, STEP, None, given, answered)
    ours = structure.read_arrays(answered)
    serve.export(folder, spec, STEP, None, place / "exported")
    served = tensorflow.saved_model.load(str(place / "exported")).signatures["serving_default"]
    exported = served(**{name: tensorflow.constant(value) for name, value in inputs.items()})

    answer = serve.weights(folder, spec, STEP, given)
    values = structure.read_arrays(given)
    weights = [values[f"weight {name}"] for name in answer["weights"]]
    example = structure.rebuilt(answer["given"], values)
    before = [weight.numpy() for weight in model.weights]
    for weight in model.weights:
        weight.assign(weight * 0)
    keras_model._load(model, dict(zip(answer["weights"], weights, strict=True)), "here")
    model(example, training=False)
    trainable.keep_vocabularies(folder.checkpoints)
    (place / "cell.py").write_text(text.replace("bad film", "good or other words"), encoding="utf-8")
    on_other_data = OwnModel(folder, spec).keras_model.model
    for weight, value in zip(on_other_data.weights, before, strict=True):
        weight.assign(value)
    theirs_again = [value.numpy() for _, value in structure.leaves(on_other_data(features, training=False))]
    return {
        "on other data": _apart(theirs_again, theirs),
        "inputs": list(inputs),
        "outputs": list(ours),
        "predicted": _apart(ours.values(), theirs),
        "exported": _apart([exported[name].numpy() for name in ours], theirs),
        "weights": answer["weights"],
        "restored": _apart(before, [weight.numpy() for weight in model.weights]),
    }


def _apart(some: Any, others: Any) -> float:
    return max(float(abs(one - other).max()) for one, other in zip(some, others, strict=True))


def main() -> None:
    """Print what each cell comes to."""
    places = {name: Path(sys.argv[1]) / name.replace(" ", "-") for name in CELLS}
    print(json.dumps({name: used(places[name], text) for name, text in CELLS.items()}))


if __name__ == "__main__":
    main()
