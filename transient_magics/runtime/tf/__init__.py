"""TensorFlow apart from any model: placement, sessions, graph mode, partial imports, `==`."""

from __future__ import annotations
