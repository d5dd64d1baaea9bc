"""Plans: the expected time, cost and risk of a cluster, before any money is spent.

Only this package imports NumPy and SciPy. Its import raises PlanError if one of them is missing.
"""

from ..errors import PlanError, install_extra

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise PlanError(f"Planning needs {error.name}", fix=install_extra("planning")) from None
