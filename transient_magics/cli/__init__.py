"""The words that people type, the same in a cell and in a terminal: options, help, what each verb
does.

`options` declares, `arguments` reads. A verb's act (`verbs`) returns a value that shows itself. The
`transient` program (`program`) and the magics choose how to show it, and how to wait.
"""
