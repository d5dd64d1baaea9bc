from .handle import Sleep as Sleep
from .handle import declare_sleep as declare_sleep
