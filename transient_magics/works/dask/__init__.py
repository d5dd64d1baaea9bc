"""Dask clusters on a cluster's VMs: decided, given to agents with certificates of their own, followed, ended."""
