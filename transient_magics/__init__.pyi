from . import errors as errors
from .client import Best as Best
from .client import Build as Build
from .client import Cluster as Cluster
from .client import Comparison as Comparison
from .client import Declaration as Declaration
from .client import Diagnosis as Diagnosis
from .client import Handle as Handle
from .client import ImageList as ImageList
from .client import Lifetimes as Lifetimes
from .client import Measurement as Measurement
from .client import Offers as Offers
from .client import Result as Result
from .client import Runs as Runs
from .client import Weather as Weather
from .client import WorkList as WorkList
from .client import attach as attach
from .client import build_image as build_image
from .client import cluster as cluster
from .client import clusters as clusters
from .client import compare as compare
from .client import delete_image as delete_image
from .client import doctor as doctor
from .client import images as images
from .client import lifetimes as lifetimes
from .client import measure as measure
from .client import plan as plan
from .client import preview as preview
from .client import runs as runs
from .client import sweep as sweep
from .client import work as work
from .panels import declare as declare
from .works.bags import *
from .works.dask import *
from .works.jobs import *
from .works.runs import *
from .works.studies import *

def load_ipython_extension(ipython: object) -> None: ...
def unload_ipython_extension(ipython: object) -> None: ...
