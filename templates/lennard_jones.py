"""Simulate a Lennard-Jones fluid: its pressure and its potential energy, each with its standard error.

500 particles in a periodic box, in reduced units: sigma, epsilon and the mass are 1. The potential is cut off at 3, and
what is beyond is added as if particles were spread evenly there.

    %%bag --over "density=0.3:0.9 temperature=0.8:1.6" --jobs 150 --pip openmm
"""

import math

import numpy as np
import openmm

from transient_magics.works.bags.block_average import block_mean

PARTICLES, CUT_OFF, TIME_STEP = 500, 3.0, 0.005
MELTING, EQUILIBRATION, STEPS, EVERY = 1000, 4000, 10_000, 10
KELVIN = 1 / 0.008314462618
"""With lengths in nm, masses in Da and energies in kJ/mol, OpenMM's other units are reduced ones too, but for this."""


def pairs(expression, group):
    """Every particle with every other one within the cut-off."""
    force = openmm.CustomNonbondedForce(expression)
    force.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(CUT_OFF)
    force.setForceGroup(group)
    for _ in range(PARTICLES):
        force.addParticle([])
    return force


def fluid(density, temperature, seed):
    """The system, on a crystal's places (500 = 4 x 5^3) that it is to leave."""
    side = (PARTICLES / density) ** (1 / 3)
    system = openmm.System()
    system.setDefaultPeriodicBoxVectors((side, 0, 0), (0, side, 0), (0, 0, side))
    for _ in range(PARTICLES):
        system.addParticle(1.0)
    system.addForce(pairs("4*(1/r^12 - 1/r^6)", 0))
    system.addForce(pairs("24*(2/r^12 - 1/r^6)", 1))  # -r dU/dr: asked for its sum, the virial, and no force
    integrator = openmm.LangevinMiddleIntegrator(temperature * KELVIN, 1.0, TIME_STEP)
    integrator.setIntegrationForceGroups({0})
    integrator.setRandomNumberSeed(seed % 2**30 + 1)
    cpu = openmm.Platform.getPlatformByName("CPU")
    context = openmm.Context(system, integrator, cpu, {"Threads": "1"})
    corner = np.array([[0, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]])
    cells = np.stack(np.meshgrid(*[np.arange(5)] * 3), axis=-1).reshape(-1, 1, 3)
    context.setPositions(((cells + corner).reshape(-1, 3)) * side / 5)
    context.setVelocitiesToTemperature(4 * KELVIN, seed % 2**30 + 1)
    return context, integrator


def job(density, temperature, seed, checkpoint):
    context, integrator = fluid(density, temperature, seed)
    saved = checkpoint.load()
    if saved:
        context.setPositions(saved["positions"])
        context.setVelocities(saved["velocities"])
        series = [tuple(row) for row in saved["series"]]
    else:
        integrator.setTemperature(4 * KELVIN)
        integrator.step(MELTING)
        integrator.setTemperature(temperature * KELVIN)
        integrator.step(EQUILIBRATION)
        series = []
    while len(series) * EVERY < STEPS:
        integrator.step(EVERY)
        states = [context.getState(getEnergy=True, groups={group}) for group in (0, 1)]
        series.append([state.getPotentialEnergy()._value for state in states])
        if checkpoint.due:
            state = context.getState(getPositions=True, getVelocities=True)
            checkpoint.save(
                {
                    "positions": state.getPositions(asNumpy=True)._value,
                    "velocities": state.getVelocities(asNumpy=True)._value,
                    "series": np.array(series),
                }
            )
    energy, virial = (block_mean(column) for column in np.array(series).T / PARTICLES)
    beyond_energy = 8 / 3 * math.pi * density * (CUT_OFF**-9 / 3 - CUT_OFF**-3)
    beyond_pressure = 16 / 3 * math.pi * density**2 * (2 / 3 * CUT_OFF**-9 - CUT_OFF**-3)
    enough = energy.enough and virial.enough
    print(f"{len(series)} samples, in blocks of {energy.block} and {virial.block}{'' if enough else ': too few'}")
    return {
        "pressure": density * (temperature + virial.mean / 3) + beyond_pressure,
        "pressure_error": density * virial.error / 3,
        "energy": energy.mean + beyond_energy,
        "energy_error": energy.error,
    }
