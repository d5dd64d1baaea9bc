"""Bags of jobs: a function at many points, and a surrogate of its results."""
