"""The process of a bag's driver, which is also Dask's scheduler.

It runs on the VM of the first parameter server, under the account that runs users' code, and needs
the whole package. Its decisions are in `decisions`.
"""
