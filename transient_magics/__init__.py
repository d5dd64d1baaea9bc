"""transient_magics: train on cheap, revocable GPU servers without leaving the notebook.

In a notebook: `%load_ext transient_magics`. In Python: `import transient_magics as tm`, then `tm.cluster("name")`,
`tm.run("name")` and what else is named below, all of it imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import VERSION as __version__

if TYPE_CHECKING:
    from . import errors
    from .client import (
        Bag,
        Best,
        Build,
        Cluster,
        Comparison,
        Dask,
        Declaration,
        Diagnosis,
        Handle,
        ImageList,
        Job,
        Lifetimes,
        Measurement,
        Offers,
        Result,
        Run,
        Runs,
        Stalls,
        Study,
        Trial,
        Weather,
        WorkList,
        attach,
        bag,
        build_image,
        cluster,
        clusters,
        compare,
        declare_bag,
        declare_job,
        declare_stalls,
        declare_study,
        delete_image,
        doctor,
        images,
        job,
        lifetimes,
        measure,
        plan,
        preview,
        run,
        runs,
        stalls,
        study,
        sweep,
        train,
        work,
    )
    from .panels import declare

__all__ = [
    "Bag",
    "Best",
    "Build",
    "Cluster",
    "Comparison",
    "Dask",
    "Declaration",
    "Diagnosis",
    "Handle",
    "ImageList",
    "Job",
    "Lifetimes",
    "Measurement",
    "Offers",
    "Result",
    "Run",
    "Runs",
    "Stalls",
    "Study",
    "Trial",
    "Weather",
    "WorkList",
    "__version__",
    "attach",
    "bag",
    "build_image",
    "cluster",
    "clusters",
    "compare",
    "declare",
    "declare_bag",
    "declare_job",
    "declare_stalls",
    "declare_study",
    "delete_image",
    "doctor",
    "errors",
    "images",
    "job",
    "lifetimes",
    "measure",
    "plan",
    "preview",
    "run",
    "runs",
    "stalls",
    "study",
    "sweep",
    "train",
    "work",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "errors":
        return importlib.import_module(f"{__name__}.errors")
    if name == "declare":  # with a panel, where nothing is declared yet
        from .panels import declare

        return declare
    from . import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "load_ipython_extension", "unload_ipython_extension"]


def load_ipython_extension(ipython: Any) -> None:
    """`%load_ext transient_magics`."""
    from .magics import load

    load(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """`%unload_ext transient_magics`."""
    from .magics import unload

    unload(ipython)
