"""The JSON API without contents: buckets, lists, metadata, deletion, copies, composition.

A request is a `Call`, whether it came alone or inside of a batch.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..rest import partial, wire
from . import rights
from .conditions import Conditions, NotModified, number
from .digests import CHUNK, Digest
from .shelf import OBJECT_FIELDS, Resource, Shelf, public

Reply = tuple[int, dict[str, Any] | None]
"""Status and JSON."""
# Cloud Storage's limits of a page and of a composition.
_MOST_ITEMS = 1000
_MOST_SOURCES = 32


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes
    ----------
    method
        The HTTP method.
    path
        The decoded parts of its path below /storage/v1.
    query
        Its parameters.
    body
        Its JSON.
    base
        The URL at which the client reached this emulator.
    """

    method: str
    path: list[str]
    query: Mapping[str, str]
    body: dict[str, Any]
    base: str


class Service:
    """The JSON API.

    Parameters
    ----------
    shelf
        The buckets.
    check_location
        Raises ApiError for the location of a new bucket that a policy forbids.
    """

    def __init__(self, shelf: Shelf, check_location: Callable[[str], None]) -> None:
        self._shelf = shelf
        self._check_location = check_location

    async def answer(self, call: Call) -> Reply:
        """Answer a call. Raises ApiError if it is refused."""
        selection = call.query.get("fields")
        mask = partial.parse(selection) if selection else {}
        _demand_of_bucket(call.method, call.path)
        try:
            if call.path[2:3] == ["o"]:
                content = await self._answer_for_object(call)
            else:
                content = self._answer_for_bucket(call)
        except NotModified:
            return 304, None
        if content is None:
            return 204, None
        return 200, partial.select(content, mask)

    def _answer_for_bucket(self, call: Call) -> dict[str, Any] | None:
        shelf = self._shelf
        query = call.query
        match call.method, call.path:
            case "GET", ["b"]:
                return self._list_buckets(call)
            case "POST", ["b"]:
                self._check_location(str(call.body.get("location") or "US"))
                created = shelf.make_bucket(_required(query, "project"), call.body)
                return public(created, call.base)
            case "GET", ["b", bucket]:
                found = shelf.bucket(bucket).resource
                # Conditions on a generation are about objects.
                Conditions.from_query(query).check({**found, "generation": 0}, reading=True)
                return public(found, call.base)
            case ("PATCH" | "PUT") as method, ["b", bucket]:
                conditions = Conditions.from_query(query)
                changed = shelf.change_bucket(bucket, call.body, conditions, method == "PUT")
                return public(changed, call.base)
            case "DELETE", ["b", bucket]:
                return shelf.delete_bucket(bucket, Conditions.from_query(query))
            case "GET", ["b", bucket, "storageLayout"]:
                found = shelf.bucket(bucket).resource
                return {
                    "kind": "storage#storageLayout",
                    "bucket": bucket,
                    "location": found["location"],
                    "locationType": found["locationType"],
                }
            case "GET", ["b", bucket, ("folders" | "managedFolders") as kind]:
                # The bucket has none, but must exist.
                shelf.bucket(bucket)
                return {"kind": f"storage#{kind}"}
            case "GET", ["b", bucket, "iam"]:
                return _policy(shelf.bucket(bucket).resource)
            case "GET", ["b", bucket, "iam", "testPermissions"]:
                shelf.bucket(bucket)
                requested = [value for name, value in query.items() if name == "permissions"]
                granted = [name for name in requested if rights.grants(name, bucket)]
                return {"kind": "storage#testIamPermissionsResponse", "permissions": granted}
        raise wire.ApiError(404, "notFound", "Not Found")

    async def _answer_for_object(self, call: Call) -> dict[str, Any] | None:
        shelf = self._shelf
        query = call.query
        match call.method, call.path:
            case "GET", ["b", bucket, "o"]:
                return self._list_objects(bucket, call)
            case "GET", ["b", bucket, "o", name]:
                found = shelf.find(bucket, name, number(query, "generation"))
                Conditions.from_query(query).check(found, reading=True)
                return public(found, call.base)
            case ("PATCH" | "PUT") as method, ["b", bucket, "o", name]:
                generation = number(query, "generation")
                conditions = Conditions.from_query(query)
                changed = await shelf.change(
                    bucket, name, generation, call.body, conditions, replace=method == "PUT"
                )
                return public(changed, call.base)
            case "DELETE", ["b", bucket, "o", name]:
                generation = number(query, "generation")
                return await shelf.delete(bucket, name, generation, Conditions.from_query(query))
            case "POST", ["b", bucket, "o", name, "compose"]:
                return public(await self._compose(bucket, name, call), call.base)
            case "POST", ["b", bucket, "o", name, "copyTo", "b", other, "o", target]:
                copied = await self._copy(bucket, name, other, target, call)
                return public(copied, call.base)
            case "POST", ["b", bucket, "o", name, "rewriteTo", "b", other, "o", target]:
                copied = await self._copy(bucket, name, other, target, call)
                # Google may need several requests for one copy. Here the first completes it.
                return {
                    "kind": "storage#rewriteResponse",
                    "totalBytesRewritten": copied["size"],
                    "objectSize": copied["size"],
                    "done": True,
                    "resource": public(copied, call.base),
                }
            case "POST", ["b", bucket, "o", name, "moveTo", "o", target]:
                moved = await self._copy(bucket, name, bucket, target, call)
                source = shelf.find(bucket, name)
                if name != target:
                    await shelf.delete(bucket, name, int(source["generation"]), Conditions())
                return public(moved, call.base)
        raise wire.ApiError(404, "notFound", "Not Found")

    # -------------------- lists

    def _list_buckets(self, call: Call) -> dict[str, Any]:
        prefix = call.query.get("prefix", "")
        after = _decode(call.query.get("pageToken", ""))
        found = [
            bucket
            for bucket in self._shelf.buckets(_required(call.query, "project"))
            if bucket["name"].startswith(prefix) and bucket["name"] > after
        ]
        most = _page_size(call.query)
        answer: dict[str, Any] = {"kind": "storage#buckets"}
        if found:
            answer["items"] = [public(bucket, call.base) for bucket in found[:most]]
        if len(found) > most:
            answer["nextPageToken"] = _encode(found[most - 1]["name"])
        return answer

    def _list_objects(self, bucket: str, call: Call) -> dict[str, Any]:
        query = call.query
        prefix = query.get("prefix", "")
        delimiter = query.get("delimiter", "")
        end = query.get("endOffset", "")
        token = query.get("pageToken", "")
        # The last name of the page before.
        last = _decode(token)
        glob = query.get("matchGlob")
        matches = _glob(glob) if glob else None
        trailing = query.get("includeTrailingDelimiter", "").lower() == "true"
        most = _page_size(query)
        objects = self._shelf.bucket(bucket).objects
        items: list[Resource] = []
        prefixes: list[str] = []
        next_token = ""
        seen = ""
        start = max(query.get("startOffset", ""), last)
        for name in self._shelf.names(bucket, start, prefix):
            if end and name >= end:
                break
            if token and name <= last:
                continue
            if matches and not matches(name):
                continue
            # All names with the same beginning up to the delimiter are one prefix, like a folder.
            folder = _folder(name, prefix, delimiter)
            listed_before = folder in prefixes[-1:] or bool(token and last.startswith(folder))
            is_new_folder = bool(folder) and not listed_before
            is_item = not folder or (trailing and name == folder)
            if not is_new_folder and not is_item:
                continue
            if len(items) + len(prefixes) >= most:
                next_token = _encode(seen)
                break
            if is_new_folder:
                prefixes.append(folder)
            if is_item:
                items.append(public(objects[name], call.base))
            seen = name
        answer: dict[str, Any] = {"kind": "storage#objects"}
        if items:
            answer["items"] = items
        if prefixes:
            answer["prefixes"] = prefixes
        if next_token:
            answer["nextPageToken"] = next_token
        return answer

    # -------------------- objects made from others

    async def _copy(self, bucket: str, name: str, other: str, target: str, call: Call) -> Resource:
        """Copy an object to the object `target` of the bucket `other`."""
        source = self._shelf.find(bucket, name, number(call.query, "sourceGeneration"))
        Conditions.from_query(call.query, "ifSource").check(source)
        conditions = Conditions.from_query(call.query)
        self._shelf.check(other, target, conditions)
        # Without new metadata, the copy has that of the source.
        fields = call.body if OBJECT_FIELDS & call.body.keys() else source
        contents = await asyncio.to_thread(self._shelf.duplicate, source)
        digest = _StoredDigest(source)
        components = source.get("componentCount", 0)
        try:
            return await self._shelf.put(
                other, target, fields, contents, digest, conditions, components=components
            )
        finally:
            contents.unlink(missing_ok=True)

    async def _compose(self, bucket: str, name: str, call: Call) -> Resource:
        """Concatenate objects into one."""
        requested = call.body.get("sourceObjects") or []
        if not 1 <= len(requested) <= _MOST_SOURCES:
            why = (
                f"The number of source components provided ({len(requested)}) must be between 1 "
                f"and {_MOST_SOURCES}."
            )
            raise wire.ApiError(400, "invalid", why)
        sources: list[Resource] = []
        for entry in requested:
            generation = int(entry["generation"]) if entry.get("generation") else None
            source = self._shelf.find(bucket, entry["name"], generation)
            match = (entry.get("objectPreconditions") or {}).get("ifGenerationMatch")
            Conditions(generation=None if match is None else int(match)).check(source)
            sources.append(source)
        conditions = Conditions.from_query(call.query)
        self._shelf.check(bucket, name, conditions)
        fields = {
            "contentType": sources[0].get("contentType"),
            **(call.body.get("destination") or {}),
        }
        components = sum(source.get("componentCount", 1) for source in sources)
        paths = [self._shelf.contents(source) for source in sources]
        scratch = self._shelf.scratch()
        try:
            digest = await asyncio.to_thread(concatenate, paths, scratch)
            created = await self._shelf.put(
                bucket, name, fields, scratch, digest, conditions, components=components
            )
        finally:
            scratch.unlink(missing_ok=True)
        if call.body.get("deleteSourceObjects"):
            # An object may be a source several times, and the result may replace a source.
            generations = {source["name"]: int(source["generation"]) for source in sources}
            generations.pop(name, None)
            for source_name, generation in generations.items():
                await self._shelf.delete(bucket, source_name, generation, Conditions())
        return created


class _StoredDigest(Digest):
    """The checksums of an existing object, which need not be computed again."""

    def __init__(self, resource: Resource) -> None:
        super().__init__()
        self.size = int(resource["size"])
        self._resource = resource

    @property
    def crc32c(self) -> str:
        return self._resource["crc32c"]

    @property
    def md5(self) -> str:
        return self._resource["md5Hash"]


def concatenate(sources: list[Path], target: Path) -> Digest:
    """Write all `sources` into the new file `target`, one after the other, and sync it to the disk.

    Returns
    -------
    Digest
        Its checksums.
    """
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
    """Check the rights for what is done to buckets themselves.

    The shelf checks those for objects.
    """
    if path[2:3] == ["o"] or path[2:] == ["iam", "testPermissions"]:
        return
    verbs = {"POST": "create", "DELETE": "delete", "GET": "list" if len(path) == 1 else "get"}
    rights.demand(f"storage.buckets.{verbs.get(method, 'update')}", "".join(path[1:2]))


def _policy(bucket: Resource) -> dict[str, Any]:
    """Return the IAM policy that Cloud Storage gives to a new bucket."""
    members = [f"projectEditor:{bucket['_project']}", f"projectOwner:{bucket['_project']}"]
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{bucket['name']}",
        "version": 1,
        "etag": "CAE=",
        "bindings": [
            {"role": "roles/storage.legacyBucketOwner", "members": members},
            {"role": "roles/storage.legacyBucketReader", "members": members},
        ],
    }


def _required(query: Mapping[str, str], name: str) -> str:
    if not query.get(name):
        raise wire.ApiError(400, "required", f"Required parameter: {name}")
    return query[name]


def _page_size(query: Mapping[str, str]) -> int:
    size = number(query, "maxResults")
    if size is not None and size < 0:
        why = f"Invalid value for parameter 'maxResults': '{size}'."
        raise wire.ApiError(400, "invalid", why)
    return min(size or _MOST_ITEMS, _MOST_ITEMS)


def _folder(name: str, prefix: str, delimiter: str) -> str:
    """Return the beginning of a name up to the first delimiter after the prefix; '' without one."""
    if not delimiter:
        return ""
    cut = name.find(delimiter, len(prefix))
    if cut < 0:
        return ""
    return name[: cut + len(delimiter)]


def _encode(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise wire.ApiError(400, "invalid", f"Invalid page token: '{token}'.") from None


# -------------------- matchGlob

_GLOB_TOKEN = re.compile(r"\*\*|\*|\?|\[!?[^]]+\]|\{|\}|,|.", re.DOTALL)


def _glob(pattern: str) -> Callable[[str], bool]:
    """Return the test whether a name matches `pattern`. Raises ApiError 400 for an invalid pattern.

    `*` stops at a slash and `**` does not. `{a,b}` matches either.
    """
    depth = 0
    parts: list[str] = []
    for token in _GLOB_TOKEN.findall(pattern):
        if token == "**":
            parts.append(".*")
        elif token == "*":
            parts.append("[^/]*")
        elif token == "?":
            parts.append("[^/]")
        elif len(token) > 1:
            # A set of characters. `!` excludes them, as `^` does in a regular expression.
            characters = token[1:-1].lstrip("!").replace("\\", "\\\\")
            excluded = "^" if token[1] == "!" else ""
            parts.append(f"[{excluded}{characters}]")
        elif token == "{":
            depth += 1
            parts.append("(?:")
        elif token == "}" and depth:
            depth -= 1
            parts.append(")")
        elif token == "," and depth:
            parts.append("|")
        else:
            parts.append(re.escape(token))
    try:
        compiled = re.compile("".join(parts), re.DOTALL)
    except re.error:
        raise wire.ApiError(400, "invalid", f"Invalid glob: '{pattern}'.") from None
    return lambda name: compiled.fullmatch(name) is not None
