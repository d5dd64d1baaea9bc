"""Dated price lists in US dollars per hour, as data.

Two lists. ICAC'19's own (Li et al., "Speeding up Deep Learning with Transient Servers", table of unit prices; whole
servers, host included) serves clusters that contain a K80, which has no price today, so that a bill can be laid beside
the paper's. Everything else: list prices per GPU in us-central1 (us-east4 for the H100), on demand as of 2022 and
Spot as of 2026, plus the N1 host per vCPU and GB as of 2021. Bundled machines (L4, A100, H100) are priced by the GPU
and their host at the same rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .accelerators import accelerator

_ICAC19 = "ICAC'19 prices (2019)"
_LIST = "list prices, us-central1 (on demand 2022, Spot 2026)"

_ICAC19_SERVERS = {"k80": (0.723, 0.256), "p100": (1.43, 0.551), "v100": (2.144, 0.861)}
_ICAC19_PARAMETER_SERVER = 0.143  # 4 vCPU, 16 GB, on demand

_GPUS = {
    "p100": (1.46, 0.7229),
    "v100": (2.48, 1.2338),
    "p4": (0.60, 0.216),
    "t4": (0.35, 0.1915),
    "l4": (0.56, 0.2862),
    "a100": (2.934, 1.5399),
    "a100-80gb": (3.93, 1.98),
    "h100": (9.80, 3.81),
    "cpu": (0.0, 0.0),
    "k80": (0.45, 0.135),
}
_VCPU, _VCPU_SPOT = 0.031611, 0.006655
_GB, _GB_SPOT = 0.004237, 0.000892


@dataclass(frozen=True, slots=True)
class PriceList:
    """Hourly prices of whole machines, from one source. Look-ups return (on demand, transient)."""

    source: str
    servers: dict[str, tuple[float, float]]
    parameter_server_4_vcpu: float | None = None

    def worker(self, name: str) -> tuple[float, float]:
        """(on demand, transient) dollars per hour of a worker VM with GPU `name`."""
        if name in self.servers:
            return self.servers[name]
        entry = accelerator(name)
        gpu, gpu_spot = _GPUS[name]
        return (
            gpu + entry.vcpus * _VCPU + entry.memory_gb * _GB,
            gpu_spot + entry.vcpus * _VCPU_SPOT + entry.memory_gb * _GB_SPOT,
        )

    def parameter_server(self, cores: int) -> float:
        """Dollars per hour of an on-demand parameter server with `cores` vCPUs and 4 GB each."""
        if self.parameter_server_4_vcpu is not None:
            return self.parameter_server_4_vcpu * cores / 4
        return cores * (_VCPU + 4 * _GB)


def price_list(accelerators: Iterable[str]) -> PriceList:
    """The list for a cluster with these GPUs: ICAC'19's where a K80 is among them, else today's."""
    if "k80" in set(accelerators):
        return PriceList(_ICAC19, _ICAC19_SERVERS, _ICAC19_PARAMETER_SERVER)
    return PriceList(_LIST, {})
