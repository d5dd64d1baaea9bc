"""A declaration, as it was typed or written in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...spec import TRAINING

MODELS = ("spot", "preemptible", "standard")
"""Provisioning models of Compute Engine: how its VMs are rented."""


@dataclass(frozen=True)
class Declaration:
    """What the user typed. Times in seconds where no name says hours, money in US dollars; see the
    options' help.
    """

    spec: str
    name: str | None = None
    ps: int = 1
    ps_cores: int | None = None
    ps_machine: str | None = None
    ps_zone: str | None = None
    machine_type: str | None = None
    disk: str | None = None
    zone: tuple[str, ...] = ()
    provisioning_model: str = "spot"
    preemption_notice: int | None = None
    max_workers: int | None = None
    replace: bool = True
    give_up: Literal["slowest", "youngest", "riskiest", "dearest", "ask"] | None = None
    fallback_seconds: float | None = None
    chief: str = "ps"
    max_hours: float = 24.0
    max_cost: float | None = None
    idle: float = 1800.0
    project: str | None = None
    bucket: str | None = None
    image: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    firewall: bool = True
    ssh_from: tuple[str, ...] = ()
    controller: str | None = None
    purpose: str = TRAINING
