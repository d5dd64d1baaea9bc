"""The chief of a run: who trains, under which number, when to save, and when the run ends.

`state` decides, from `events` to instructions, with its parts `workers`, `blocks`, `saving`,
`progress`, `speed_alarm` and `stall_turns`. `chief` carries the instructions out, with sockets,
files and TensorFlow's sessions. `programs` runs other processes beside the training.
"""

from __future__ import annotations
