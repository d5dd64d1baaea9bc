"""Images of the project that contain the training stack, and how a disk becomes one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from ..errors import AccessError, CloudError, GoneError
from ..spec import TRAINING
from ..spec.image import FAMILIES
from .calling.calls import PLAIN, Calls, limit

if TYPE_CHECKING:
    from google.cloud import compute_v1

LOCK_LABEL = "transient-magics-lock"
GPU_LABEL = "transient-magics-gpu"
BASE_LABEL = "transient-magics-base"
FOR_LABEL = "transient-magics-for"
_OURS = " OR ".join(f"family = {family}" for family in FAMILIES.values())
_ROLE = "Ask the project's owner for the role Compute Storage Admin (roles/compute.storageAdmin)."
_NAME = re.compile(r"(family/)?[a-z]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Image:
    """One image of the project.

    Attributes
    ----------
    disk_gb
        Smallest size of a disk made from it, in GB.
    stored_gb
        Billed size, in GB.
    id
        Never reused, unlike its name.
    """

    name: str
    created: datetime | None
    ready: bool
    disk_gb: int
    stored_gb: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    id: str = ""

    @property
    def lock(self) -> str:
        """The hash of the locks of its packages."""
        return self.labels.get(LOCK_LABEL, "")

    @property
    def with_gpu(self) -> bool:
        """Whether it contains an NVIDIA driver."""
        return self.labels.get(GPU_LABEL) == "yes"

    @property
    def purpose(self) -> str:
        """The purpose of clusters that boot from it are for."""
        return self.labels.get(FOR_LABEL, TRAINING)


class Lock(Protocol):
    """A function that returns the hash of the locks of an image, with or without GPU libraries."""

    def __call__(self, *, with_gpu: bool) -> str:
        """Return the hash of the locks."""
        ...


def image_url(text: str) -> str:
    """Return the partial URL of an image; `NAME` and `family/NAME` belong to the VM's project."""
    if _NAME.fullmatch(text):
        return f"global/images/{text}"
    return text


class Images:
    """The images of one project in our families."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project

    async def list(self) -> list[Image]:
        """Return all of them, the oldest first."""
        from google.cloud import compute_v1

        message = compute_v1.ListImagesRequest(project=self._project, filter=_OURS, max_results=500)
        images = self._calls.clients.images
        found = await self._calls.call(self._whole, lambda: list(images.list(message, **PLAIN)))
        return sorted(
            (_image(image) for image in found if image.family in FAMILIES.values()), key=_age
        )

    async def fitting(self, lock: Lock, *, with_gpu: bool) -> list[Image]:
        """Return the images labelled with our packages, the newest first, with one request.

        `with_gpu` asks for a driver, too. Any user who may create images can set these labels.
        """
        found = [
            image
            for image in await self.list()
            if image.ready and image.lock == lock(with_gpu=image.with_gpu)
        ]
        return [image for image in reversed(found) if image.with_gpu or not with_gpu]

    async def exists(self, name: str) -> bool:
        """Return whether the project has an image of that name in any family."""
        images = self._calls.clients.images
        try:
            await self._calls.call(
                self._place(name), lambda: images.get(project=self._project, image=name, **PLAIN)
            )
        except GoneError:
            return False
        return True

    async def make(
        self,
        name: str,
        *,
        disk: str,
        description: str,
        labels: Mapping[str, str],
        family: str,
        timeout: float = 1800.0,
    ) -> str:
        """Create an image of a family from a disk that no running VM uses; return its id.

        `disk` is a partial URL. Returns when the image is ready.
        """
        from google.cloud import compute_v1

        image = compute_v1.Image(
            name=name, family=family, source_disk=disk, description=description, labels=dict(labels)
        )
        message = compute_v1.InsertImageRequest(
            project=self._project, image_resource=image, request_id=str(uuid.uuid4())
        )
        images = self._calls.clients.images
        where = self._place(name)
        async with limit(timeout, "The image was not created", where):
            try:
                operation = await self._calls.call(
                    where, lambda: images.insert_unary(message, **PLAIN)
                )
                return str((await self._finish(where, operation)).target_id)
            except AccessError as error:
                raise _refused(error) from error

    async def delete(self, name: str, *, timeout: float = 300.0) -> None:
        """Delete an image. Raises GoneError if it does not exist."""
        from google.cloud import compute_v1

        message = compute_v1.DeleteImageRequest(
            project=self._project, image=name, request_id=str(uuid.uuid4())
        )
        images = self._calls.clients.images
        where = self._place(name)
        async with limit(timeout, "The image was not deleted", where):
            try:
                operation = await self._calls.call(
                    where, lambda: images.delete_unary(message, **PLAIN)
                )
                await self._finish(where, operation)
            except AccessError as error:
                raise _refused(error) from error

    async def _finish(self, where: str, operation: compute_v1.Operation) -> compute_v1.Operation:
        done = await self._calls.finished(None, where, operation)
        if error := self._calls.failure(done, where):
            raise error
        return done

    def _place(self, name: str) -> str:
        return f"image {name} of project {self._project}"

    @property
    def _whole(self) -> str:
        return f"project {self._project}"


def _refused(error: AccessError) -> CloudError:
    if "do not allow this" in error.what:
        return AccessError(error.what, where=error.where, fix=_ROLE)
    return error


def _image(found: compute_v1.Image) -> Image:
    created = None
    if found.creation_timestamp:
        created = datetime.fromisoformat(found.creation_timestamp)
    return Image(
        name=found.name,
        created=created,
        ready=found.status == "READY",
        disk_gb=int(found.disk_size_gb),
        stored_gb=found.archive_size_bytes / 1e9,
        labels=dict(found.labels),
        id=str(found.id),
    )


def _age(image: Image) -> float:
    if image.created:
        return image.created.timestamp()
    return 0.0
