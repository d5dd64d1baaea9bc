"""The Local SSDs that some accelerator-optimized machine types bring along, 375 GB each."""

from __future__ import annotations

from typing import Any

from transient_magics.catalog import local_ssd_gb

_GB = 375


def local_ssds(machine_type: str) -> list[dict[str, Any]]:
    """Return the attached disks of a machine type, as an instance lists them."""
    return [
        {
            "type": "SCRATCH",
            "interface": "NVME",
            "autoDelete": True,
            "diskSizeGb": str(_GB),
            "deviceName": f"local-ssd-{number}",
        }
        for number in range(local_ssd_gb(machine_type) // _GB)
    ]
