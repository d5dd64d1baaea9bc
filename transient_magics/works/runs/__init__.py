"""Runs: training of one model, and measurements of where the time of a step goes."""
