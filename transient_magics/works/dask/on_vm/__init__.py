"""The parts of a Dask cluster on VMs: its scheduler, which knows of notices and faults, and a
worker of one VM.

dask.distributed does the work. What is ours: a notice is a time limit, a revocation is nobody's
fault, a crash is, and nothing is said but by TLS.
"""
