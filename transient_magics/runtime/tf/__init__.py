"""TensorFlow apart from any model: where variables are placed, sessions, graph mode, imports of
parts, `==`.
"""

from __future__ import annotations
