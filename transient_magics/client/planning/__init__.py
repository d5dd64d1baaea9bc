"""Plans of clusters that are not declared yet, forecasts of running runs, and lifetimes of VMs.

It converts the user's options into the planner's input: a workload (published, or measured by your
own runs), a cluster and lifetimes. NumPy and SciPy are loaded at the first use.
"""
