"""Bags of jobs on a cluster: declaring them. What one holds of a bag is `handles.bag`.

Raises DeclarationError when imported where NumPy is missing.
"""

from ...errors import DeclarationError, install_extra

try:
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise DeclarationError(f"Bags need {error.name}", fix=install_extra("bags")) from None
