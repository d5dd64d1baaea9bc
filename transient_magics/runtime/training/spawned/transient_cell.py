"""The cell of a run, in a process that the cell started.

Such a process imports the module of a function by its name, `transient_cell`.
"""

from transient_magics.runtime.training import usercode

usercode.run_again()
