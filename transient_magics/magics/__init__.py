"""What a cell can say: `%transient_cluster`, `%%train`, their completion, and what `%load_ext` sets
up.

A magic reads its line (`cli.arguments`), hands over to the client, and shows a panel. It waits only
where asked to.
"""

from .load import load, unload

__all__ = ["load", "unload"]
