"""Ordinary Keras scripts, modelled on the examples of keras.io, train unedited and as well as under plain Keras.

Every script is trained twice in one process each (`trial`): as Python executes it, and as a worker of a run. Three of
them are cells of a notebook in `make test`, on an emulated cluster. `zoo: refused: WORDS` in the docstring of a script
names what a run refuses it with; `zoo: within X` is another limit for the difference between the losses, and `zoo:
random predictions` marks a model that draws numbers when it predicts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import homes
from tests.notebooks import notebook_of, runner_of
from tests.runtime import programs

SCRIPTS = Path(__file__).parent / "scripts"
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
ON_A_CLUSTER = ("text_in_the_model", "structured_data", "vae_add_loss")
"""Scripts that `make test` trains on a cluster: raw strings, dicts of a DataFrame, and no labels."""
_REFUSED = re.compile(r"^zoo: refused: (.*)$", re.MULTILINE)
_WITHIN = re.compile(r"^zoo: within ([\d.]+)$", re.MULTILINE)
_SPREAD = 0.15
"""Largest usual difference between the losses of two trainings with other random numbers, relative to one of 1."""
_ROUNDING = 1e-4
AFTERWARDS = """
assert run.wait(timeout=300).step > 0
print("evaluated", sorted(run.evaluate()))
print("model", run.model().count_params())
"""

pytestmark = pytest.mark.training


def script_of(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")


def result_of(name: str) -> dict[str, Any]:
    """Return what `trial` prints for a script."""
    return json.loads(programs.run("tests.zoo.trial", SCRIPTS / f"{name}.py", own=True).splitlines()[-1])


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_script_trains_as_under_plain_keras_or_is_refused_by_name(name: str) -> None:
    text = script_of(name)
    result = result_of(name)
    if expected := _REFUSED.search(text):
        assert expected[1] in result.get("refused", "nothing is refused")
        return
    assert "refused" not in result, result["refused"]
    history = result["plain"]["history"]
    loss = history.get("val_loss", history["loss"])
    within = _WITHIN.search(text)
    limit = float(within[1]) if within else _SPREAD
    assert abs(result["graph"]["loss"] - loss) <= limit * max(1.0, abs(loss)), result
    assert result["losses"][-1] < result["losses"][0], result
    if "zoo: random predictions" not in text:
        assert result["predicted"] <= _ROUNDING, result


@pytest.fixture
def own_home() -> Iterator[Path]:
    with homes.own_home() as home:
        yield home


@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_a_script_is_a_cell_of_train(name: str, own_home: Path) -> None:
    notebook = notebook_of("%load_ext transient_magics", f"%%train cpux2 -o run\n{script_of(name)}", AFTERWARDS)
    runner_of(notebook, own_home).execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    assert re.search(r"^evaluated \[.*'loss'", printed, re.MULTILINE)
    assert re.search(r"^model [1-9]\d*$", printed, re.MULTILINE)
