"""What people hold in their hands: clusters and runs, from a notebook, a script or the `transient` program.

A handle reads the cluster's journal and sends commands to its controller; it never talks to a cloud itself. Nothing
here imports a cloud client, SSH or TensorFlow, so that the first cell answers at once.
"""

from .clusters import attach, cluster, clusters, declare
from .declaring import Declaration, Preview, preview, specify
from .deletion import deleted
from .doctor import Diagnosis, doctor
from .folders import unreadable
from .following.follower import Follower, follower
from .handles import Cluster, Result, Run
from .planning.lifetimes import Lifetimes, lifetimes
from .planning.plans import plan
from .project.images import Build, ImageList, build_image, delete_image, images
from .project.offers import Offers, catalog
from .project.orphans import Orphan, OrphanRule, Sweep, sweep
from .project.weather import Weather
from .runs import run, runs, train

__all__ = [
    "Build",
    "Cluster",
    "Declaration",
    "Diagnosis",
    "Follower",
    "ImageList",
    "Lifetimes",
    "Offers",
    "Orphan",
    "OrphanRule",
    "Preview",
    "Result",
    "Run",
    "Sweep",
    "Weather",
    "attach",
    "build_image",
    "catalog",
    "cluster",
    "clusters",
    "declare",
    "delete_image",
    "deleted",
    "doctor",
    "follower",
    "images",
    "lifetimes",
    "plan",
    "preview",
    "run",
    "runs",
    "specify",
    "sweep",
    "train",
    "unreadable",
]
