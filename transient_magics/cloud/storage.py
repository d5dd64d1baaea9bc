"""Cloud Storage as far as we use it: make a bucket; put, get, list and delete its objects.

Every call runs in a thread and is awaited (`calls.py`). Contents are checked with CRC32C in both
directions; a downloaded file appears whole or not at all. Writes may name the generation that they
replace (0: a new object): of several writers one succeeds, the others get ChangedError.

A `BoundedToken` is an access token for some places of buckets (Credential Access Boundaries). A
controller exchanges its own token at the Security Token Service for one that is limited to
`Reach`es, and sends that to a VM that runs a user's code. The new token has the intersection of
both rights, and lives as long as the old one. Such tokens require buckets with uniform access.
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
# Without Google's own retries, and with a time limit for silence in seconds.
_PLAIN: dict[str, Any] = {"retry": None, "timeout": 60.0}
_SOFT_DELETE = "storage.softDeletePolicySeconds"
_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"


@dataclass(frozen=True)
class Stored:
    """One object: name in the bucket, size in bytes, CRC32C (base64, big-endian), generation."""

    name: str
    size: int
    crc32c: str
    generation: int


class CloudStorage:
    """The buckets that a project may use.

    Parameters
    ----------
    project
        Its ID.
    endpoint
        An emulator's URL; None is Google, with default credentials.
    patience
        Seconds of retries before a request's error is raised.
    """

    def __init__(
        self, project: str, endpoint: str | None = None, *, patience: float = 60.0
    ) -> None:
        self.project = project
        self.endpoint = endpoint.rstrip("/") if endpoint else None

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
        """Find new credentials and build the client; requests in flight keep the old client."""
        async with self._attempts.explaining(f"project {self.project}"):
            self._client = await self._attempts.threaded(
                lambda: _client(self.project, self.endpoint)
            )

    async def ensure_bucket(self, name: str, location: str, *, own: bool = False) -> str:
        """Make sure that the bucket exists; create it in `location` (a region) if it does not.

        A new bucket has uniform access, no public access, and no soft delete: with that, replaced
        checkpoints would be billed for another week. If an organization requires soft delete, the
        bucket has it.

        Parameters
        ----------
        name
            The bucket.
        location
            A region.
        own
            Whether it must belong to the project. Names are guessable, so another owner of the name
            would receive all objects.

        Returns
        -------
        str
            Weaknesses of an existing bucket in sentences, or ''.

        Raises
        ------
        AccessError
            For a bucket without uniform access, in which bounded tokens have no effect.
        AlreadyExistsError
            If `own` is true and another project owns the bucket.
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

        if (warning := await self.check(name, own=own)) is not None:
            return warning
        try:
            try:
                made = await self._attempts.call(where, lambda: make(soft_delete=False))
            except AccessError as error:
                if policy_in(error.what) != _SOFT_DELETE:
                    raise
                made = await self._attempts.call(where, lambda: make(soft_delete=True))
        except AlreadyExistsError as error:
            # Another controller may have created it at the same moment, or an attempt whose answer
            # was lost.
            if (warning := await self.check(name, own=True)) is not None:
                return warning
            what = f"Another project owns the bucket {name}"
            raise AlreadyExistsError(
                what, where=f"project {self.project}", fix="Name another with --bucket."
            ) from error
        return _weaknesses(made)

    async def check(self, name: str, *, own: bool = False) -> str | None:
        """Return a bucket's weaknesses as `ensure_bucket` does; None if it does not exist.

        With `own` only buckets of the project count.
        """
        where = f"gs://{name}"

        def is_there() -> storage.Bucket:
            return self._client.get_bucket(name, **_PLAIN)

        def listed() -> storage.Bucket | None:
            found = self._client.list_buckets(prefix=name, project=self.project, **_PLAIN)
            return next((bucket for bucket in found if bucket.name == name), None)

        try:
            found = await self._attempts.call(where, listed if own else is_there)
        except GoneError:
            return None
        except AccessError as error:
            if own or isinstance(error, (CredentialsError, ConsumerError)):
                raise
            what = (
                f"The bucket {name} cannot be used: another project owns it, or a role is missing"
            )
            raise AccessError(what, where=where, fix=error.fix) from error
        if found:
            return _weaknesses(found)
        return None

    async def upload(
        self, bucket: str, name: str, path: Path, *, generation: int | None = None
    ) -> Stored:
        """Upload a file; `generation` is the one that it may replace (0: a new object)."""
        blob = self._client.bucket(bucket).blob(name)

        def put() -> None:
            blob.upload_from_filename(
                str(path), checksum="crc32c", if_generation_match=generation, **_PLAIN
            )

        expected = ""
        if generation is not None:
            expected = await self._attempts.threaded(lambda: checksum(path))
        return await self._write(blob, put, expected)

    async def write_json(
        self, bucket: str, name: str, value: Any, *, generation: int | None = None
    ) -> Stored:
        """Write a small JSON value; `generation` is the one that it may replace (0: a new object)."""
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
        """Return a small JSON value and its generation; (None, 0) for a missing object.

        Raises CloudError.
        """
        blob = self._client.bucket(bucket).blob(name)
        where = f"gs://{bucket}/{name}"
        try:
            content = await self._attempts.call(
                where, lambda: blob.download_as_bytes(checksum="crc32c", **_PLAIN)
            )
        except GoneError:
            # Make sure that the bucket itself exists. To read its metadata needs another role.
            await self.list(bucket, name, most=1)
            return None, 0
        try:
            return json.loads(content), int(blob.generation or 0)
        except (ValueError, RecursionError) as error:
            raise CloudError("The object does not contain JSON", where=where) from error

    async def download(
        self, bucket: str, name: str, path: Path, *, generation: int | None = None
    ) -> None:
        """Download an object as a file, whose folder is created if needed.

        `generation` is the required one.
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
        """Return the objects whose names begin with `prefix`, in order, at most `most`."""

        def pages() -> list[Stored]:
            found = self._client.list_blobs(bucket, prefix=prefix, max_results=most, **_PLAIN)
            return [_stored(blob) for blob in found]

        return await self._attempts.call(f"gs://{bucket}/{prefix}", pages)

    async def delete(self, bucket: str, name: str) -> None:
        """Delete an object. A missing one is a success."""
        blob = self._client.bucket(bucket).blob(name)
        try:
            await self._attempts.call(f"gs://{bucket}/{name}", lambda: blob.delete(**_PLAIN))
        except GoneError:
            return

    async def delete_prefix(self, bucket: str, prefix: str) -> None:
        """Delete all objects whose names begin with `prefix`, which must not be empty."""
        if not prefix:
            raise ValueError("an empty prefix would delete all objects of the bucket")
        async with asyncio.TaskGroup() as tasks:
            for stored in await self.list(bucket, prefix):
                tasks.create_task(self.delete(bucket, stored.name))

    async def _write(self, blob: storage.Blob, put: Callable[[], None], expected: str) -> Stored:
        """Write an object; `expected` is the checksum by which our own content is recognized."""
        where = f"gs://{blob.bucket.name}/{blob.name}"
        try:
            await self._attempts.call(where, put)
        except ChangedError:
            # Perhaps an earlier attempt of ours wrote it, and its answer was lost.
            await self._attempts.call(where, lambda: blob.reload(**_PLAIN))
            if blob.crc32c != expected:
                raise
        return _stored(blob)


def checksum(path: Path) -> str:
    """Return a file's CRC32C in the form of Cloud Storage: base64 of the big-endian number."""
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
    # For traces the client requests each bucket it meets: in threads that outlive it, with its own
    # retries, and with a permission that a bucket's writer may lack.
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
    _session(client).trust_env = False  # no proxy between us and the emulator
    return client


def _session(client: Any) -> Any:
    """Return the session of a client: private, but the only access to it."""
    return client._http


def _weaknesses(bucket: storage.Bucket) -> str:
    access = bucket.iam_configuration
    change = f"gcloud storage buckets update gs://{bucket.name}"
    if not access.uniform_bucket_level_access_enabled:
        what = (
            f"Objects of the bucket {bucket.name} may have their own rights: VMs cannot be "
            "limited to their place"
        )
        fix = f"Type `{change} --uniform-bucket-level-access`, or name another with --bucket."
        raise AccessError(what, where=f"gs://{bucket.name}", fix=fix)
    notes: list[str] = []
    if access.public_access_prevention != "enforced":
        notes.append(
            f"The bucket {bucket.name} could be opened to the public; "
            f"`{change} --public-access-prevention` prevents that"
        )
    if retention := bucket.soft_delete_policy.retention_duration_seconds:
        notes.append(
            f"Objects deleted from the bucket {bucket.name}, such as replaced checkpoints, are "
            f"billed for {retention / 86400:g} more days; `{change} --clear-soft-delete` ends "
            "that, unless a policy forbids it"
        )
    return ". ".join(notes)


def _stored(blob: storage.Blob) -> Stored:
    return Stored(blob.name, int(blob.size or 0), str(blob.crc32c), int(blob.generation or 0))


_WRITE = "roles/storage.objectAdmin on the bucket"
_MAKE = "roles/storage.admin in the project of the new bucket"


def explain(error: Exception, *, where: str, project: str, endpoint: str = "") -> CloudError | None:
    """Return the typed error for `error`, met at `where`; None for a defect of this program."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, GoogleAPICallError):
        sentence = _google_message(str(error.message or error))
        if found := explain_infrastructure(
            error_info(error), sentence, where=where, project=project
        ):
            return found
        return _by_status(int(error.code or 0), sentence, where, project)
    if isinstance(error, DataCorruption):
        return CloudError(
            "The contents of the object were damaged in transit", where=where, fix="Try again."
        )
    if isinstance(error, (requests.exceptions.RequestException, TransportError)):
        if endpoint:
            remedy = "Check the network and that the emulator runs."
        else:
            remedy = "Check the network and any proxy settings."
        what = f"{endpoint or 'https://storage.googleapis.com'} does not answer"
        return UnreachableError(what, where=where, fix=remedy)
    return failures.explain(error, where=where, project=project, endpoint=endpoint)


def _google_message(message: str) -> str:
    """Return Google's own message, without the request or the answer that its client adds."""
    found = re.search(r'"message": ?"([^"]+)"', message)
    line = found[1] if found else message.split("\n", 1)[0]
    return " ".join(failures.without_request(line).split()).rstrip(".")


def _by_status(status: int, sentence: str, where: str, project: str) -> CloudError:
    if policy := failures.policy_in(sentence):
        return failures.forbidden_by_policy(policy, sentence, where, project)
    if status == 403 and "billing account" in sentence:
        return billing_disabled(project, where=where)
    if status == 403 and ("disabled" in sentence or "has not been used" in sentence):
        consumer = failures.consumer_in(sentence, project)
        return service_disabled("storage.googleapis.com", consumer, where=where)
    if status == 401:
        fix = "Type `gcloud auth application-default login` in a terminal."
        return CredentialsError("Google did not accept the credentials", where=where, fix=fix)
    if status == 403:
        what = f"The credentials in use do not allow this: {sentence}"
        return AccessError(
            what, where=where, fix=f"Ask for {_WRITE}, and for {_MAKE}; or use --bucket none."
        )
    if status == 404:
        return GoneError(
            f"The bucket or object does not exist: {sentence}",
            where=where,
            fix="Name another with --bucket.",
        )
    if status == 409:
        what = f"The name is in use: {sentence}"
        fix = "Bucket names are unique worldwide: choose another with --bucket."
        return AlreadyExistsError(what, where=where, fix=fix)
    if status == 412:
        return ChangedError(
            "The object was changed after it was read", where=where, fix="Read it again first."
        )
    if status == 429:
        return RateLimitError(
            f"Cloud Storage rejects requests, because there were too many: {sentence}",
            where=where,
            fix="Wait a minute.",
        )
    if status >= 500:
        return UnreachableError(
            f"Cloud Storage failed (HTTP {status}): {sentence}", where=where, fix="Try again later."
        )
    return CloudError(f"Cloud Storage refused the request ({status}): {sentence}", where=where)


_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_GOOGLE = "https://sts.googleapis.com"
_PLAIN_PLACE = re.compile(r"gs://([a-z0-9][a-z0-9_.-]*)(?:/([A-Za-z0-9_.=/-]*))?")


@dataclass(frozen=True)
class Reach:
    """Rights on the objects whose names begin with `place` (`gs://bucket/text`).

    A folder ends in a slash. A user reads, lists, creates, replaces and deletes. A creator only
    creates new objects, and neither reads nor replaces any.
    """

    place: str
    role: Literal["objectUser", "objectViewer", "objectCreator"]

    def rule(self) -> dict[str, Any]:
        """Return the rule of an access boundary.

        Raises ValueError for a place whose name could end the rule's condition.
        """
        found = _PLAIN_PLACE.fullmatch(self.place)
        if not found:
            raise ValueError(
                f"{self.place!r} is not a valid bucket path: use gs://BUCKET/FOLDER with letters, "
                "digits and _ . = / -"
            )
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
        if begin:
            rule["availabilityCondition"] = {"expression": " || ".join(clauses)}
        return rule


@dataclass(frozen=True)
class BoundedToken:
    """A token and its expiry (seconds since 1970). Its boundary limits its rights."""

    text: str = field(repr=False)
    expires: float

    def to_dict(self) -> dict[str, Any]:
        """Return the values that are sent to a VM."""
        return {"token": self.text, "expires": self.expires}


async def bounded_token(
    reaches: Sequence[Reach], project: str, endpoint: str | None = None, *, patience: float = 60.0
) -> BoundedToken:
    """Return a token for these places.

    Parameters
    ----------
    reaches
        The places and rights.
    project
        The project, for remedies.
    endpoint
        An emulator's URL; None is Google, with default credentials.
    patience
        Seconds of retries.

    Raises
    ------
    CredentialsError
        Without credentials, or if they have expired.
    AccessError
        If they cannot be exchanged.
    CloudError
        After `patience` seconds, or immediately for a place that cannot be bounded.
    """
    try:
        rules = [reach.rule() for reach in reaches]
    except ValueError as error:
        raise CloudError(
            f"The token cannot be limited to a folder: {error}", where="gs://"
        ) from error

    def explain(error: Exception, where: str) -> CloudError | None:
        from google.auth.exceptions import OAuthError

        if isinstance(error, OAuthError):
            what = f"The Security Token Service refuses a token for the VMs: {error.args[0]}"
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
        if not endpoint:  # a fresh token, so that the exchanged one lives long
            credentials, _ = google.auth.default(scopes=[_PLATFORM_SCOPE])
            credentials.refresh(request)
            own = credentials.token or ""
            if credentials.expiry:
                ends = credentials.expiry.replace(tzinfo=UTC).timestamp()
        begun = now()
        answer = sts.Client(f"{endpoint or _GOOGLE}/v1/token").exchange_token(
            request,
            _GRANT,
            own,
            _ACCESS_TOKEN,
            requested_token_type=_ACCESS_TOKEN,
            additional_options=options,
        )
    # Google omits the lifetime if it is the old token's.
    lasts = float(answer.get("expires_in") or 0)
    return BoundedToken(str(answer["access_token"]), begun + lasts if lasts else ends)
