"""The process that runs a job's command on a VM: started and ended, bounded, its folder packed and unpacked.

`python -m transient_magics.runtime.jobs`, a process for each job. Standard library only.
"""
