"""From what the user declares to the frozen ClusterSpec; nothing is created here.

`check_declaration` refuses contradictions. `specify` fills in zones, machine types and prices of
the catalog. `preview` shows what would be created, and the answers of Google.
"""

from .declaration import MODELS, Declaration, refuse_far, refuse_on_demand, refuse_unreachable
from .dry_run import Preview, Relocation, preview
from .specification import relocated, resized, specify, widened, with_preparation

__all__ = [
    "MODELS",
    "Declaration",
    "Preview",
    "Relocation",
    "preview",
    "refuse_far",
    "refuse_on_demand",
    "refuse_unreachable",
    "relocated",
    "resized",
    "specify",
    "widened",
    "with_preparation",
]
