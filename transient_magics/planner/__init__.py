"""Numbers before money: what a cluster will take, cost and risk. NumPy and SciPy are imported only
in here.

Raises PlanError when imported where one of them is missing.
"""

from ..errors import PlanError, install_extra

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise PlanError(f"Planning needs {error.name}", fix=install_extra("planning")) from None
