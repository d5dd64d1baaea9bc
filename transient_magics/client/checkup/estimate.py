"""What the doctor's hour may cost at most, stage by stage, before anything is made.

Every VM of it carries a moment at which Compute Engine itself deletes it. The most is what all of them cost until then.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog import with_extras, worker_price
from ...spec import ClusterSpec, render_duration, render_money

CPU_SECONDS, GPU_SECONDS, GPU_BARE_SECONDS = 1800.0, 1800.0, 2400.0
"""The life of the two clusters: VMs without a GPU install TensorFlow at their first boot, those with one if need be."""
BUILD_SECONDS = 3600.0
"""The life of the VM that an image is made with (controller.baking)."""


@dataclass(frozen=True)
class Part:
    """One stage's VMs: US dollars per hour, and for how many seconds at most."""

    what: str
    hourly: float
    seconds: float

    @property
    def most(self) -> float:
        """In US dollars."""
        return self.hourly * self.seconds / 3600


def parts(cpu: ClusterSpec, gpu: ClusterSpec, *, image: bool) -> tuple[Part, ...]:
    """What would be paid for. `image`: one with the training stack is there already."""
    hourly = build_hourly(gpu.home_zone, external_ip=gpu.external_ip)
    build = Part("the VM that an image is made with", hourly, BUILD_SECONDS)
    return (
        Part(f"a cluster {cpu.spec} and its parameter server", cpu.hourly, cpu.max_seconds),
        *(() if image else (build,)),
        Part(f"a cluster {gpu.spec} and its parameter server", gpu.hourly, gpu.max_seconds),
    )


def build_hourly(zone: str, *, external_ip: bool = True) -> float:
    """US dollars per hour of the VM that an image is made with."""
    return with_extras(worker_price("cpu", zone), zone, external_ip=external_ip).on_demand


def words(parts: tuple[Part, ...]) -> str:
    """The most that it costs, and why."""
    listed = "; ".join(
        f"{each.what}, {render_money(each.hourly)}/h for {render_duration(each.seconds)} at most" for each in parts
    )
    return f"{render_money(sum(each.most for each in parts))} at most: {listed}"
