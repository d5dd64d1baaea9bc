"""Which image VMs boot from where the user named none: the project's newest that carries the very packages of our lock.

A cluster with GPUs needs one with a driver. One without GPUs takes what there is, and workers with GPUs that a resize
brings boot from plain Debian then (see `ClusterSpec.image_for_gpus`).
"""

from __future__ import annotations

from ..catalog import accelerator
from ..cloud import ComputeEngine
from ..errors import AccessError, CredentialsError
from ..journal import events
from ..spec import ClusterSpec
from .startup import lock_hash

_INSTALL = "VMs boot from Debian 12 and install TensorFlow at their first boot"


def to_be_chosen(spec: ClusterSpec) -> bool:
    """Whether an image is to be looked for: emulated VMs have the stack anyway."""
    return not spec.emulated and not spec.image


async def choose(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterImageChosen:
    """The choice, from one request. Who may not list images goes without; else its failure is a CloudError."""
    with_gpu = any(accelerator(group.accelerator).compute_engine_name for group in spec.groups)
    try:
        image = await engine.images.fitting(lock_hash(), with_gpu=with_gpu)
    except CredentialsError:
        raise  # says nothing about the images
    except AccessError as error:
        return events.ClusterImageChosen(image="", why=f"{_INSTALL} ({error.what})")
    if image is None:
        return events.ClusterImageChosen(
            image="", why=f"{_INSTALL} (%transient_image build bakes an image that has it)"
        )
    return events.ClusterImageChosen(image=image.name, why="it carries the stack already", gpu=image.with_gpu)
