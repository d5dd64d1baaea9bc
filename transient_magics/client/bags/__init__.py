"""Bags of jobs on a cluster: declaring them. What one holds of a bag is `handles.bag`."""
