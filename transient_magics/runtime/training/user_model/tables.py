"""Lookup tables of preprocessing layers (StringLookup, TextVectorization, ...) in graphs.

A layer creates its table outside of graphs when it receives its vocabulary, and a graph cannot read
that table. So each graph gets a table of its own with the same entries, beside the operations that
read it and never on a parameter server. Its entries are constants of the graph. A session runs
`tf.tables_initializer()` before it reads them.
"""

from __future__ import annotations

from typing import Any

_TABLES = "_transient_tables"
"""Attribute of a graph: its tables by the identities of the tables that they repeat."""


def repeat_in_graphs() -> None:
    """Let graphs read tables that were made outside of them. Call it once per process."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import lookup_ops

    kind: Any = lookup_ops.StaticHashTable
    handle_of = kind.resource_handle.fget

    def resource_handle(self: Any) -> Any:
        made = handle_of(self)
        if context.executing_eagerly() or not isinstance(made, ops.EagerTensor):
            return made
        # Functions of a graph (of datasets and loops) receive the table from it.
        with ops.init_scope():
            if context.executing_eagerly():
                return made
            graph = ops.get_default_graph()
            repeated = getattr(graph, _TABLES, None)
            if repeated is None:
                repeated = {}
                setattr(graph, _TABLES, repeated)
            if id(self) not in repeated:
                with ops.device("CPU:0"):
                    repeated[id(self)] = self, kind(self._initializer, self._default_value)
            return handle_of(repeated[id(self)][1])

    kind.resource_handle = property(resource_handle)
