"""Handles of clusters and of their work: runs, studies, jobs, bags, Dask clusters and measurements of stalls.

A handle stores nothing. It reads the journal and sends commands to the controller, so any number of handles of the same
cluster or work, in any number of processes, show the same. `set_display` sets how handles are displayed.
"""

from ..shown import set_display
from .bag import Bag
from .cluster import Cluster
from .dask import Dask
from .handle import Handle
from .job import Job
from .run import Best, Result, Run
from .stalls import Stalls
from .study import Study, Trial
from .work import WorkList

__all__ = [
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
    "set_display",
]
