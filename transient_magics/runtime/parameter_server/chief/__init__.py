"""Who trains, under which number, when a checkpoint is written, when a run has ended.

`state` decides, purely, from `events` to instructions; its parts are `batches`, `saving`,
`progress`, `speed_alarm`. `chief` does it, at sockets, files and TensorFlow's sessions.
"""

from __future__ import annotations
