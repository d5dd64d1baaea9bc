"""The process of one worker: it copies the data, builds its graph, and steps until it is stopped.

`session` has the loop of its training, `steps` a single step, `chief_link` its connection to the
chief, and `meter` its measurements.
"""

from __future__ import annotations
