"""Which image VMs boot from where the user named none: the newest that carries the very packages of
our lock.

Only one that was built from this machine: an image's labels say what its maker wants, and what is
in it runs with the cluster's keys. Its id was noted when it was built.

A cluster with GPUs needs one with a driver. One without GPUs takes what there is, and workers with
GPUs that a resize brings boot from plain Debian then (see `ClusterSpec.image_for_gpus`).
"""

from __future__ import annotations

from functools import partial

from ... import places
from ...catalog import accelerator
from ...cloud import ComputeEngine
from ...errors import AccessError, CredentialsError
from ...journal import events, read
from ...protocol import layout
from ...spec import JOBS, TRAINING, ClusterSpec
from .startup import lock_hash

_INSTALL = "VMs boot from Debian 12 and install {} at their first boot"
_INSTALLING = {TRAINING: "TensorFlow", JOBS: "Python packages"}
_INSTALLED = "an image that has it"


def _built_here() -> set[str]:
    """The ids of images that this machine built."""
    journals = [read(path) for path in places.builds().glob(f"[a-z]*/{layout.JOURNAL}")]
    return {
        event.image_id
        for journal in journals
        for event in journal
        if isinstance(event, events.ImageBuilt)
    } - {""}


def to_be_chosen(spec: ClusterSpec) -> bool:
    """Whether an image is to be looked for: emulated VMs have the stack anyway."""
    return not spec.emulated and not spec.image


async def choose(spec: ClusterSpec, engine: ComputeEngine) -> events.ClusterImageChosen:
    """The choice, from one request. Who may not list images goes without; else its failure is a
    CloudError.
    """
    with_gpu = any(accelerator(group.accelerator).compute_engine_name for group in spec.groups)
    install = _INSTALL.format(_INSTALLING[spec.purpose])
    try:
        found = await engine.images.fitting(
            partial(lock_hash, purpose=spec.purpose), with_gpu=with_gpu
        )
    except CredentialsError:
        raise  # says nothing about the images
    except AccessError as error:
        return events.ClusterImageChosen(image="", why=f"{install} ({error.what})")
    ours = _built_here()
    image = next((each for each in found if each.id in ours), None)
    if image is None:
        if spec.purpose == TRAINING:
            option = ""
        else:
            option = f" --for {spec.purpose}"
        better = f"%transient_image build{option} bakes {_INSTALLED}"
        if found:
            better = f"{found[0].name} says to be {_INSTALLED}, but was not built from here: --image {found[0].name}"
        return events.ClusterImageChosen(image="", why=f"{install} ({better})")
    return events.ClusterImageChosen(
        image=image.name, why="it carries the stack already", gpu=image.with_gpu
    )
