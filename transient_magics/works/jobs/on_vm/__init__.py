"""The process that runs a job's command on a VM: started and ended, bounded, its folder packed and
unpacked.

`python -m transient_magics.works.jobs.on_vm`, a process for each job. Standard library only.
"""
