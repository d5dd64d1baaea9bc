"""What is stored: buckets and objects, in memory for looking up and as files for good.

    buckets/NAME.json             a bucket
    objects/NAME/DIGEST.json      an object: its resource and which file holds its contents
    contents/ID                   contents; never changed once an object names them
    scratch/ID                    contents on their way in

An object exists from the moment on in which its JSON file gets its name; before that, its contents are on the disk.
What a dead emulator left unfinished is named by nothing and swept away. All changes of a bucket go one after the other.
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
_LOG = logging.getLogger(__name__)
_BUCKET_NAME = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")
_LONGEST_NAME = 1024  # bytes of UTF-8
_BUCKET_FIELDS = frozenset({
    "autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold", "encryption",
    "hierarchicalNamespace", "iamConfiguration", "labels", "lifecycle", "logging", "retentionPolicy", "rpo",
    "softDeletePolicy", "storageClass", "versioning", "website",
})  # fmt: skip
OBJECT_FIELDS = frozenset({
    "cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "contexts", "customTime",
    "eventBasedHold", "metadata", "storageClass", "temporaryHold",
})  # fmt: skip
"""What clients say of an object."""


@dataclass
class Bucket:
    """A bucket with its objects by name, and the names in order."""

    resource: Resource
    objects: dict[str, Resource] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Shelf:
    """All buckets. An object's field `_contents` is the name of its file."""

    def __init__(self, folder: Path) -> None:
        self._buckets_folder, self._objects_folder = folder / "buckets", folder / "objects"
        self._contents, self._scratch = folder / "contents", folder / "scratch"
        for each in (self._buckets_folder, self._objects_folder, self._contents, self._scratch):
            places.private(each)
        self._buckets: dict[str, Bucket] = {}
        self._latest = 0
        self._load()

    # Buckets.

    def bucket(self, name: str) -> Bucket:
        """ApiError 404 where there is none."""
        try:
            return self._buckets[name]
        except KeyError:
            raise wire.ApiError(404, "notFound", "The specified bucket does not exist.") from None

    def buckets(self, project: str) -> list[Resource]:
        """Those of a project, in order of their names."""
        found = [each.resource for each in self._buckets.values() if each.resource["_project"] == project]
        return sorted(found, key=lambda each: each["name"])

    def make_bucket(self, project: str, body: Mapping[str, Any]) -> Resource:
        """A new, empty bucket. ApiError 409 if there is one of that name, of any project."""
        name = body.get("name")
        if not isinstance(name, str) or not _BUCKET_NAME.fullmatch(name):
            raise wire.ApiError(400, "invalid", f"Invalid bucket name: '{name}'")
        if name in self._buckets:
            why = "Your previous request to create the named bucket succeeded and you already own it."
            raise wire.ApiError(409, "conflict", why)
        location, now = str(body.get("location") or "US").upper(), _now()
        resource: Resource = {
            "kind": "storage#bucket", "id": name, "name": name, "_project": project,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "projectNumber": wire.fixed_id("projects", project), "location": location,
            "locationType": "multi-region" if location in ("US", "EU", "ASIA") else "region",
            "storageClass": "STANDARD", "timeCreated": now, "updated": now, "generation": str(self._next()),
            "metageneration": "1", "rpo": "DEFAULT",
            "iamConfiguration": {
                "bucketPolicyOnly": {"enabled": False}, "uniformBucketLevelAccess": {"enabled": False},
                "publicAccessPrevention": "inherited",
            },
            "softDeletePolicy": {"retentionDurationSeconds": "604800", "effectiveTime": now},
        }  # fmt: skip
        resource = _settled(resource, body, now)
        resource["etag"] = _etag(resource)
        (self._objects_folder / name).mkdir(exist_ok=True, mode=0o700)
        write_atomically(self._buckets_folder / f"{name}.json", json.dumps(resource))
        self._buckets[name] = Bucket(resource)
        return resource

    def change_bucket(self, name: str, body: Mapping[str, Any], conditions: Conditions, replace: bool) -> Resource:
        """New settings of a bucket: merged into the old ones, or instead of them."""
        bucket = self.bucket(name)
        conditions.check(bucket.resource)
        before = bucket.resource
        if replace:
            before = {key: value for key, value in before.items() if key not in ("labels", "lifecycle", "cors")}
        resource = _touched(_settled(before, body, _now()))
        write_atomically(self._buckets_folder / f"{name}.json", json.dumps(resource))
        bucket.resource = resource
        return resource

    def delete_bucket(self, name: str, conditions: Conditions) -> None:
        """ApiError 409 unless it is empty."""
        bucket = self.bucket(name)
        conditions.check(bucket.resource)
        if bucket.objects or bucket.lock.locked():
            raise wire.ApiError(409, "conflict", "The bucket you tried to delete is not empty.")
        (self._buckets_folder / f"{name}.json").unlink()
        del self._buckets[name]
        shutil.rmtree(self._objects_folder / name, ignore_errors=True)

    # Objects.

    def find(self, bucket: str, name: str, generation: int | None = None) -> Resource:
        """An object. ApiError 404 where there is none (of that generation)."""
        rights.demand("storage.objects.get", bucket, name)
        return self._find(bucket, name, generation)

    def _find(self, bucket: str, name: str, generation: int | None) -> Resource:
        found = self.bucket(bucket).objects.get(name)
        if found is None or generation not in (None, int(found["generation"])):
            mark = "" if generation is None else f"#{generation}"
            raise wire.ApiError(404, "notFound", f"No such object: {bucket}/{name}{mark}")
        return found

    def names(self, bucket: str, start: str, prefix: str) -> Iterator[str]:
        """The names that begin with `prefix`, from `start` on, in order."""
        rights.demand("storage.objects.list", bucket, prefix=prefix)
        names = self.bucket(bucket).names
        for index in range(bisect.bisect_left(names, max(start, prefix)), len(names)):
            if not names[index].startswith(prefix):
                return
            yield names[index]

    def contents(self, resource: Resource) -> Path:
        """The file with an object's contents."""
        return self._contents / resource["_contents"]

    def scratch(self) -> Path:
        """A new file for contents on their way in."""
        return self._scratch / secrets.token_hex(16)

    def check(self, bucket: str, name: str, conditions: Conditions) -> None:
        """ApiError where a write would be refused as things are. To replace an object is to delete one as well."""
        rights.demand("storage.objects.create", bucket, name)
        objects = self.bucket(bucket).objects
        if name in objects:
            rights.demand("storage.objects.delete", bucket, name)
        if not name or len(name.encode()) > _LONGEST_NAME or {"\r", "\n"} & set(name) or name in (".", ".."):
            raise wire.ApiError(400, "invalid", f"Invalid object name: '{name}'")
        conditions.check(objects.get(name))

    async def put(
        self, bucket: str, name: str, fields: Mapping[str, Any], contents: Path, digest: Digest, conditions: Conditions,
        *, components: int = 0,
    ) -> Resource:  # fmt: skip
        """Make the file `contents`, which is on the disk already, the object of that name.

        `components` counts the objects (or parts) that it was composed of; such objects have no MD5.
        """
        place = self.bucket(bucket)
        async with place.lock:
            if self._buckets.get(bucket) is not place:
                self.bucket(bucket)
            self.check(bucket, name, conditions)
            before, now, generation = place.objects.get(name), _now(), self._next()
            given = {key: value for key, value in fields.items() if key in OBJECT_FIELDS and value is not None}
            resource: Resource = {
                "kind": "storage#object", "id": f"{bucket}/{name}/{generation}", "name": name, "bucket": bucket,
                "generation": str(generation), "metageneration": "1", "size": str(digest.size),
                "storageClass": "STANDARD", "crc32c": digest.crc32c, "timeCreated": now, "updated": now,
                "timeStorageClassUpdated": now, "timeFinalized": now, "_contents": contents.name, **given,
            }  # fmt: skip
            resource |= {"componentCount": components} if components else {"md5Hash": digest.md5}
            resource["etag"] = _etag(resource)
            await asyncio.to_thread(self._commit, resource, contents)
            if before is None:
                bisect.insort(place.names, name)
            place.objects[name] = resource
            if before is not None:
                self.contents(before).unlink(missing_ok=True)
        return resource

    async def change(
        self, bucket: str, name: str, generation: int | None, body: Mapping[str, Any], conditions: Conditions,
        *, replace: bool,
    ) -> Resource:  # fmt: skip
        """New metadata of an object: merged into the old, or instead of it."""
        rights.demand("storage.objects.update", bucket, name)
        place = self.bucket(bucket)
        async with place.lock:
            before = self._find(bucket, name, generation)
            conditions.check(before)
            given = {key: value for key, value in body.items() if key in OBJECT_FIELDS}
            if replace:
                before = {key: value for key, value in before.items() if key not in OBJECT_FIELDS - {"storageClass"}}
            resource = _touched(_merged(before, given))
            await asyncio.to_thread(write_atomically, self._entry(resource), json.dumps(resource))
            place.objects[name] = resource
        return resource

    async def delete(self, bucket: str, name: str, generation: int | None, conditions: Conditions) -> None:
        """ApiError 404 where there is none."""
        rights.demand("storage.objects.delete", bucket, name)
        place = self.bucket(bucket)
        async with place.lock:
            resource = self._find(bucket, name, generation)
            conditions.check(resource)
            if resource.get("eventBasedHold") or resource.get("temporaryHold"):
                why = f"Object '{bucket}/{name}' is under active hold and cannot be deleted, overwritten or archived."
                raise wire.ApiError(403, "forbidden", why)
            await asyncio.to_thread(self._entry(resource).unlink)
            del place.objects[name]
            del place.names[bisect.bisect_left(place.names, name)]
            self.contents(resource).unlink(missing_ok=True)

    def duplicate(self, resource: Resource) -> Path:
        """The contents of an object once more, as a scratch file."""
        target = self.scratch()
        try:
            os.link(self.contents(resource), target)
        except OSError:
            # Some file systems know no second name for a file.
            shutil.copyfile(self.contents(resource), target)
        return target

    # Files.

    def _entry(self, resource: Resource) -> Path:
        digest = hashlib.sha256(resource["name"].encode()).hexdigest()
        return self._objects_folder / resource["bucket"] / f"{digest}.json"

    def _commit(self, resource: Resource, contents: Path) -> None:
        contents.replace(self.contents(resource))
        write_atomically(self._entry(resource), json.dumps(resource))

    def _load(self) -> None:
        used: set[str] = set()
        for resource in _read_all(self._buckets_folder):
            bucket = self._buckets[resource["name"]] = Bucket(resource)
            (self._objects_folder / resource["name"]).mkdir(exist_ok=True, mode=0o700)
            for each in _read_all(self._objects_folder / resource["name"]):
                if self.contents(each).exists():
                    bucket.objects[each["name"]] = each
                    used.add(each["_contents"])
                    self._latest = max(self._latest, int(each["generation"]))
            bucket.names = sorted(bucket.objects)
        for folder in (self._contents, self._scratch):
            for path in folder.iterdir():
                if folder is self._scratch or path.name not in used:
                    path.unlink(missing_ok=True)

    def _next(self) -> int:
        """A generation: microseconds since 1970, but always more than any before."""
        self._latest = max(self._latest + 1, time.time_ns() // 1000)
        return self._latest


def shown(resource: Resource, base: str) -> Resource:
    """A bucket or object as a client sees it who reaches us at the URL `base`."""
    visible = {key: value for key, value in resource.items() if not key.startswith("_")}
    if resource["kind"] != "storage#object":
        return visible
    path = f"storage/v1/b/{resource['bucket']}/o/{quote(resource['name'], safe='~')}"
    media = f"{base}/download/{path}?generation={resource['generation']}&alt=media"
    return visible | {"selfLink": f"https://www.googleapis.com/{path}", "mediaLink": media}


def _read_all(folder: Path) -> Iterable[Resource]:
    for path in sorted(folder.glob("*.json")):
        try:
            yield json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            # Left by a machine that lost its power: better without it than never to start again.
            _LOG.error("%s cannot be read and is forgotten", path)
            path.unlink()


def _settled(old: Resource, body: Mapping[str, Any], now: str) -> Resource:
    """A bucket with what a client may set of it. ApiError 400 for a soft delete that cannot be."""
    new = {key: value for key, value in body.items() if key in _BUCKET_FIELDS}
    if "softDeletePolicy" in new:
        asked = (new["softDeletePolicy"] or {}).get("retentionDurationSeconds") or 0
        try:
            seconds = int(asked)
        except (TypeError, ValueError):
            seconds = -1
        if seconds and not 7 * 86400 <= seconds <= 90 * 86400:
            raise wire.ApiError(400, "invalid", "The soft delete retention is 0, or from 604800 to 7776000 seconds.")
        new["softDeletePolicy"] = {"retentionDurationSeconds": str(seconds), "effectiveTime": now}
    return _merged(old, new)


def _merged(old: Resource, new: Mapping[str, Any]) -> Resource:
    """JSON merge patch: null removes, objects are merged."""
    merged = dict(old)
    for key, value in new.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        elif isinstance(value, dict):
            merged[key] = {name: each for name, each in value.items() if each is not None}
        else:
            merged[key] = value
    return merged


def _touched(resource: Resource) -> Resource:
    """The resource with the marks of a change of its metadata."""
    resource = resource | {"metageneration": str(int(resource["metageneration"]) + 1), "updated": _now()}
    return resource | {"etag": _etag(resource)}


def _etag(resource: Resource) -> str:
    return base64.b64encode(f"{resource['generation']}/{resource['metageneration']}".encode()).decode()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
