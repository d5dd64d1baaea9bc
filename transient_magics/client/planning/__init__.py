"""Numbers before money: plans of clusters that are not declared yet, forecasts of runs that go on,
lifetimes of VMs.

What the user names becomes what the planner computes with: a workload (published, or learnt from
your own runs), a cluster, and lifetimes. NumPy and SciPy are loaded when the first of these is
asked for.
"""
