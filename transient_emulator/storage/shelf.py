"""The stored buckets and objects: in memory for lookups, and in files.

    buckets/NAME.json             a bucket
    objects/NAME/DIGEST.json      an object: its resource, and the file that holds its contents
    contents/ID                   contents; never changed once an object names them
    scratch/ID                    incoming contents

An object exists from the moment at which its JSON file gets its name. Its contents are on the disk
before. Nothing names what a dead emulator left unfinished, so it is deleted. All changes of a
bucket run one after the other.
"""

from __future__ import annotations

import asyncio
import base64
import bisect
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from transient_magics import places
from transient_magics.files import write_atomically

from ..rest import wire
from . import rights
from .conditions import Conditions
from .digests import Digest

Resource = dict[str, Any]
"""The JSON of a bucket or object. The emulator's own fields start with `_` and are never shown."""
_LOG = logging.getLogger(__name__)
_BUCKET_NAME = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")
# Bytes of UTF-8.
_LONGEST_NAME = 1024
_DAY = 86_400
_MULTI_REGIONS = ("US", "EU", "ASIA")
# The fields of a bucket and of an object that clients may set.
_BUCKET_FIELDS = frozenset(
    {
        "autoclass",
        "billing",
        "cors",
        "customPlacementConfig",
        "defaultEventBasedHold",
        "encryption",
        "hierarchicalNamespace",
        "iamConfiguration",
        "labels",
        "lifecycle",
        "logging",
        "retentionPolicy",
        "rpo",
        "softDeletePolicy",
        "storageClass",
        "versioning",
        "website",
    }
)
OBJECT_FIELDS = frozenset(
    {
        "cacheControl",
        "contentDisposition",
        "contentEncoding",
        "contentLanguage",
        "contentType",
        "contexts",
        "customTime",
        "eventBasedHold",
        "metadata",
        "storageClass",
        "temporaryHold",
    }
)
"""The fields of an object that clients may set."""


@dataclass
class Bucket:
    """A bucket.

    Attributes
    ----------
    resource
        Its JSON.
    objects
        Its objects by name.
    names
        The names of its objects, sorted.
    lock
        Held during each change of an object.
    """

    resource: Resource
    objects: dict[str, Resource] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Shelf:
    """All buckets, with their files in `folder`.

    An object's field `_contents` is the name of its file.
    """

    def __init__(self, folder: Path) -> None:
        self._buckets_folder = folder / "buckets"
        self._objects_folder = folder / "objects"
        self._contents = folder / "contents"
        self._scratch = folder / "scratch"
        places.private(self._buckets_folder)
        places.private(self._objects_folder)
        places.private(self._contents)
        places.private(self._scratch)
        self._buckets: dict[str, Bucket] = {}
        self._latest_generation = 0
        self._load()

    # -------------------- buckets

    def bucket(self, name: str) -> Bucket:
        """Return a bucket. Raises ApiError 404 if it does not exist."""
        try:
            return self._buckets[name]
        except KeyError:
            why = "The specified bucket does not exist."
            raise wire.ApiError(404, "notFound", why) from None

    def buckets(self, project: str) -> list[Resource]:
        """Return the buckets of a project, sorted by name."""
        found = [
            bucket.resource
            for bucket in self._buckets.values()
            if bucket.resource["_project"] == project
        ]
        return sorted(found, key=lambda resource: resource["name"])

    def make_bucket(self, project: str, body: Mapping[str, Any]) -> Resource:
        """Create an empty bucket.

        Raises
        ------
        ApiError
            400 for an illegal name or field, 409 if any project has a bucket of that name.
        """
        name = body.get("name")
        if not isinstance(name, str) or not _BUCKET_NAME.fullmatch(name):
            raise wire.ApiError(400, "invalid", f"Invalid bucket name: '{name}'")
        if name in self._buckets:
            why = (
                "Your previous request to create the named bucket succeeded and you already own it."
            )
            raise wire.ApiError(409, "conflict", why)
        location = str(body.get("location") or "US").upper()
        now = _now()
        resource: Resource = {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "_project": project,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "projectNumber": wire.fixed_id("projects", project),
            "location": location,
            "locationType": "multi-region" if location in _MULTI_REGIONS else "region",
            "storageClass": "STANDARD",
            "timeCreated": now,
            "updated": now,
            "generation": str(self._next_generation()),
            "metageneration": "1",
            "rpo": "DEFAULT",
            "iamConfiguration": {
                "bucketPolicyOnly": {"enabled": False},
                "uniformBucketLevelAccess": {"enabled": False},
                "publicAccessPrevention": "inherited",
            },
            "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": now},
        }
        resource = _with_settings(resource, body, now)
        resource["etag"] = _etag(resource)
        (self._objects_folder / name).mkdir(exist_ok=True, mode=0o700)
        write_atomically(self._buckets_folder / f"{name}.json", json.dumps(resource))
        self._buckets[name] = Bucket(resource)
        return resource

    def change_bucket(
        self, name: str, body: Mapping[str, Any], conditions: Conditions, replace: bool
    ) -> Resource:
        """Change the settings of a bucket.

        Parameters
        ----------
        name
            The bucket.
        body
            The new settings.
        conditions
            The preconditions.
        replace
            Whether settings that `body` leaves out are removed.

        Raises
        ------
        ApiError
            400, 404 or 412.
        """
        bucket = self.bucket(name)
        conditions.check(bucket.resource)
        before = bucket.resource
        if replace:
            removed = ("labels", "lifecycle", "cors")
            before = {key: value for key, value in before.items() if key not in removed}
        resource = _changed(_with_settings(before, body, _now()))
        write_atomically(self._buckets_folder / f"{name}.json", json.dumps(resource))
        bucket.resource = resource
        return resource

    def delete_bucket(self, name: str, conditions: Conditions) -> None:
        """Delete a bucket. Raises ApiError 409 unless it is empty."""
        bucket = self.bucket(name)
        conditions.check(bucket.resource)
        # A locked bucket is about to get an object.
        if bucket.objects or bucket.lock.locked():
            why = "The bucket you tried to delete is not empty."
            raise wire.ApiError(409, "conflict", why)
        (self._buckets_folder / f"{name}.json").unlink()
        del self._buckets[name]
        shutil.rmtree(self._objects_folder / name, ignore_errors=True)

    # -------------------- objects

    def find(self, bucket: str, name: str, generation: int | None = None) -> Resource:
        """Return an object. Raises ApiError 404 if it does not exist (in that generation)."""
        rights.demand("storage.objects.get", bucket, name)
        return self._find(bucket, name, generation)

    def _find(self, bucket: str, name: str, generation: int | None) -> Resource:
        found = self.bucket(bucket).objects.get(name)
        if found is None or generation not in (None, int(found["generation"])):
            mark = "" if generation is None else f"#{generation}"
            raise wire.ApiError(404, "notFound", f"No such object: {bucket}/{name}{mark}")
        return found

    def names(self, bucket: str, start: str, prefix: str) -> Iterator[str]:
        """Yield the names that begin with `prefix`, from `start` on, sorted."""
        rights.demand("storage.objects.list", bucket, prefix=prefix)
        names = self.bucket(bucket).names
        for index in range(bisect.bisect_left(names, max(start, prefix)), len(names)):
            if not names[index].startswith(prefix):
                return
            yield names[index]

    def contents(self, resource: Resource) -> Path:
        """Return the file with an object's contents."""
        return self._contents / resource["_contents"]

    def scratch(self) -> Path:
        """Return the path of a new file for incoming contents."""
        return self._scratch / secrets.token_hex(16)

    def check(self, bucket: str, name: str, conditions: Conditions) -> None:
        """Raise ApiError if a write would be refused in the present state."""
        rights.demand("storage.objects.create", bucket, name)
        objects = self.bucket(bucket).objects
        if name in objects:
            # Replacing an object also requires the right to delete it.
            rights.demand("storage.objects.delete", bucket, name)
        too_long = len(name.encode()) > _LONGEST_NAME
        if not name or too_long or {"\r", "\n"} & set(name) or name in (".", ".."):
            raise wire.ApiError(400, "invalid", f"Invalid object name: '{name}'")
        conditions.check(objects.get(name))

    async def put(
        self,
        bucket: str,
        name: str,
        fields: Mapping[str, Any],
        contents: Path,
        digest: Digest,
        conditions: Conditions,
        *,
        components: int = 0,
    ) -> Resource:
        """Create or replace an object.

        Parameters
        ----------
        bucket, name
            The object.
        fields
            Its metadata, of which `OBJECT_FIELDS` count.
        contents
            A scratch file that is on the disk already. It is moved.
        digest
            The checksums of the contents.
        conditions
            The preconditions.
        components
            The number of objects or parts that it was composed of. Such objects have no MD5.

        Raises
        ------
        ApiError
            If the write is refused.
        """
        place = self.bucket(bucket)
        async with place.lock:
            if self._buckets.get(bucket) is not place:
                # The bucket was deleted while this write waited for the lock.
                self.bucket(bucket)
            self.check(bucket, name, conditions)
            before = place.objects.get(name)
            now = _now()
            generation = self._next_generation()
            given = {
                key: value
                for key, value in fields.items()
                if key in OBJECT_FIELDS and value is not None
            }
            resource: Resource = {
                "kind": "storage#object",
                "id": f"{bucket}/{name}/{generation}",
                "name": name,
                "bucket": bucket,
                "generation": str(generation),
                "metageneration": "1",
                "size": str(digest.size),
                "storageClass": "STANDARD",
                "crc32c": digest.crc32c,
                "timeCreated": now,
                "updated": now,
                "timeStorageClassUpdated": now,
                "timeFinalized": now,
                "_contents": contents.name,
                **given,
            }
            if components:
                resource["componentCount"] = components
            else:
                resource["md5Hash"] = digest.md5
            resource["etag"] = _etag(resource)
            await asyncio.to_thread(self._commit, resource, contents)
            if before is None:
                bisect.insort(place.names, name)
            place.objects[name] = resource
            if before is not None:
                # Last: until here, a dead emulator leaves the earlier object.
                self.contents(before).unlink(missing_ok=True)
        return resource

    async def change(
        self,
        bucket: str,
        name: str,
        generation: int | None,
        body: Mapping[str, Any],
        conditions: Conditions,
        *,
        replace: bool,
    ) -> Resource:
        """Change the metadata of an object.

        Parameters
        ----------
        bucket, name, generation
            The object; None for any generation.
        body
            The new metadata.
        conditions
            The preconditions.
        replace
            Whether metadata that `body` leaves out is removed.

        Raises
        ------
        ApiError
            If the change is refused.
        """
        rights.demand("storage.objects.update", bucket, name)
        place = self.bucket(bucket)
        async with place.lock:
            before = self._find(bucket, name, generation)
            conditions.check(before)
            given = {key: value for key, value in body.items() if key in OBJECT_FIELDS}
            if replace:
                # Every object has a storage class.
                removed = OBJECT_FIELDS - {"storageClass"}
                before = {key: value for key, value in before.items() if key not in removed}
            resource = _changed(_merge(before, given))
            text = json.dumps(resource)
            await asyncio.to_thread(write_atomically, self._entry(resource), text)
            place.objects[name] = resource
        return resource

    async def delete(
        self, bucket: str, name: str, generation: int | None, conditions: Conditions
    ) -> None:
        """Delete an object. Raises ApiError 404 if it does not exist, 403 if it is on hold."""
        rights.demand("storage.objects.delete", bucket, name)
        place = self.bucket(bucket)
        async with place.lock:
            resource = self._find(bucket, name, generation)
            conditions.check(resource)
            if resource.get("eventBasedHold") or resource.get("temporaryHold"):
                why = (
                    f"Object '{bucket}/{name}' is under active hold and cannot be deleted, "
                    "overwritten or archived."
                )
                raise wire.ApiError(403, "forbidden", why)
            await asyncio.to_thread(self._entry(resource).unlink)
            del place.objects[name]
            del place.names[bisect.bisect_left(place.names, name)]
            self.contents(resource).unlink(missing_ok=True)

    def duplicate(self, resource: Resource) -> Path:
        """Copy the contents of an object into a scratch file, and return that."""
        target = self.scratch()
        try:
            # Contents never change, so a second name is as good as a copy.
            os.link(self.contents(resource), target)
        except OSError:
            # Some file systems have no hard links.
            shutil.copyfile(self.contents(resource), target)
        return target

    # -------------------- files

    def _entry(self, resource: Resource) -> Path:
        # Object names may be longer than file names, and contain slashes.
        digest = hashlib.sha256(resource["name"].encode()).hexdigest()
        return self._objects_folder / resource["bucket"] / f"{digest}.json"

    def _commit(self, resource: Resource, contents: Path) -> None:
        contents.replace(self.contents(resource))
        write_atomically(self._entry(resource), json.dumps(resource))

    def _load(self) -> None:
        used: set[str] = set()
        for resource in _read_all(self._buckets_folder):
            bucket = Bucket(resource)
            self._buckets[resource["name"]] = bucket
            folder = self._objects_folder / resource["name"]
            folder.mkdir(exist_ok=True, mode=0o700)
            for stored in _read_all(folder):
                if self.contents(stored).exists():
                    bucket.objects[stored["name"]] = stored
                    used.add(stored["_contents"])
                    generation = int(stored["generation"])
                    self._latest_generation = max(self._latest_generation, generation)
            bucket.names = sorted(bucket.objects)
        for path in self._contents.iterdir():
            if path.name not in used:
                path.unlink(missing_ok=True)
        for path in self._scratch.iterdir():
            path.unlink(missing_ok=True)

    def _next_generation(self) -> int:
        """Return a new generation: microseconds since 1970, but always larger than any before."""
        microseconds = time.time_ns() // 1000
        self._latest_generation = max(self._latest_generation + 1, microseconds)
        return self._latest_generation


def public(resource: Resource, base: str) -> Resource:
    """Return a bucket or object as a client at the URL `base` sees it."""
    visible = {key: value for key, value in resource.items() if not key.startswith("_")}
    if resource["kind"] != "storage#object":
        return visible
    path = f"storage/v1/b/{resource['bucket']}/o/{quote(resource['name'], safe='~')}"
    visible["selfLink"] = f"https://www.googleapis.com/{path}"
    generation = resource["generation"]
    visible["mediaLink"] = f"{base}/download/{path}?generation={generation}&alt=media"
    return visible


def _read_all(folder: Path) -> Iterable[Resource]:
    for path in sorted(folder.glob("*.json")):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            # A power failure may leave such a file. Losing one entry is better than an emulator
            # that never starts again.
            _LOG.error("cannot read %s: the entry is dropped", path)
            path.unlink()


def _with_settings(bucket: Resource, body: Mapping[str, Any], now: str) -> Resource:
    """Return a bucket with a client's settings.

    Raises ApiError 400 for an invalid soft delete policy.
    """
    new = {key: value for key, value in body.items() if key in _BUCKET_FIELDS}
    if "softDeletePolicy" in new:
        requested = (new["softDeletePolicy"] or {}).get("retentionDurationSeconds") or 0
        try:
            seconds = int(requested)
        except (TypeError, ValueError):
            seconds = -1
        if seconds and not 7 * _DAY <= seconds <= 90 * _DAY:
            why = "The soft delete retention is 0, or from 604800 to 7776000 seconds."
            raise wire.ApiError(400, "invalid", why)
        new["softDeletePolicy"] = {
            "retentionDurationSeconds": str(seconds),
            "effectiveTime": now,
        }
    return _merge(bucket, new)


def _merge(old: Resource, new: Mapping[str, Any]) -> Resource:
    """Apply a JSON merge patch (RFC 7396): null removes, objects are merged."""
    merged = dict(old)
    for key, value in new.items():
        if value is None:
            merged.pop(key, None)
        elif not isinstance(value, dict):
            merged[key] = value
        elif isinstance(merged.get(key), dict):
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = {name: inner for name, inner in value.items() if inner is not None}
    return merged


def _changed(resource: Resource) -> Resource:
    """Return the resource with the marks of a change of its metadata."""
    changed = dict(resource)
    changed["metageneration"] = str(int(resource["metageneration"]) + 1)
    changed["updated"] = _now()
    changed["etag"] = _etag(changed)
    return changed


def _etag(resource: Resource) -> str:
    text = f"{resource['generation']}/{resource['metageneration']}"
    return base64.b64encode(text.encode()).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
