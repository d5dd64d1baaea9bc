"""What the user declares, and the frozen ClusterSpec that it becomes: nothing is made here.

`specify` fills in what the catalog knows (zones, machine types, prices), after `refusals` has
looked for what cannot be; `preview` shows what would be created, and what Google says about it.
"""

from .declaration import MODELS, Declaration
from .dry_run import Preview, preview
from .refusals import refuse_far, refuse_on_demand, refuse_unreachable
from .relocation import Relocation
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
