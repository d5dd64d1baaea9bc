"""The clients of Dask clusters on VMs. Dask is imported when the first client is made."""
