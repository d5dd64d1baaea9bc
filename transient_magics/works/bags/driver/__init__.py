"""The process of a bag's driver, beside Dask's scheduler on the VM of the first parameter server.

It runs under the account that runs users' code, and needs the whole package. What it decides is
`bags.core`.
"""
