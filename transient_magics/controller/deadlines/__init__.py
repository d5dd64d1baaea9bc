"""Runs that have to be done in time: what a step is worth, and which workers are rented for it, and when."""
