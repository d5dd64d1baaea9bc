"""What lennard-jones.ipynb is judged by: the equation of state of the Lennard-Jones fluid, published state points, and
where the fluid separates into liquid and vapour.

All in reduced units: lengths of sigma, energies of epsilon, temperatures of epsilon / k.

Equation of state: Johnson, Zollweg and Gubbins, "The Lennard-Jones equation of state revisited", Molecular Physics 78
(1993) 591 (doi 10.1080/00268979300100411), of the full potential. State points: NIST's reference simulations of the
fluid with a cut-off of 3 and long-range corrections, at temperature 0.85.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

GAMMA = 3.0
_A = ((1, 0.5, 0, -1, -2), (1, 0, -1, -2), (1, 0, -1), (0,), (-1, -2), (-1,), (-1, -2), (-2,))
_B = ((-2, -3), (-2, -4), (-2, -3), (-2, -4), (-2, -3), (-2, -3, -4))
"""The powers of the temperature in each of their coefficients a and b, in the order of their parameters x."""
_X = (
    0.8623085097507421, 2.976218765822098, -8.402230115796038, 0.1054136629203555, -0.8564583828174598,
    1.582759470107601, 0.7639421948305453, 1.753173414312048, 2.798291772190376e3, -4.8394220260857657e-2,
    0.9963265197721935, -3.698000291272493e1, 2.084012299434647e1, 8.305402124717285e1, -9.574799715203068e2,
    -1.477746229234994e2, 6.398607852471505e1, 1.603993673294834e1, 6.805916615864377e1, -2.791293578795945e3,
    -6.245128304568454, -8.116836104958410e3, 1.488735559561229e1, -1.059346754655084e4, -1.131607632802822e2,
    -8.867771540418822e3, -3.986982844450543e1, -4.689270299917261e3, 2.593535277438717e2, -2.694523589434903e3,
    -7.218487631550215e2, 1.721802063863269e2,
)  # fmt: skip

POINTS = {
    0.776: (-5.5121, 0.00677), 0.780: (-5.5386, 0.04792), 0.820: (-5.7947, 0.5536), 0.860: (-6.0305, 1.2660),
    0.900: (-6.2391, 2.2314),
}  # fmt: skip
"""At temperature 0.85: by density, the potential energy of a particle, and the pressure."""
POINTS_TEMPERATURE = 0.85
CRITICAL = 1.313
"""The temperature above which the equation of state has one phase."""


def _coefficients(powers: tuple[tuple[float, ...], ...], first: int, temperature: float) -> np.ndarray:
    """Rows of a coefficient and of it less T times its derivative: the one for the free energy, the other for U."""
    rows, place = [], first
    for each in powers:
        terms = [(_X[place + turn] * temperature**power, power) for turn, power in enumerate(each)]
        rows.append((sum(term for term, _ in terms), sum(term * (1 - power) for term, power in terms)))
        place += len(each)
    return np.array(rows).T


def _integrals(density: float) -> np.ndarray:
    """G_i: the integrals of rho^(2i-1) exp(-gamma rho^2) from 0 to the density, i from 1 to 6."""
    decay = np.exp(-GAMMA * density**2)
    found = [(1 - decay) / (2 * GAMMA)]
    for turn in range(1, len(_B)):
        found.append(-(decay * density ** (2 * turn) - 2 * turn * found[-1]) / (2 * GAMMA))
    return np.array(found)


def _residual(density: float, temperature: float) -> tuple[float, float]:
    """Of a particle, beyond an ideal gas: the Helmholtz energy, and the potential energy."""
    a = _coefficients(_A, 0, temperature)
    b = _coefficients(_B, sum(map(len, _A)), temperature)
    order = np.arange(1, len(_A) + 1)
    free, energy = a @ (density**order / order) + b @ _integrals(density)
    return float(free), float(energy)


def energy(density: float, temperature: float) -> float:
    """The potential energy of a particle."""
    return _residual(density, temperature)[1]


def pressure(density: float, temperature: float) -> float:
    """The pressure; below the critical temperature and between the two phases that of a fluid kept from separating."""
    a, b = _coefficients(_A, 0, temperature)[0], _coefficients(_B, sum(map(len, _A)), temperature)[0]
    powers = density ** np.arange(2, len(_A) + 2)
    odd = density ** np.arange(3, 2 * len(_B) + 2, 2)
    return float(density * temperature + a @ powers + np.exp(-GAMMA * density**2) * (b @ odd))


def _potential(density: float, temperature: float) -> float:
    """The chemical potential, but for what depends on the temperature alone."""
    free = _residual(density, temperature)[0]
    return temperature * np.log(density) + free + pressure(density, temperature) / density


@cache
def coexistence(temperature: float) -> tuple[float, float] | None:
    """The densities of vapour and liquid that have one pressure and one chemical potential; None where there is one
    phase. Below the critical temperature by some percent at most the root is not looked for."""
    from scipy.optimize import fsolve

    if temperature > 0.985 * CRITICAL:
        return None
    dense = np.linspace(0.01, 0.9, 300)
    slope = np.gradient([pressure(each, temperature) for each in dense])
    unstable = dense[slope < 0]
    # Inside of the spinodal nothing is stable: one phase lies below it, the other above.
    guess = np.log([unstable[0] * 0.5, unstable[-1] * 1.1])

    def apart(logarithms: np.ndarray) -> list[float]:
        vapour, liquid = np.exp(logarithms)
        return [pressure(vapour, temperature) - pressure(liquid, temperature),
                _potential(vapour, temperature) - _potential(liquid, temperature)]  # fmt: skip

    found, _, good, _ = fsolve(apart, guess, full_output=True)
    vapour, liquid = sorted(map(float, np.exp(found)))
    return (vapour, liquid) if good == 1 and liquid - vapour > 0.05 else None


def separated_energy(density: float, temperature: float) -> float:
    """The potential energy of a particle in a large system that has separated: each has that of its phase, and so many
    are in each that the volumes add up (lever rule). NaN where there is one phase."""
    phases = coexistence(temperature)
    if phases is None or not phases[0] < density < phases[1]:
        return float("nan")
    vapour, liquid = phases
    share = (1 / vapour - 1 / density) / (1 / vapour - 1 / liquid)
    return share * energy(liquid, temperature) + (1 - share) * energy(vapour, temperature)


def separates(point: Mapping[str, float]) -> bool:
    """Whether a large system would separate into liquid and vapour at this density and temperature."""
    phases = coexistence(round(point["temperature"], 3))
    return phases is not None and phases[0] < point["density"] < phases[1]
