"""The driver of a bag: what it decides (`core`, pure), and the process that carries it out beside Dask's scheduler, on
the VM of the first parameter server, under the account that runs users' code (`driver`)."""
