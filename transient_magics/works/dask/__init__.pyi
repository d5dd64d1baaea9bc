from .handle import Dask as Dask
