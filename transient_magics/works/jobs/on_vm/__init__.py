"""The runner of a job's command on a VM: a process for each job, of the standard library alone.

`python -m transient_magics.works.jobs.on_vm` starts it. It limits the command's memory and output,
and packs and unpacks the folder that the job keeps.
"""
