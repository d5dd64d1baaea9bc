"""Pure decisions about the workers of a run with a deadline.

The controller carries them out, and plans simulate them. They import no NumPy, as controllers do
not.
"""
