"""What exists and what it costs: GPUs, machine types, zones, dated prices. Tables and look-ups, no network."""

from .accelerators import ACCELERATORS, Accelerator, accelerator, living_alternative, never_on_demand
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
    learn,
    learned_seconds_ago,
    parameter_server_price,
    price_history,
    price_table,
    worker_price,
)
from .regions import continent, nearest, region
from .servers import server_machine, server_price
from .transfer import TRANSFER_PRICES, TransferPrice, transfer_price
from .zones import ZONES, default_zone, has_gpu, zones_with

__all__ = [
    "ACCELERATORS",
    "CONTROLLER_MACHINE",
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
    "check_machine",
    "check_zone",
    "continent",
    "controller_price",
    "default_zone",
    "has_gpu",
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
    "price_history",
    "price_list",
    "price_table",
    "region",
    "server_machine",
    "server_price",
    "stack_refusal",
    "transfer_price",
    "worker_price",
    "zones_with",
]
