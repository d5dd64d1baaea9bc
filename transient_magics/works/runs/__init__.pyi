from .declare import declare_stalls as declare_stalls
from .declare import train as train
from .handle import Run as Run
from .handle import run as run
from .stalls.handle import Stalls as Stalls
from .stalls.handle import stalls as stalls
