"""The JSON API as far as it carries no contents: buckets, lists, metadata, deletion, copies, composition.

A request comes as a `Call`, whether alone or inside of a batch.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..rest import partial, wire
from . import globs, rights
from .conditions import Conditions, NotModified, number
from .digests import CHUNK, Digest
from .shelf import OBJECT_FIELDS, Resource, Shelf, shown

Reply = tuple[int, dict[str, Any] | None]
"""Status and JSON."""
_MOST_ITEMS = 1000
_MOST_SOURCES = 32


@dataclass(frozen=True)
class Call:
    """A request: method, decoded parts of its path below /storage/v1, parameters, JSON, where we were reached."""

    method: str
    path: list[str]
    query: Mapping[str, str]
    body: dict[str, Any]
    base: str


class Service:
    """Answers calls."""

    def __init__(self, shelf: Shelf, check_location: Callable[[str], None]) -> None:
        """`check_location` raises ApiError for the location of a new bucket that no policy allows."""
        self._shelf, self._check_location = shelf, check_location

    async def answer(self, call: Call) -> Reply:
        """ApiError where it is refused."""
        mask = partial.parse(call.query["fields"]) if call.query.get("fields") else {}
        try:
            content = await self._answer(call)
        except NotModified:
            return 304, None
        return (204, None) if content is None else (200, partial.select(content, mask))

    async def _answer(self, call: Call) -> dict[str, Any] | None:
        shelf, query, base = self._shelf, call.query, call.base
        _demand_of_bucket(call.method, call.path)
        match call.method, call.path:
            case "GET", ["b"]:
                return self._list_buckets(call)
            case "POST", ["b"]:
                self._check_location(str(call.body.get("location") or "US"))
                return shown(shelf.make_bucket(_required(query, "project"), call.body), base)
            case "GET", ["b", bucket]:
                found = shelf.bucket(bucket).resource
                Conditions.of(query).check({**found, "generation": 0}, reading=True)
                return shown(found, base)
            case ("PATCH" | "PUT") as method, ["b", bucket]:
                conditions = Conditions.of(query)
                return shown(shelf.change_bucket(bucket, call.body, conditions, method == "PUT"), base)
            case "DELETE", ["b", bucket]:
                return shelf.delete_bucket(bucket, Conditions.of(query))
            case "GET", ["b", bucket, "storageLayout"]:
                found = shelf.bucket(bucket).resource
                return {"kind": "storage#storageLayout", "bucket": bucket,
                        "location": found["location"], "locationType": found["locationType"]}  # fmt: skip
            case "GET", ["b", bucket, ("folders" | "managedFolders") as kind]:
                shelf.bucket(bucket)
                return {"kind": f"storage#{kind}"}
            case "GET", ["b", bucket, "iam"]:
                return _policy(shelf.bucket(bucket).resource)
            case "GET", ["b", bucket, "iam", "testPermissions"]:
                shelf.bucket(bucket)
                asked = [value for key, value in query.items() if key == "permissions"]
                granted = [each for each in asked if rights.grants(each, bucket)]
                return {"kind": "storage#testIamPermissionsResponse", "permissions": granted}
            case "GET", ["b", bucket, "o"]:
                return self._list_objects(bucket, call)
            case "GET", ["b", bucket, "o", name]:
                found = shelf.find(bucket, name, number(query, "generation"))
                Conditions.of(query).check(found, reading=True)
                return shown(found, base)
            case ("PATCH" | "PUT") as method, ["b", bucket, "o", name]:
                changed = await shelf.change(
                    bucket, name, number(query, "generation"), call.body, Conditions.of(query), replace=method == "PUT"
                )
                return shown(changed, base)
            case "DELETE", ["b", bucket, "o", name]:
                return await shelf.delete(bucket, name, number(query, "generation"), Conditions.of(query))
            case "POST", ["b", bucket, "o", name, "compose"]:
                return shown(await self._compose(bucket, name, call), base)
            case "POST", ["b", bucket, "o", name, "copyTo", "b", other, "o", target]:
                return shown(await self._copy(bucket, name, other, target, call), base)
            case "POST", ["b", bucket, "o", name, "rewriteTo", "b", other, "o", target]:
                copied = await self._copy(bucket, name, other, target, call)
                size = copied["size"]
                return {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size,
                        "done": True, "resource": shown(copied, base)}  # fmt: skip
            case "POST", ["b", bucket, "o", name, "moveTo", "o", target]:
                moved = await self._copy(bucket, name, bucket, target, call)
                source = shelf.find(bucket, name)
                if name != target:
                    await shelf.delete(bucket, name, int(source["generation"]), Conditions())
                return shown(moved, base)
        raise wire.ApiError(404, "notFound", "Not Found")

    # Lists.

    def _list_buckets(self, call: Call) -> dict[str, Any]:
        prefix, after = call.query.get("prefix", ""), _decoded(call.query.get("pageToken", ""))
        found = [each for each in self._shelf.buckets(_required(call.query, "project"))
                 if each["name"].startswith(prefix) and each["name"] > after]  # fmt: skip
        most = _most(call.query)
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if found[:most]:
            answer["items"] = [shown(each, call.base) for each in found[:most]]
        return answer | ({"nextPageToken": _encoded(found[most - 1]["name"])} if len(found) > most else {})

    def _list_objects(self, bucket: str, call: Call) -> dict[str, Any]:
        query = call.query
        prefix, delimiter, after = query.get("prefix", ""), query.get("delimiter", ""), query.get("pageToken", "")
        last, end = _decoded(after), query.get("endOffset", "")
        matches = globs.matcher(query["matchGlob"]) if query.get("matchGlob") else None
        most, trailing = _most(query), query.get("includeTrailingDelimiter", "").lower() == "true"
        objects = self._shelf.bucket(bucket).objects
        items: list[Resource] = []
        prefixes: list[str] = []
        token = ""
        seen = ""
        for name in self._shelf.names(bucket, max(query.get("startOffset", ""), last), prefix):
            if end and name >= end:
                break
            if (after and name <= last) or (matches and not matches(name)):
                continue
            cut = name.find(delimiter, len(prefix)) if delimiter else -1
            group = name[: cut + len(delimiter)] if cut >= 0 else ""
            known = group and (group in prefixes[-1:] or (after and last.startswith(group)))
            alone = not group or (trailing and name == group)
            if known and not alone:
                continue
            if len(items) + len(prefixes) >= most:
                token = _encoded(seen)
                break
            if group and not known:
                prefixes.append(group)
            if alone:
                items.append(shown(objects[name], call.base))
            seen = name
        answer: dict[str, Any] = {"kind": "storage#objects"}
        answer |= {"items": items} if items else {}
        answer |= {"prefixes": prefixes} if prefixes else {}
        return answer | ({"nextPageToken": token} if token else {})

    # Objects made of others.

    async def _copy(self, bucket: str, name: str, other: str, target: str, call: Call) -> Resource:
        source = self._shelf.find(bucket, name, number(call.query, "sourceGeneration"))
        Conditions.of(call.query, "ifSource").check(source)
        conditions = Conditions.of(call.query)
        self._shelf.check(other, target, conditions)
        # Without new metadata, that of the source goes along.
        given = call.body if OBJECT_FIELDS & call.body.keys() else source
        contents = await asyncio.to_thread(self._shelf.duplicate, source)
        digest, count = _Known(source), source.get("componentCount", 0)
        try:
            return await self._shelf.put(other, target, given, contents, digest, conditions, components=count)
        finally:
            contents.unlink(missing_ok=True)

    async def _compose(self, bucket: str, name: str, call: Call) -> Resource:
        asked = call.body.get("sourceObjects") or []
        if not 1 <= len(asked) <= _MOST_SOURCES:
            why = f"The number of source components provided ({len(asked)}) must be between 1 and {_MOST_SOURCES}."
            raise wire.ApiError(400, "invalid", why)
        sources: list[Resource] = []
        for each in asked:
            generation = int(each["generation"]) if each.get("generation") else None
            source = self._shelf.find(bucket, each["name"], generation)
            wanted = (each.get("objectPreconditions") or {}).get("ifGenerationMatch")
            Conditions(generation=None if wanted is None else int(wanted)).check(source)
            sources.append(source)
        conditions = Conditions.of(call.query)
        self._shelf.check(bucket, name, conditions)
        scratch = self._shelf.scratch()
        fields = {"contentType": sources[0].get("contentType"), **(call.body.get("destination") or {})}
        count = sum(each.get("componentCount", 1) for each in sources)
        try:
            digest = await asyncio.to_thread(concatenated, [self._shelf.contents(each) for each in sources], scratch)
            made = await self._shelf.put(bucket, name, fields, scratch, digest, conditions, components=count)
        finally:
            scratch.unlink(missing_ok=True)
        if call.body.get("deleteSourceObjects"):
            for each in {each["name"]: each for each in sources}.values():
                if each["name"] != name:
                    await self._shelf.delete(bucket, each["name"], int(each["generation"]), Conditions())
        return made


class _Known(Digest):
    """The checksums that an object has already."""

    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self.size, self._resource = int(resource["size"]), resource

    @property
    def crc32c(self) -> str:
        return self._resource["crc32c"]

    @property
    def md5(self) -> str:
        return self._resource["md5Hash"]


def concatenated(sources: list[Path], target: Path) -> Digest:
    """Write all `sources` into `target`, one after the other, and have it on the disk. Returns its checksums."""
    digest = Digest()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for source in sources:
            with source.open("rb") as part:
                while data := part.read(CHUNK):
                    digest.update(data)
                    file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return digest


def _demand_of_bucket(method: str, path: list[str]) -> None:
    """What is done to buckets themselves needs rights on them; the shelf asks for those on objects."""
    if path[2:3] != ["o"] and path[2:] != ["iam", "testPermissions"]:
        verb = {"GET": "list" if len(path) == 1 else "get", "POST": "create", "DELETE": "delete"}.get(method, "update")
        rights.demand(f"storage.buckets.{verb}", "".join(path[1:2]))


def _policy(bucket: Resource) -> dict[str, Any]:
    roles = ("legacyBucketOwner", "legacyBucketReader")
    members = [f"projectEditor:{bucket['_project']}", f"projectOwner:{bucket['_project']}"]
    return {
        "kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket['name']}", "version": 1, "etag": "CAE=",
        "bindings": [{"role": f"roles/storage.{role}", "members": members} for role in roles],
    }  # fmt: skip


def _required(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise wire.ApiError(400, "required", f"Required parameter: {name}")
    return query[name]


def _most(query: Mapping[str, str]) -> int:
    most = number(query, "maxResults")
    if most is not None and most < 0:
        raise wire.ApiError(400, "invalid", f"Invalid value for parameter 'maxResults': '{most}'.")
    return min(most or _MOST_ITEMS, _MOST_ITEMS)


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise wire.ApiError(400, "invalid", f"Invalid page token: '{token}'.") from None
