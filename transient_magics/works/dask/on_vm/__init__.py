"""The parts of a Dask cluster on VMs: the scheduler, and one worker on each VM.

dask.distributed does the work. These are added: a preemption notice is a time limit, a revocation is
not a fault of a task, a crash is, and all connections use TLS.
"""
