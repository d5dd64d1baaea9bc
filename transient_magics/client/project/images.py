"""Images from which VMs boot sooner: build, list and delete them, and follow a build.

A build is a process that outlives this one. Its folder has its declaration and its journal. Compute
Engine is queried by a program of the controller.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import places
from ...catalog import check_zone, default_zone
from ...errors import CloudError, ClusterError, unknown
from ...journal import Event, events, read
from ...journal.lock import starting
from ...protocol import layout
from ...spec import JOBS, TRAINING, ImageSpec, parse_name, render_duration
from ...spec.image import DEBIAN
from .. import commands, text
from ..commands import run_program

_POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Build:
    """A build of an image on this machine.

    Attributes
    ----------
    name : str
        The name of the image.

    Examples
    --------
    >>> build = tm.build_image("training", project="my-project")
    >>> build.wait()
    """

    name: str

    @property
    def directory(self) -> Path:
        """The folder with spec.json, journal.jsonl and controller.log."""
        return places.build(self.name)

    @property
    def spec(self) -> ImageSpec:
        """The declaration."""
        return ImageSpec.from_dict(
            json.loads((self.directory / layout.SPEC).read_text(encoding="utf-8"))
        )

    @property
    def events(self) -> list[Event]:
        """The events so far."""
        return read(self.directory / layout.JOURNAL)

    @property
    def state(self) -> str:
        """`building`, `built`, `failed`, or `interrupted` (its process died)."""
        return _state(self.events, self.directory, self.spec)

    @property
    def reason(self) -> str:
        """Why the build failed; empty if it did not fail."""
        last = [event.reason for event in self.events if isinstance(event, events.ImageFailed)]
        if last:
            return last[-1]
        return ""

    @property
    def _why(self) -> str:
        if self.reason:
            return self.reason
        sweep = "transient cluster sweep"
        if self.spec.project:
            sweep += f" --project {self.spec.project}"
        return f"it was interrupted; build it again, or delete its VM with `{sweep} --yes`"

    def steps(self) -> Iterator[str]:
        """Yield the steps of the build as clauses until it ends."""
        shown = 0
        while True:
            state = self.state
            found = self.events
            for event in found[shown:]:
                if isinstance(event, events.ImageStep):
                    yield event.what
            shown = len(found)
            if state != "building":
                return
            time.sleep(_POLL_SECONDS)

    def wait(self, timeout: float | None = None) -> None:
        """Block until the image is built.

        Parameters
        ----------
        timeout
            The time limit in seconds (default: none).

        Raises
        ------
        CloudError
            The build failed, or the time limit has passed.
        """
        deadline = math.inf
        if timeout is not None:
            deadline = time.monotonic() + timeout
        while (state := self.state) == "building":
            if time.monotonic() > deadline:
                raise CloudError(
                    f"The image {self.name} is not built after {timeout:g} s",
                    fix="The build continues; wait again.",
                )
            time.sleep(_POLL_SECONDS)
        if state != "built":
            raise CloudError(
                f"The build of {self.name} failed: {self._why}",
                fix=f"See {self.directory / layout.CONTROLLER_LOG}, then build it again.",
            )

    def __str__(self) -> str:
        state = self.state
        last = self.events[-1:]
        age = render_duration(time.time() - self.spec.declared_at)
        if state == "building":
            step = "starting"
            if last and isinstance(last[0], events.ImageStep):
                step = last[0].what
            return f"{self.name} is being built, for {age}: {step}"
        if state == "built":
            return f"{self.name} is built"
        return f"The build of {self.name} failed: {self._why}"

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class ImageList:
    """The images of a project that transient_magics built, and builds that are not complete.

    Attributes
    ----------
    project : str or None
        The project; None for the emulator.
    images : tuple of dict
        For each image: name, created (seconds since 1970), ready, disk_gb, stored_gb (the billed
        size), base, gpu, for (training or jobs), lock (the hash of its packages), current (whether
        these are the packages of this version).
    builds : tuple of Build
        Builds that are in progress or failed.

    Examples
    --------
    >>> [image["name"] for image in tm.images("my-project").images]
    """

    project: str | None
    images: tuple[dict[str, Any], ...]
    builds: tuple[Build, ...]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The rows of the table."""
        return [
            {
                "image": image["name"] if image["ready"] else f"{image['name']} (not ready)",
                "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(image["created"])),
                "size": f"{image['stored_gb']:.1f} GB",
                "disk": f"{image['disk_gb']} GB",
                "base": image["base"],
                "for": image["for"],
                "driver": "NVIDIA" if image["gpu"] else "none",
                "lock": f"{image['lock']} "
                f"({'this version' if image['current'] else 'another version'})",
            }
            for image in self.images
        ]

    def __str__(self) -> str:
        rows = self.rows
        if rows:
            head = [key.upper() for key in rows[0]]
            lines = text.table(head, [tuple(row.values()) for row in rows])
        elif self.project:
            lines = [f"No image in project {self.project}. Build one: %transient_image build"]
        else:
            lines = ["No image on the emulator. Build one: %transient_image build"]
        return "\n".join([*lines, *map(str, self.builds)])

    def __repr__(self) -> str:
        return str(self)


@places.reporting()
def build_image(
    name: str | None = None,
    *,
    project: str | None = None,
    zone: str | None = None,
    base: str | None = None,
    gpu: bool = True,
    purpose: str = TRAINING,
    machine_type: str = "n1-standard-4",
    disk_gb: int = 50,
    network: str = "",
    subnet: str = "",
    external_ip: bool = True,
) -> Build:
    """Start the build of an image and return immediately.

    On Google Cloud, a build takes 10 to 20 minutes.

    Parameters
    ----------
    name
        The name of the image (default: `transient-` and the time).
    project
        The project (default: the emulator).
    zone
        The zone of the build VM (default: the best of the catalog).
    base
        The URL of the image or image family to start from (default: Debian 12).
    gpu
        Whether to install an NVIDIA driver.
    purpose
        `training`, or `jobs` without TensorFlow.
    machine_type
        The machine type of the build VM.
    disk_gb
        The disk size of the build VM and of VMs that boot from the image, in GB.
    network, subnet
        The network of the build VM.
    external_ip
        Whether the build VM has an external address.

    Returns
    -------
    Build
        The build.

    Raises
    ------
    DeclarationError
        An option is invalid.
    ClusterError
        An image of this name is being built.

    Examples
    --------
    >>> tm.build_image("training", project="my-project").wait()
    """
    zone = zone or default_zone(["cpu"])
    check_zone(zone, "cpu")
    now = time.time()
    if name:
        name = parse_name(name, "the image's name")
    else:
        name = _free_name(gpu, purpose, now)
    spec = ImageSpec(
        name=name,
        zone=zone,
        declared_at=now,
        project=project,
        base=base or DEBIAN,
        gpu=gpu,
        machine_type=machine_type,
        disk_gb=disk_gb,
        network=network,
        subnet=subnet,
        external_ip=external_ip,
        purpose="jobs" if purpose == JOBS else "training",
        id=secrets.token_hex(4),
    )
    directory = places.build(name)
    if (directory / layout.SPEC).exists() and Build(name).state == "building":
        raise ClusterError(
            f"The image {name} is already being built",
            fix="%transient_image list shows its progress.",
        )
    shutil.rmtree(directory, ignore_errors=True)
    places.private(directory)
    (directory / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    commands.start("programs.bake", directory)
    return Build(name)


def images(project: str | None = None) -> ImageList:
    """List images of a project, and builds that are not complete.

    Parameters
    ----------
    project
        The project (default: the emulator).

    Returns
    -------
    ImageList
        The images and builds, shown as a table.

    Raises
    ------
    CloudError
        The images cannot be listed.

    Examples
    --------
    >>> tm.images("my-project")
    """
    of_project = [project] if project else []
    found = run_program("queries", "Listing images", "images", *of_project)["images"]
    builds = tuple(build for build in _builds(project) if build.state != "built")
    return ImageList(project, tuple(found), builds)


def delete_image(name: str, project: str | None = None) -> str:
    """Delete an image, or the record of a failed build.

    Parameters
    ----------
    name
        The name of the image.
    project
        The project (default: the emulator).

    Returns
    -------
    str
        A sentence about what was deleted.

    Raises
    ------
    CloudError
        The image is unknown, or cannot be deleted.
    ClusterError
        The image is being built.

    Examples
    --------
    >>> tm.delete_image("training", "my-project")
    """
    name = parse_name(name, "the image's name")
    build = next((build for build in _builds(project) if build.name == name), None)
    if build and build.state == "building":
        raise ClusterError(f"The image {name} is being built", fix="Wait until it is ready.")
    of_project = [project] if project else []
    answer = run_program("queries", "Deleting the image", "delete-image", name, *of_project)
    if not build and not answer["deleted"]:
        fix = "" if answer["names"] else "There are no images."
        raise unknown(
            "image",
            name,
            answer["names"],
            where=project or "the emulator",
            otherwise=fix,
            error=CloudError,
        )
    if build:
        shutil.rmtree(build.directory, ignore_errors=True)
    if answer["deleted"]:
        return f"The image {name} is deleted."
    return f"The record of the failed build of {name} is deleted."


def build_names() -> list[str]:
    """Return the names of images that were built from this machine, latest first."""
    found = sorted(
        places.builds().glob(f"[a-z]*/{layout.SPEC}"),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    return [path.parent.name for path in found]


def _builds(project: str | None) -> list[Build]:
    return [build for build in map(Build, build_names()) if build.spec.project == project]


def _state(found: list[Event], directory: Path, spec: ImageSpec) -> str:
    for event in reversed(found):
        if isinstance(event, events.ImageBuilt):
            return "built"
        if isinstance(event, events.ImageFailed):
            return "failed"
    if starting(directory, spec.declared_at) or commands.in_charge(directory):
        return "building"
    # The process may have recorded its end after the first read.
    again = read(directory / layout.JOURNAL)
    if len(again) == len(found):
        return "interrupted"
    return _state(again, directory, spec)


def _free_name(gpu: bool, purpose: str, now: float) -> str:
    name = f"transient-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}"
    if purpose != TRAINING:
        name += f"-{purpose}"
    if not gpu:
        name += "-cpu"
    return name
