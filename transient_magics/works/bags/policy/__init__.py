"""Policies for job placement, checkpoints, VM reuse and VM types, and their simulation."""
