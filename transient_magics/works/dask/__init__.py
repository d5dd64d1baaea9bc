"""Dask clusters on VMs, and their clients in this process.

Dask is imported when the first client is created.
"""
