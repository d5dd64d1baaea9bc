"""Bags of jobs: when each begins, and why it ends (`decisions`, pure); how that is carried out (`conduct`).

What a bag computes where, its driver decides on a VM (`driver`, `bags.core`).
"""
