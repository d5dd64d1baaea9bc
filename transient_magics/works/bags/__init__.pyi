from .declare import declare_bag as declare_bag
from .handle import Bag as Bag
from .handle import bag as bag
