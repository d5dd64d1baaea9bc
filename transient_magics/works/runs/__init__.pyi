from .declare import declare_stalls as declare_stalls
from .declare import train as train
from .handle import Run as Run
from .handle import Stalls as Stalls
from .handle import run as run
from .handle import stalls as stalls
