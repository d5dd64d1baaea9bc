"""Cloud Storage, as far as we use it: make a bucket, and put, get, list and delete objects in it.

Every call runs in a thread and is awaited (`calls.py`). Contents are checked with CRC32C on their
way in both directions; a file that is downloaded appears whole or not at all. Writes may name the
generation that they replace (0: nothing is there yet): of several writers one wins, the others meet
ChangedError.

A `BoundedToken` is an access token for some places of buckets only (Credential Access Boundaries).
A controller exchanges its own token at the Security Token Service for one whose rights end at
`Reach`es, and hands that to a VM that runs a user's code. The rights of the two are intersected;
the new one lives as long as the old one would have. Such tokens work in buckets with uniform access
only.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ..errors import (
    AccessError,
    AlreadyExistsError,
    ChangedError,
    CloudError,
    ConsumerError,
    CredentialsError,
    GoneError,
    RateLimitError,
    UnreachableError,
)
from ..journal import now
from .calling import failures
from .calling.calls import Attempts
from .calling.failures import (
    billing_disabled,
    error_info,
    explain_infrastructure,
    policy_in,
    service_disabled,
)
from .calling.login import found_credentials

if TYPE_CHECKING:
    from google.cloud import storage


_THREADS = 8
_PLAIN: dict[str, Any] = {
    "retry": None,
    "timeout": 60.0,
}  # seconds without a byte; Google's own retries off
_SOFT_DELETE = "storage.softDeletePolicySeconds"
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"


@dataclass(frozen=True)
class Stored:
    """One object: its name in the bucket, size in bytes, CRC32C (base64, big-endian) and
    generation.
    """

    name: str
    size: int
    crc32c: str
    generation: int


class CloudStorage:
    """The buckets that `project` may use. `endpoint` is an emulator's URL; None is Google, by
    default credentials.
    """

    def __init__(
        self, project: str, endpoint: str | None = None, *, patience: float = 60.0
    ) -> None:
        """`patience` is for how many seconds a request is tried again before its error is raised."""
        self.project = project
        if endpoint:
            self.endpoint = endpoint.rstrip("/")
        else:
            self.endpoint = None

        def explain_here(error: Exception, where: str) -> CloudError | None:
            return explain(error, where=where, project=project, endpoint=self.endpoint or "")

        self._attempts = Attempts("storage", _THREADS, patience, explain_here)
        self._client: Any = None

    async def __aenter__(self) -> Self:
        await self.renew()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._attempts.end()
        self._client.close()

    async def renew(self) -> None:
        """Find credentials (anew) and build the client with them; requests under way keep the one
        before.
        """
        async with self._attempts.explaining(f"project {self.project}"):
            self._client = await self._attempts.threaded(
                lambda: _client(self.project, self.endpoint)
            )

    async def ensure_bucket(self, name: str, location: str, *, own: bool = False) -> str:
        """See that the bucket is there; make it in `location` (a region) where there is none of
        that name.

        It is made with uniform access, without any for the public, and without soft delete, by
        which checkpoints that a run has replaced would be billed for a week more; where an
        organization forbids that, with it. AccessError for one without uniform access, in which
        tokens with a boundary are worth nothing; the answer is what is not as it should be with one
        that is there, in sentences, else empty. `own`: it must be the project's, because its name
        can be guessed, and whoever made it first would be handed all that is put there.
        AlreadyExistsError then.
        """
        where = f"gs://{name}"

        def make(soft_delete: bool) -> storage.Bucket:
            fresh = self._client.bucket(name)
            fresh.iam_configuration.uniform_bucket_level_access_enabled = True
            fresh.iam_configuration.public_access_prevention = "enforced"
            if not soft_delete:
                fresh.soft_delete_policy.retention_duration_seconds = 0
            return self._client.create_bucket(
                fresh, project=self.project, location=location, **_PLAIN
            )

        if (warning := await self.look(name, own=own)) is not None:
            return warning
        try:
            try:
                made = await self._attempts.call(where, lambda: make(soft_delete=False))
            except AccessError as error:
                if policy_in(error.what) != _SOFT_DELETE:
                    raise
                made = await self._attempts.call(where, lambda: make(soft_delete=True))
        except AlreadyExistsError as error:
            # Another controller may have made it at the same moment, or an attempt whose answer was
            # lost.
            if (warning := await self.look(name, own=True)) is not None:
                return warning
            what = f"The bucket name {name} is taken by somebody else"
            raise AlreadyExistsError(
                what, where=f"project {self.project}", fix="Name another with --bucket."
            ) from error
        return _looked_at(made)

    async def look(self, name: str, *, own: bool = False) -> str | None:
        """What is to be said of the bucket, as of `ensure_bucket`; None where there is none, and
        none is made.

        `own`: one of the project's alone.
        """
        where = f"gs://{name}"

        def is_there() -> storage.Bucket:
            return self._client.get_bucket(name, **_PLAIN)

        def listed() -> storage.Bucket | None:
            found = self._client.list_buckets(prefix=name, project=self.project, **_PLAIN)
            return next((each for each in found if each.name == name), None)

        try:
            found = await self._attempts.call(where, listed if own else is_there)
        except GoneError:
            return None
        except AccessError as error:
            if own or isinstance(error, (CredentialsError, ConsumerError)):
                raise
            what = f"The bucket {name} may not be used: it is somebody else's, or a role is missing"
            raise AccessError(what, where=where, fix=error.fix) from error
        if found:
            return _looked_at(found)
        return None

    async def upload(
        self, bucket: str, name: str, path: Path, *, generation: int | None = None
    ) -> Stored:
        """Put a file there; `generation` is what it may replace (0: nothing)."""
        blob = self._client.bucket(bucket).blob(name)

        def put() -> None:
            blob.upload_from_filename(
                str(path), checksum="crc32c", if_generation_match=generation, **_PLAIN
            )

        if generation is not None:
            expected = await self._attempts.threaded(lambda: checksum(path))
        else:
            expected = ""
        return await self._write(blob, put, expected)

    async def write_json(
        self, bucket: str, name: str, value: Any, *, generation: int | None = None
    ) -> Stored:
        """Put a small JSON value there; `generation` is what it may replace (0: nothing)."""
        blob = self._client.bucket(bucket).blob(name)
        content = json.dumps(value, indent=1).encode()

        def put() -> None:
            blob.upload_from_string(
                content,
                "application/json",
                checksum="crc32c",
                if_generation_match=generation,
                **_PLAIN,
            )

        return await self._write(blob, put, _sum(content) if generation is not None else "")

    async def read_json(self, bucket: str, name: str) -> tuple[Any, int]:
        """A small JSON value and its generation; (None, 0) where there is no such object. Raises
        CloudError.
        """
        blob = self._client.bucket(bucket).blob(name)
        where = f"gs://{bucket}/{name}"
        try:
            content = await self._attempts.call(
                where, lambda: blob.download_as_bytes(checksum="crc32c", **_PLAIN)
            )
        except GoneError:
            await self.list(
                bucket, name, most=1
            )  # the bucket itself is there; to look at that takes another role
            return None, 0
        try:
            return json.loads(content), int(blob.generation or 0)
        except (ValueError, RecursionError) as error:
            raise CloudError("The object is not JSON", where=where) from error

    async def download(
        self, bucket: str, name: str, path: Path, *, generation: int | None = None
    ) -> None:
        """Get an object as a file (its folder is made if needed); `generation` is the one that it
        must be.
        """
        blob = self._client.bucket(bucket).blob(name)
        part = path.with_name(f".{path.name}.part")

        def get() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            blob.download_to_filename(
                str(part), checksum="crc32c", if_generation_match=generation, **_PLAIN
            )
            os.replace(part, path)

        try:
            await self._attempts.call(f"gs://{bucket}/{name}", get)
        finally:
            part.unlink(missing_ok=True)

    async def list(self, bucket: str, prefix: str = "", *, most: int | None = None) -> list[Stored]:
        """All objects whose names begin with `prefix`, in their order; the first ones, if `most`
        are wanted.
        """

        def pages() -> list[Stored]:
            found = self._client.list_blobs(bucket, prefix=prefix, max_results=most, **_PLAIN)
            return [_stored(blob) for blob in found]

        return await self._attempts.call(f"gs://{bucket}/{prefix}", pages)

    async def delete(self, bucket: str, name: str) -> None:
        """Delete an object. There being none is success."""
        blob = self._client.bucket(bucket).blob(name)
        try:
            await self._attempts.call(f"gs://{bucket}/{name}", lambda: blob.delete(**_PLAIN))
        except GoneError:
            return

    async def delete_prefix(self, bucket: str, prefix: str) -> None:
        """Delete all objects whose names begin with `prefix`, which must not be empty."""
        if not prefix:
            raise ValueError("an empty prefix would empty the bucket")
        async with asyncio.TaskGroup() as tasks:
            for each in await self.list(bucket, prefix):
                tasks.create_task(self.delete(bucket, each.name))

    async def _write(self, blob: storage.Blob, put: Callable[[], None], expected: str) -> Stored:
        """`expected` is the sum by which our own content is known again."""
        where = f"gs://{blob.bucket.name}/{blob.name}"
        try:
            await self._attempts.call(where, put)
        except ChangedError:
            # Perhaps by an earlier attempt of our own, whose answer was lost.
            await self._attempts.call(where, lambda: blob.reload(**_PLAIN))
            if blob.crc32c != expected:
                raise
        return _stored(blob)


def checksum(path: Path) -> str:
    """CRC32C of a file as Cloud Storage writes it: base64 of the big-endian number."""
    import google_crc32c

    digest = google_crc32c.Checksum()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return base64.b64encode(digest.digest()).decode()


def _sum(content: bytes) -> str:
    import google_crc32c

    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def _client(project: str, endpoint: str | None) -> storage.Client:
    client = _built(project, endpoint)
    # For its traces the client asks for each bucket that it meets: in threads that outlive it, with
    # retries of their own, and with a permission that a bucket's writer may lack.
    client._bucket_metadata_cache = None  # pyright: ignore[reportAttributeAccessIssue]
    return client


def _built(project: str, endpoint: str | None) -> storage.Client:
    from google.cloud import storage

    if endpoint is None:
        credentials, _ = found_credentials([_SCOPE])
        return storage.Client(project=project, credentials=credentials)
    from google.auth.credentials import AnonymousCredentials

    options = {"api_endpoint": endpoint, "universe_domain": "googleapis.com"}
    client = storage.Client(
        project=project, credentials=AnonymousCredentials(), client_options=options
    )
    _session(client).trust_env = False  # no proxy stands between us and the emulator
    return client


def _session(client: Any) -> Any:
    """Private, but the only way to the session through which a client asks."""
    return client._http


def _looked_at(bucket: storage.Bucket) -> str:
    access = bucket.iam_configuration
    change = f"gcloud storage buckets update gs://{bucket.name}"
    if not access.uniform_bucket_level_access_enabled:
        what = f"Objects of the bucket {bucket.name} may have rights of their own: no VM can be kept to its place"
        fix = f"Type `{change} --uniform-bucket-level-access`, or name another with --bucket."
        raise AccessError(what, where=f"gs://{bucket.name}", fix=fix)
    said: list[str] = []
    if access.public_access_prevention != "enforced":
        said.append(
            f"The bucket {bucket.name} could be opened to the public; "
            f"`{change} --public-access-prevention` sees that it never is"
        )
    if kept := bucket.soft_delete_policy.retention_duration_seconds:
        said.append(
            f"What is deleted from the bucket {bucket.name}, as checkpoints that newer ones replace, is billed for "
            f"{kept / 86400:g} more days; `{change} --clear-soft-delete` ends that, where no policy forbids it"
        )
    return ". ".join(said)


def _stored(blob: storage.Blob) -> Stored:
    return Stored(blob.name, int(blob.size or 0), str(blob.crc32c), int(blob.generation or 0))


_WRITE = "roles/storage.objectAdmin on the bucket"
_MAKE = "roles/storage.admin in the project where the bucket is to be made"


def explain(error: Exception, *, where: str, project: str, endpoint: str = "") -> CloudError | None:
    """Our error for `error`, met at `where`; None for what is a defect of this program."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, GoogleAPICallError):
        said = _said(str(error.message or error))
        if found := explain_infrastructure(error_info(error), said, where=where, project=project):
            return found
        return _by_status(int(error.code or 0), said, where, project)
    if isinstance(error, DataCorruption):
        return CloudError(
            "Its contents did not arrive as they were sent", where=where, fix="Try again."
        )
    if isinstance(error, (requests.exceptions.RequestException, TransportError)):
        remedy = "Check the network" + (
            " and that the emulator runs." if endpoint else " and any proxy settings."
        )
        what = f"{endpoint or 'https://storage.googleapis.com'} does not answer"
        return UnreachableError(what, where=where, fix=remedy)
    return failures.explain(error, where=where, project=project, endpoint=endpoint)


def _said(message: str) -> str:
    """Google's own sentence: its client puts the request before it, and for uploads the whole
    answer around it.
    """
    told = re.search(r'"message": ?"([^"]+)"', message)
    if told:
        line = told[1]
    else:
        line = message.split("\n", 1)[0]
    return " ".join(failures.without_request(line).split()).rstrip(".")


def _by_status(status: int, said: str, where: str, project: str) -> CloudError:
    if policy := failures.policy_in(said):
        return failures.forbidden_by_policy(policy, said, where, project)
    if status == 403 and "billing account" in said:
        return billing_disabled(project, where=where)
    if status == 403 and ("disabled" in said or "has not been used" in said):
        consumer = failures.consumer_in(said, project)
        return service_disabled("storage.googleapis.com", consumer, where=where)
    if status == 401:
        fix = "Type `gcloud auth application-default login` in a terminal."
        return CredentialsError("Google did not accept the credentials", where=where, fix=fix)
    if status == 403:
        what = f"The credentials in use do not allow this: {said}"
        return AccessError(
            what, where=where, fix=f"Ask for {_WRITE}, and for {_MAKE}; or use --bucket none."
        )
    if status == 404:
        return GoneError(
            f"There is no such bucket or object: {said}",
            where=where,
            fix="Name another with --bucket.",
        )
    if status == 409:
        what = f"The name is taken: {said}"
        fix = "Bucket names are the whole world's: choose another with --bucket."
        return AlreadyExistsError(what, where=where, fix=fix)
    if status == 412:
        return ChangedError(
            "Somebody else has changed it meanwhile", where=where, fix="Read it again first."
        )
    if status == 429:
        return RateLimitError(
            f"Cloud Storage takes no more requests now: {said}", where=where, fix="Wait a minute."
        )
    if status >= 500:
        return UnreachableError(
            f"Cloud Storage failed (HTTP {status}): {said}", where=where, fix="Try again later."
        )
    return CloudError(f"Cloud Storage refused ({status}): {said}", where=where)


_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_GOOGLE = "https://sts.googleapis.com"
_PLAIN_PLACE = re.compile(r"gs://([a-z0-9][a-z0-9_.-]*)(?:/([A-Za-z0-9_.=/-]*))?")


@dataclass(frozen=True)
class Reach:
    """What may be done with the objects whose names begin with `place` (`gs://bucket/text`).

    A place that is to be a folder ends in a slash. To be a user is to read, list, make, replace and
    delete; a creator makes what is not there yet, and neither reads nor replaces anything.
    """

    place: str
    role: Literal["objectUser", "objectViewer", "objectCreator"]

    def rule(self) -> dict[str, Any]:
        """As a rule of an access boundary. ValueError for a place whose name could end its
        condition.
        """
        found = _PLAIN_PLACE.fullmatch(self.place)
        if not found:
            raise ValueError(f"{self.place!r} is no place in a bucket")
        bucket = found[1]
        begin = found[2] or ""
        resource = f"projects/_/buckets/{bucket}"
        rule: dict[str, Any] = {
            "availableResource": f"//storage.googleapis.com/{resource}",
            "availablePermissions": [f"inRole:roles/storage.{self.role}"],
        }
        clauses = [f"resource.name.startsWith('{resource}/objects/{begin}')"]
        if self.role != "objectCreator":
            listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
            clauses.append(f"{listed}.startsWith('{begin}')")
        return rule | (
            {"availabilityCondition": {"expression": " || ".join(clauses)}} if begin else {}
        )


@dataclass(frozen=True)
class BoundedToken:
    """A token and when it ends (seconds since 1970). Its holder may do what its boundary allows."""

    text: str = field(repr=False)
    expires: float

    def to_dict(self) -> dict[str, Any]:
        """As what is handed to a VM."""
        return {"token": self.text, "expires": self.expires}


async def bounded_token(
    reaches: Sequence[Reach], project: str, endpoint: str | None = None, *, patience: float = 60.0
) -> BoundedToken:
    """A token for these places, at `endpoint` (an emulator) or at Google with the default
    credentials.

    CredentialsError if there are none or they have expired, AccessError if they cannot be
    exchanged, other CloudErrors after `patience` seconds of attempts, or at once for a place that
    cannot be bounded.
    """
    try:
        rules = [reach.rule() for reach in reaches]
    except ValueError as error:
        raise CloudError(f"There is no token for such a place: {error}", where="gs://") from error

    def explain(error: Exception, where: str) -> CloudError | None:
        from google.auth.exceptions import OAuthError

        if isinstance(error, OAuthError):
            what = f"The Security Token Service gives no token for the VMs: {error.args[0]}"
            fix = f"Type `gcloud services enable sts.googleapis.com --project {project}`."
            return AccessError(what, where=where, fix=fix)
        return failures.explain(error, where=where, project=project, endpoint=endpoint or _GOOGLE)

    attempts = Attempts("tokens", 1, patience, explain)
    options = {"accessBoundary": {"accessBoundaryRules": rules}}
    try:
        return await attempts.call(reaches[0].place, lambda: _exchange(options, endpoint))
    finally:
        attempts.end()


def _exchange(options: dict[str, Any], endpoint: str | None) -> BoundedToken:
    import google.auth
    from google.auth.transport.requests import Request
    from google.oauth2 import sts
    from requests import Session

    own = "of-this-user"
    ends = 0.0
    session = Session()
    session.trust_env = not endpoint
    with session:
        request = Request(session)
        if not endpoint:  # a fresh one, so that what it is exchanged for lives long
            credentials, _ = google.auth.default(scopes=[_PLATFORM_SCOPE])
            credentials.refresh(request)
            own = credentials.token or ""
            if credentials.expiry:
                ends = credentials.expiry.replace(tzinfo=UTC).timestamp()
            else:
                ends = 0.0
        begun = now()
        answer = sts.Client(f"{endpoint or _GOOGLE}/v1/token").exchange_token(
            request,
            _GRANT,
            own,
            _ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=options,
        )
    lasts = float(answer.get("expires_in") or 0)  # Google leaves it out where it is the old token's
    return BoundedToken(str(answer["access_token"]), begun + lasts if lasts else ends)
