"""A Dask cluster on a cluster's VMs, and its client in this process. Dask is imported where a client is asked for."""
