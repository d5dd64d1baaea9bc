"""What puts programs onto a VM, rendered from templates: a stack with our own lock inside, the
controller.

There are two stacks: for training, and for jobs alone, without TensorFlow (`purpose`).
`stack.sh.j2` alone says how one is installed. A VM without a baked image runs it at its first boot
(`startup_script`), the VM that an image is made from tells besides how far it is (`image_script`).
Wherever users' code runs, its account is no administrator; on the VM that a controller has for
itself (`controller_script`) none runs, and the account is another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import jinja2

from ...catalog import DRIVER
from ...spec import JOBS, TRAINING

_PACKAGE = "transient_magics"
_LOCKS = {TRAINING: ("training.txt", "tensor2tensor.txt"), JOBS: ("light.txt",)}
"""By what a cluster is for. Of the second one of training no dependencies are installed."""
_CUDA_LOCK = "cuda.txt"
"""Added to training with a GPU: jobs bring what their own frameworks need beside the driver."""
_CONTROLLER_LOCK = "controller.txt"
NAMESPACE = "transient-magics"
"""Of the guest attributes in which start-up scripts tell how far they are."""
BOOTED = "/run/transient-booted"
"""On a VM whose start-up script has ended well, until it boots again."""
_SUDOERS = "/etc/sudoers.d"
USER = "transient"
CONTROLLER_USER = "transient-controller"
"""The accounts on VMs: users' code runs under the first one."""


def startup_script(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """The script of a VM that works; its word is the guest attribute `boot`. Idempotent: what is
    there stays.
    """
    return _rendered("startup.sh.j2", with_gpu, purpose, "boot")


def image_script(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """The script of a VM that an image is made from; its word is the guest attribute `image`."""
    return _rendered("image.sh.j2", with_gpu, purpose, "image")


def account_script(*, with_gpu: bool, sudoers: str = _SUDOERS) -> str:
    """The script of a VM that works and whose image carries the stack. `sudoers`: the folder of
    sudo's rules.
    """
    return _template("account.sh.j2").render(
        user=USER,
        sudoers=sudoers,
        with_gpu=with_gpu,
        namespace=NAMESPACE,
        told_as="boot",
        booted=BOOTED,
    )


def controller_script() -> str:
    """The script of the VM that a controller has for itself. Idempotent, like the others."""
    requirements = _shipped("locks", _CONTROLLER_LOCK).read_text(encoding="utf-8").strip()
    return _template("controller.sh.j2").render(
        requirements=requirements, namespace=NAMESPACE, told_as="boot", booted=BOOTED
    )


def lock_hash(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """Return a digest of the pinned packages and the driver, short enough for a label of the images
    that carry them.
    """
    if with_gpu and purpose == TRAINING:
        names = (*_LOCKS[purpose], _CUDA_LOCK)
    else:
        names = _LOCKS[purpose]
    contents = [_shipped("locks", name).read_bytes() for name in names]
    if with_gpu:
        contents.append(f"NVIDIA {DRIVER.branch}".encode())
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


def pinned(purpose: str = TRAINING) -> dict[str, str]:
    """Name and version of every package that a VM has."""
    locks = "\n".join(
        _shipped("locks", name).read_text(encoding="utf-8") for name in _LOCKS[purpose]
    )
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", locks, re.MULTILINE))


def controller_unit(cluster: str, user: str, environment: Mapping[str, str], log: str) -> str:
    """The systemd unit of a cluster's controller on a VM: started again when it fails, and when the
    VM boots again.
    """
    return _template("controller.service.j2").render(
        cluster=cluster, user=user, environment=environment, log=log
    )


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_shipped("templates", name).parent),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # shell scripts and settings
        trim_blocks=True,
    )
    return environment.get_template(name)


def _rendered(template: str, with_gpu: bool, purpose: str, told_as: str) -> str:
    requirements, *others = (
        _shipped("locks", name).read_text(encoding="utf-8").strip() for name in _LOCKS[purpose]
    )
    trains = purpose == TRAINING
    return _template(template).render(
        user=USER,
        sudoers=_SUDOERS,
        with_gpu=with_gpu,
        driver=DRIVER,
        namespace=NAMESPACE,
        told_as=told_as,
        booted=BOOTED,
        stack=f"{lock_hash(with_gpu=with_gpu, purpose=purpose)}-{'gpu' if with_gpu else 'cpu'}",
        what="the training stack" if trains else "the stack for jobs",
        packages="TensorFlow and Tensor2Tensor" if trains else "the packages for jobs",
        requirements=requirements,
        tensor2tensor=others[0] if trains else "",
        cuda=_shipped("locks", _CUDA_LOCK).read_text(encoding="utf-8").strip()
        if with_gpu and trains
        else "",
    )


def _shipped(folder: str, name: str) -> Path:
    """A file of a top-level folder: inside the package when installed from a wheel, beside it in a
    checkout.
    """
    package = Path(str(resources.files(_PACKAGE)))
    installed = package / f"_{folder}" / name
    if installed.exists():
        return installed
    return package.parent / folder / name
