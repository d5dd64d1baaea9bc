"""Sleeps: work that sleeps on a VM, the example of a new kind of work."""
