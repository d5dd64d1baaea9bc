"""Start-up scripts of VMs, rendered from templates: a stack with our lock, or the controller.

There are two stacks: for training, and for jobs alone, without TensorFlow (`purpose`). Only
`stack.sh.j2` defines how one is installed. A VM without a baked image runs it at its first boot
(`startup_script`). The VM that an image is made from also reports its progress (`image_script`). An
account that runs users' code is not an administrator. The VM of a controller (`controller_script`)
runs no users' code, and has another account.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import jinja2

from ...catalog import DRIVER
from ...spec import JOBS, TRAINING

_PACKAGE = "transient_magics"
_LOCKS = {TRAINING: ("training.txt", "tensor2tensor.txt"), JOBS: ("light.txt",)}
"""Locks by purpose of the cluster. The second one of training is installed without dependencies."""
_CUDA_LOCK = "cuda.txt"
"""Lock that is added to training with a GPU; jobs bring what their frameworks need."""
_CONTROLLER_LOCK = "controller.txt"
NAMESPACE = "transient-magics"
"""Namespace of the guest attributes in which start-up scripts report their progress."""
BOOTED = "/run/transient-booted"
"""File on a VM whose start-up script succeeded, until it boots again."""
_SUDOERS = "/etc/sudoers.d"
USER = "transient"
CONTROLLER_USER = "transient-controller"
"""Accounts on VMs: users' code runs under the first one."""


def startup_script(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """Return the script of a VM that works, whose report is the guest attribute `boot`.

    The script is idempotent: it keeps what is installed.
    """
    return _rendered("startup.sh.j2", with_gpu, purpose, "boot")


def image_script(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """Return the script of a VM for an image, whose report is the guest attribute `image`."""
    return _rendered("image.sh.j2", with_gpu, purpose, "image")


def account_script(*, with_gpu: bool, sudoers: str = _SUDOERS) -> str:
    """Return the script of a VM that works and whose image has the stack.

    `sudoers` is the folder of sudo's rules.
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
    """Return the script of the VM of a controller. It is idempotent, like the others."""
    requirements = _shipped("locks", _CONTROLLER_LOCK).read_text(encoding="utf-8").strip()
    return _template("controller.sh.j2").render(
        requirements=requirements, namespace=NAMESPACE, told_as="boot", booted=BOOTED
    )


def lock_hash(*, with_gpu: bool, purpose: str = TRAINING) -> str:
    """Return a digest of the pinned packages and the driver, for a label of images with them."""
    if with_gpu and purpose == TRAINING:
        names = (*_LOCKS[purpose], _CUDA_LOCK)
    else:
        names = _LOCKS[purpose]
    contents = [_shipped("locks", name).read_bytes() for name in names]
    if with_gpu:
        contents.append(f"NVIDIA {DRIVER.branch}".encode())
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12]


def pinned(purpose: str = TRAINING) -> dict[str, str]:
    """Return the version of every package that a VM has, by name."""
    locks = "\n".join(
        _shipped("locks", name).read_text(encoding="utf-8") for name in _LOCKS[purpose]
    )
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", locks, re.MULTILINE))


def controller_unit(cluster: str, user: str, environment: Mapping[str, str], log: str) -> str:
    """Return the systemd unit of a cluster's controller on a VM.

    systemd starts it again when it fails, and when the VM boots again.
    """
    return _template("controller.service.j2").render(
        cluster=cluster, user=user, environment=environment, log=log
    )


@cache
def _template(name: str) -> jinja2.Template:
    """Return a template, compiled once: that takes longer than all else in a request for a VM."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_shipped("templates", name).parent),
        undefined=jinja2.StrictUndefined,
        # These are shell scripts and settings.
        autoescape=False,
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
    """Return a file of a top-level folder.

    The folder is in the package when installed from a wheel, and beside it in a checkout.
    """
    package = Path(str(resources.files(_PACKAGE)))
    installed = package / f"_{folder}" / name
    if installed.exists():
        return installed
    return package.parent / folder / name
