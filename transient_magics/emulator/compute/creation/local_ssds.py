"""The Local SSDs that some accelerator-optimized machine types bring along, 375 GB each.

"Accelerator-optimized machine family", docs.cloud.google.com/compute/docs/accelerator-optimized-machines, read
2026-11-27.
"""

from __future__ import annotations

from typing import Any

_GB = "375"
_COUNTS = {
    **{f"a2-ultragpu-{count}g": count for count in (1, 2, 4, 8)},
    **{f"a3-highgpu-{count}g": 2 * count for count in (1, 2, 4, 8)},
}


def local_ssds(machine_type: str) -> list[dict[str, Any]]:
    """Return the attached disks of a machine type, as an instance lists them."""
    return [
        {
            "type": "SCRATCH",
            "interface": "NVME",
            "autoDelete": True,
            "diskSizeGb": _GB,
            "deviceName": f"local-ssd-{number}",
        }
        for number in range(_COUNTS.get(machine_type, 0))
    ]
