"""What the user declared, as pure data: clusters, runs, images, and the grammar of `k80x4`.

Text comes in, frozen values go out; a mistake becomes a DeclarationError that names the column, what was expected and
the nearest valid word. Nothing here touches a file, a clock or a network.
"""

from .cluster import (
    CONTROLLER,
    EMULATED_PROJECT,
    IAP_RANGE,
    JOBS,
    MOST_SECONDS,
    PARAMETER_SERVER,
    PREPARATION,
    PURPOSES,
    TRAINING,
    WORKER,
    ClusterSpec,
    PriceLine,
    Source,
    price_kind,
)
from .grammar import WorkerGroup, parse_groups, render_groups
from .image import ImageSpec, check_package, without_secrets
from .project import cluster_store, own_bucket, parse_bucket, parse_project, parse_records, run_store
from .training import BYTES_EACH_WAY, RunSpec, check_run, make_run, parse_workers
from .units import (
    if_capacity_lasts,
    parse_cpus,
    parse_duration,
    parse_interval,
    parse_name,
    parse_share,
    render_duration,
    render_money,
    render_small_money,
    render_table,
    render_workers,
)

__all__ = [
    "BYTES_EACH_WAY",
    "CONTROLLER",
    "EMULATED_PROJECT",
    "IAP_RANGE",
    "JOBS",
    "MOST_SECONDS",
    "PARAMETER_SERVER",
    "PREPARATION",
    "PURPOSES",
    "TRAINING",
    "WORKER",
    "ClusterSpec",
    "ImageSpec",
    "PriceLine",
    "RunSpec",
    "Source",
    "WorkerGroup",
    "check_package",
    "check_run",
    "cluster_store",
    "if_capacity_lasts",
    "make_run",
    "own_bucket",
    "parse_bucket",
    "parse_cpus",
    "parse_duration",
    "parse_groups",
    "parse_interval",
    "parse_name",
    "parse_project",
    "parse_records",
    "parse_share",
    "parse_workers",
    "price_kind",
    "render_duration",
    "render_groups",
    "render_money",
    "render_small_money",
    "render_table",
    "render_workers",
    "run_store",
    "without_secrets",
]
