"""Numbers before money: what a cluster will take, cost and risk. NumPy and SciPy are imported only in here.

Raises PlanningError when imported where one of them is missing.
"""

from ..errors import PlanningError

try:
    import numpy  # noqa: F401
    import scipy  # noqa: F401
except ModuleNotFoundError as error:
    raise PlanningError(
        f"Planning needs {error.name}, which is not installed", fix="pip install 'transient-magics[planning]'"
    ) from None
