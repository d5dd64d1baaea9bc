"""Sub-commands and options of cells and terminals.

`options` declares them, and `arguments` parses a line. The function of a verb (`verbs`) returns a
value that has a text form. The `transient` program (`program`) and the magics choose how to show
it, and how to wait.
"""
