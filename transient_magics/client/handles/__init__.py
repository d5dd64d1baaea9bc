"""Handles: a cluster, a run, a study, a job, a bag and a measure of stalls, as one holds them in a cell or a script.

A handle owns nothing. It reads the journal for what is, and sends commands to the controller for what should be, so any
number of them, in any number of processes, say the same. How a handle is displayed is set by `set_display`.
"""

from ..shown import set_display
from .bag import Bag
from .cluster import Cluster
from .job import Job
from .run import Best, Result, Run
from .stalls import Stalls
from .study import Study, Trial

__all__ = ["Bag", "Best", "Cluster", "Job", "Result", "Run", "Stalls", "Study", "Trial", "set_display"]
