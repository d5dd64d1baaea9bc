"""The start-up script of a VM without a baked image: installs Python's training stack from our own lock, once."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import jinja2

_PACKAGE = "transient_magics"


def startup_script(*, with_gpu: bool) -> str:
    """The script, with the lock inside it. Idempotent: a VM that has the stack is ready at once."""
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False).from_string(  # a shell script
        _shipped("templates", "startup.sh.j2").read_text()
    )
    return template.render(
        with_gpu=with_gpu,
        requirements=_shipped("locks", "training.txt").read_text(),
        tensor2tensor=_shipped("locks", "tensor2tensor.txt").read_text(),
    )


def _shipped(folder: str, name: str) -> Path:
    """A file of a top-level folder: inside the package when installed from a wheel, beside it in a checkout."""
    package = Path(str(resources.files(_PACKAGE)))
    installed = package / f"_{folder}" / name
    return installed if installed.exists() else package.parent / folder / name
