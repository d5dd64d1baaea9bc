"""Compute Engine on this machine: the same REST API, metadata servers, and VMs that are processes.

The emulator is a process of its own (`python -m transient_emulator`). The product finds, starts and
asks it through `transient_magics.emulator` alone. Importing this package starts nothing.
"""
