"""Measurements of where the time of a step goes: a run that trains nothing, and its report."""
