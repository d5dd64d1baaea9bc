"""Magics of notebooks: `%transient_cluster`, `%%train`, their completion, and `%load_ext`.

A magic parses its line (`cli.arguments`), calls the client and shows a panel. It waits only with
`--wait`.
"""

from .load import load, unload

__all__ = ["load", "unload"]
