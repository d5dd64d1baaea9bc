"""What people hold in their hands: clusters and runs, from a notebook, a script or the `transient` program.

A handle reads the cluster's journal and sends commands to its controller; it never talks to a cloud itself. Nothing
here imports a cloud client, SSH or TensorFlow, so that the first cell answers at once; and each name below is imported
when it is first used, so that a notebook loads only what its cells say.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bags.declare import declare_bag
    from .configurations import StudyPreview
    from .dask_start import begin_dask
    from .declaring import Declaration, Preview, preview, specify
    from .deletion import deleted
    from .diagnosis import Diagnosis, doctor
    from .finding import attach, bag, cluster, clusters, compare, job, run, runs, study, work
    from .folders import unreadable
    from .following.follower import Follower, follower
    from .following.reviving import revive
    from .handles import Bag, Best, Cluster, Dask, Handle, Job, Result, Run, Stalls, Study, Trial, WorkList
    from .jobbing import declare_job
    from .launching import declare
    from .measuring import declare_stalls, stalls
    from .planning.lifetimes import Lifetimes, lifetimes
    from .planning.plans import plan
    from .project.images import Build, ImageList, build_image, delete_image, images
    from .project.measuring import Measurement, measure
    from .project.offers import Offers, catalog
    from .project.orphans import Orphan, OrphanRule, Sweep, sweep
    from .project.weather import Weather
    from .results.comparison import Comparison, Runs
    from .studying import declare_study
    from .training import train

_HOMES = {
    "bags.declare": ("declare_bag",),
    "configurations": ("StudyPreview",),
    "declaring": ("Declaration", "Preview", "preview", "specify"),
    "deletion": ("deleted",),
    "diagnosis": ("Diagnosis", "doctor"),
    "finding": ("attach", "bag", "cluster", "clusters", "compare", "job", "run", "runs", "study", "work"),
    "folders": ("unreadable",),
    "following.follower": ("Follower", "follower"),
    "following.reviving": ("revive",),
    "dask_start": ("begin_dask",),
    "handles": (
        "Bag",
        "Best",
        "Cluster",
        "Dask",
        "Handle",
        "Job",
        "Result",
        "Run",
        "Stalls",
        "Study",
        "Trial",
        "WorkList",
    ),
    "jobbing": ("declare_job",),
    "launching": ("declare",),
    "planning.lifetimes": ("Lifetimes", "lifetimes"),
    "planning.plans": ("plan",),
    "project.images": ("Build", "ImageList", "build_image", "delete_image", "images"),
    "project.offers": ("Offers", "catalog"),
    "project.orphans": ("Orphan", "OrphanRule", "Sweep", "sweep"),
    "project.measuring": ("Measurement", "measure"),
    "project.weather": ("Weather",),
    "results.comparison": ("Comparison", "Runs"),
    "measuring": ("declare_stalls", "stalls"),
    "studying": ("declare_study",),
    "training": ("train",),
}
"""By module: the names that are taken from it. No module of this room is called as one of them."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Bag",
    "Best",
    "Build",
    "Cluster",
    "Comparison",
    "Dask",
    "Declaration",
    "Diagnosis",
    "Follower",
    "Handle",
    "ImageList",
    "Job",
    "Lifetimes",
    "Measurement",
    "Offers",
    "Orphan",
    "OrphanRule",
    "Preview",
    "Result",
    "Run",
    "Runs",
    "Stalls",
    "Study",
    "StudyPreview",
    "Sweep",
    "Trial",
    "Weather",
    "WorkList",
    "attach",
    "bag",
    "begin_dask",
    "build_image",
    "catalog",
    "cluster",
    "clusters",
    "compare",
    "declare",
    "declare_bag",
    "declare_job",
    "declare_stalls",
    "declare_study",
    "delete_image",
    "deleted",
    "doctor",
    "follower",
    "images",
    "job",
    "lifetimes",
    "measure",
    "plan",
    "preview",
    "revive",
    "run",
    "runs",
    "specify",
    "stalls",
    "study",
    "sweep",
    "train",
    "unreadable",
    "work",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__]
