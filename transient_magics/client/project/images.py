"""Images that VMs boot from ready to work: bake one, list and delete them, follow a build.

A build is a program of its own that outlives this process; its folder has what it is to do and a
journal of what it does. What a project has is asked of Compute Engine, by a program of the
controller's.
"""

from __future__ import annotations

import json
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

_LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Build:
    """A build that was begun on this machine, under way or over."""

    name: str

    @property
    def directory(self) -> Path:
        """The folder with spec.json, journal.jsonl and controller.log."""
        return places.build(self.name)

    @property
    def spec(self) -> ImageSpec:
        """What was declared."""
        return ImageSpec.from_dict(
            json.loads((self.directory / layout.SPEC).read_text(encoding="utf-8"))
        )

    @property
    def events(self) -> list[Event]:
        """What happened so far."""
        return read(self.directory / layout.JOURNAL)

    @property
    def state(self) -> str:
        """`building`, `built`, `failed`, or `interrupted` (its program is gone without a word)."""
        return _state(self.events, self.directory, self.spec)

    @property
    def reason(self) -> str:
        """Why it failed; nothing where it did not."""
        last = [event.reason for event in self.events if isinstance(event, events.ImageFailed)]
        if last:
            return last[-1]
        return ""

    @property
    def _why(self) -> str:
        if self.spec.project:
            option = f" --project {self.spec.project}"
        else:
            option = ""
        return (
            self.reason
            or f"it was interrupted; build it again, or `transient cluster sweep{option} --yes` deletes its VM"
        )

    def steps(self) -> Iterator[str]:
        """What it does, clause by clause as it comes, until it is over."""
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
            time.sleep(_LOOK_SECONDS)

    def wait(self, timeout: float | None = None) -> None:
        """Block until the image is there. Raises CloudError where there is none (after `timeout`
        seconds).
        """
        if timeout is None:
            deadline = None
        else:
            deadline = time.monotonic() + timeout
        while (state := self.state) == "building":
            if deadline is not None and time.monotonic() > deadline:
                raise CloudError(f"The image {self.name} is not there after {timeout:g} s")
            time.sleep(_LOOK_SECONDS)
        if state != "built":
            raise CloudError(f"The build of {self.name} failed: {self._why}")

    def __str__(self) -> str:
        state = self.state
        last = self.events[-1:]
        age = render_duration(time.time() - self.spec.declared_at)
        if state == "building":
            if last and isinstance(last[0], events.ImageStep):
                doing = last[0].what
            else:
                doing = "starting"
            return f"{self.name} is being built, for {age}: {doing}"
        if state == "built":
            return f"{self.name} is built"
        return f"The build of {self.name} failed: {self._why}"

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class ImageList:
    """The images of our families of a project (None: the emulator), and builds that are not done.

    `images`: one dict each: name, created (seconds since 1970), ready, disk_gb, stored_gb (what is
    billed), base, gpu, for (training or jobs), lock (hash of the locks), current (whether these are
    the locks of this version).
    """

    project: str | None
    images: tuple[dict[str, Any], ...]
    builds: tuple[Build, ...]

    @property
    def rows(self) -> list[dict[str, str]]:
        """What a table shows of each image."""
        return [
            {
                "image": image["name"] if image["ready"] else f"{image['name']} (not ready)",
                "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(image["created"])),
                "size": f"{image['stored_gb']:.1f} GB",
                "disk": f"{image['disk_gb']} GB",
                "base": image["base"],
                "for": image["for"],
                "driver": "NVIDIA" if image["gpu"] else "none",
                "lock": f"{image['lock']} ({'this version' if image['current'] else 'another version'})",
            }
            for image in self.images
        ]

    def __str__(self) -> str:
        if self.project:
            where = f"project {self.project}"
        else:
            where = "the emulator"
        rows = self.rows
        if rows:
            shown = text.table(
                [key.upper() for key in rows[0]], [tuple(row.values()) for row in rows]
            )
        else:
            shown = [f"No image in {where}. For example: %transient_image build"]
        return "\n".join([*shown, *map(str, self.builds)])

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
    """Begin to bake an image and return at once; on Google Cloud it takes some 10 to 20 minutes.

    `base`: a full or partial URL of an image or a family (Debian 12); `gpu`: with an NVIDIA driver;
    `purpose`: `training`, or `jobs`, without TensorFlow; `disk_gb`: of the disk, and of VMs of
    clusters that boot from the image. Without a `project` it is made on the emulator. Raises
    DeclarationError for what cannot be baked so, and ClusterError while an image of this name is
    being baked.
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
            f"The image {name} is being built already",
            fix="%transient_image list shows how far it is.",
        )
    shutil.rmtree(directory, ignore_errors=True)
    places.private(directory)
    (directory / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    commands.start("programs.bake", directory)
    return Build(name)


def images(project: str | None = None) -> ImageList:
    """The images of `project` (None: of the emulator). Raises CloudError."""
    found = run_program("queries", "Listing images", "images", *([project] if project else []))[
        "images"
    ]
    return ImageList(
        project, tuple(found), tuple(build for build in _builds(project) if build.state != "built")
    )


def delete_image(name: str, project: str | None = None) -> str:
    """Delete an image of our families, or forget a build that failed; says which. Raises
    CloudError.
    """
    name = parse_name(name, "the image's name")
    known = next((build for build in _builds(project) if build.name == name), None)
    if known and known.state == "building":
        raise ClusterError(f"The image {name} is being built", fix="Wait until it is there.")
    answer = run_program(
        "queries", "Deleting the image", "delete-image", name, *([project] if project else [])
    )
    if not known and not answer["deleted"]:
        fix = "" if answer["names"] else "None was baked here."
        raise unknown(
            "image",
            name,
            answer["names"],
            where=project or "the emulator",
            otherwise=fix,
            error=CloudError,
        )
    if known:
        shutil.rmtree(known.directory, ignore_errors=True)
    if answer["deleted"]:
        return f"The image {name} is deleted."
    return f"The build of {name} that failed is forgotten."


def build_names() -> list[str]:
    """The names of images that were built on this machine, the latest first."""
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
    # It may have said its last word between the two looks.
    again = read(directory / layout.JOURNAL)
    if len(again) == len(found):
        return "interrupted"
    return _state(again, directory, spec)


def _free_name(gpu: bool, purpose: str, now: float) -> str:
    kind = f"{'' if purpose == TRAINING else f'-{purpose}'}{'' if gpu else '-cpu'}"
    return f"transient-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}{kind}"
