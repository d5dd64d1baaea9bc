"""The process of one worker: it copies the data, builds its graph, and steps until it is told to
leave.

`session` is its training, `chief_link` its connection with the chief, `meter` what it measures.
"""

from __future__ import annotations
