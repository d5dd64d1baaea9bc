"""The fluid's notebook: the equation of state by which it is judged, its cell, and a short form of it, whole."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.notebooks import runner_of
from transient_magics.client import cell
from transient_magics.works.bags.declare import check_function

PROJECT = Path(__file__).parents[1]
NOTEBOOK = PROJECT / "notebooks" / "lennard-jones.ipynb"
TEMPLATE = (PROJECT / "templates" / "lennard_jones.py").read_text(encoding="utf-8")
sys.path.insert(0, str(NOTEBOOK.parent))

import fluid  # noqa: E402

LENGTHS = re.compile(r"^MELTING, EQUILIBRATION, STEPS, EVERY = .*$", re.MULTILINE)
"""The line of the cell that sets how long a job is: shorter in the notebook than in the template."""
SHORT = "MELTING, EQUILIBRATION, STEPS, EVERY = 50, 100, 700, 10"
densities, temperatures = st.floats(0.05, 0.95), st.floats(0.75, 3.0)


def test_the_equation_of_state_has_the_published_points() -> None:
    for density, (energy, pressure) in fluid.POINTS.items():
        assert fluid.energy(density, fluid.POINTS_TEMPERATURE) == pytest.approx(energy, abs=0.02)
        assert fluid.pressure(density, fluid.POINTS_TEMPERATURE) == pytest.approx(pressure, abs=0.01)


@given(densities, temperatures)
def test_its_energy_and_its_pressure_are_of_one_fluid(density: float, temperature: float) -> None:
    """(dU/dV) at one temperature is T (dP/dT) - P: the energy has terms and derivatives of its own in the code."""
    step = 1e-4
    by_density = (fluid.energy(density + step, temperature) - fluid.energy(density - step, temperature)) / (2 * step)
    by_temperature = fluid.pressure(density, temperature + step) - fluid.pressure(density, temperature - step)
    pressure = fluid.pressure(density, temperature)
    assert -(density**2) * by_density == pytest.approx(temperature * by_temperature / (2 * step) - pressure, abs=2e-4)


def test_a_thin_fluid_is_an_ideal_gas_and_vapour_and_liquid_coexist_below_the_critical_temperature() -> None:
    assert fluid.pressure(1e-6, 1.0) == pytest.approx(1e-6, rel=1e-4)
    phases = fluid.coexistence(0.85)
    assert phases is not None
    vapour, liquid = phases
    assert (vapour, liquid) == (pytest.approx(0.0097, abs=0.0005), pytest.approx(0.7755, abs=0.001))
    assert fluid.pressure(vapour, 0.85) == pytest.approx(fluid.pressure(liquid, 0.85), abs=1e-8)
    assert fluid.coexistence(1.4) is None
    assert fluid.separates({"density": 0.5, "temperature": 0.85})
    assert not fluid.separates({"density": 0.8, "temperature": 0.85})
    assert not fluid.separates({"density": 0.5, "temperature": 1.5})
    assert fluid.separated_energy(liquid - 1e-9, 0.85) == pytest.approx(fluid.energy(liquid, 0.85), abs=1e-6)
    assert fluid.energy(vapour, 0.85) > fluid.separated_energy(0.1, 0.85) > fluid.energy(liquid, 0.85)


def test_the_notebook_computes_with_the_templates_cell() -> None:
    notebook = read()
    (own,) = (each.source for each in notebook.cells if each.source.startswith("%%bag"))
    body = own.partition("\n")[2]
    assert len(LENGTHS.findall(body)) == 1
    assert LENGTHS.sub(SHORT, TEMPLATE).endswith(LENGTHS.sub(SHORT, body) + "\n")
    cell.check(body, hparams=False)
    check_function(body, ["density", "temperature"])


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    path = [str(NOTEBOOK.parent), os.environ.get("PYTHONPATH")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_the_notebook_runs_in_a_short_form(home: Path, tmp_path: Path) -> None:
    pytest.importorskip("openmm", reason="the notebook's jobs need OpenMM: pip install openmm")
    notebook = read()
    for each in notebook.cells:
        each.source = re.sub(r"^JOBS = \d+$", "JOBS = 14", each.source)
        each.source = LENGTHS.sub(SHORT, each.source)
    runner_of(notebook, tmp_path).execute()
    said = [str(each.get("outputs", "")) for each in notebook.cells]
    assert any("(from the surrogate)" in each and "does not extrapolate" in each for each in said)
    assert any("90% intervals hold" in each and "two phases" in each for each in said)
    assert sum("image/png" in each for each in said) == 2


def read() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)
