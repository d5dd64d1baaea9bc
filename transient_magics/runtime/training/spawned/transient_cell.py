"""The cell of a run in a process that the cell has started, which imports the module of a function
by its name.
"""

from transient_magics.runtime.training import usercode

usercode.run_again()
