"""What exists and what it costs: GPUs, machine types, zones, dated prices. Tables and look-ups, no network."""

from .accelerators import ACCELERATORS, Accelerator, accelerator, living_alternative, never_on_demand
from .egress import egress
from .extras import (
    CONTROLLER_DISK_GB,
    DISK_GB,
    DISK_TYPE,
    DISK_TYPES,
    address_hourly,
    disk_hourly,
    parse_disk,
    with_extras,
)
from .gpu_stack import stack_refusal
from .machines import (
    MACHINE_TYPES,
    Limit,
    MachineType,
    check_machine,
    check_zone,
    limits,
    machine_type,
    machines_with,
    parameter_server_machine,
)
from .price_lists import ICAC19, PriceList, price_list
from .prices import (
    CONTROLLER_MACHINE,
    SOURCES,
    PriceRow,
    VmPrice,
    controller_price,
    item_price,
    learn,
    learned_seconds_ago,
    parameter_server_price,
    price_history,
    price_table,
    worker_price,
)
from .regions import continent, nearest, region
from .servers import server_machine, server_price
from .shapes import larger_shapes, shapes, worker_entry, worker_machines
from .transfer import TRANSFER_PRICES, TransferPrice, transfer_price
from .zones import ZONES, default_zone, has_gpu, zones_with

__all__ = [
    "ACCELERATORS",
    "CONTROLLER_DISK_GB",
    "CONTROLLER_MACHINE",
    "DISK_GB",
    "DISK_TYPE",
    "DISK_TYPES",
    "ICAC19",
    "MACHINE_TYPES",
    "SOURCES",
    "TRANSFER_PRICES",
    "ZONES",
    "Accelerator",
    "Limit",
    "MachineType",
    "PriceList",
    "PriceRow",
    "TransferPrice",
    "VmPrice",
    "accelerator",
    "address_hourly",
    "check_machine",
    "check_zone",
    "continent",
    "controller_price",
    "default_zone",
    "disk_hourly",
    "egress",
    "has_gpu",
    "item_price",
    "larger_shapes",
    "learn",
    "learned_seconds_ago",
    "limits",
    "living_alternative",
    "machine_type",
    "machines_with",
    "nearest",
    "never_on_demand",
    "parameter_server_machine",
    "parameter_server_price",
    "parse_disk",
    "price_history",
    "price_list",
    "price_table",
    "region",
    "server_machine",
    "server_price",
    "shapes",
    "stack_refusal",
    "transfer_price",
    "with_extras",
    "worker_entry",
    "worker_machines",
    "worker_price",
    "zones_with",
]
