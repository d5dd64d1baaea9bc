"""A place in a bucket (`gs://bucket/path`) for programs on a VM: blocking, with Google's client.

The VM has no rights of its own. The controller brings a token for the run's places that is valid
for at most an hour, and a new one before it expires; the file is read again when the token in use
expires. A worker gets a token for the records alone from the chief. Google's client retries
(jittered, for two minutes at most). Errors are TrainingErrors that say what to do.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ...errors import TrainingError
from .manifest import File, checksum, described, split

_RETRY_SECONDS = 120.0
_SILENCE_SECONDS = 60.0
_PIECE = 1 << 18
_ROLE = (
    "The account that declared the cluster needs the role roles/storage.objectUser on the bucket."
)
_WAIT = "The controller sends one as soon as possible; until then checkpoints stay on the VM."


class OvertakenError(TrainingError):
    """Another process wrote the object first."""


class DamagedError(TrainingError):
    """An object is missing, or is not the expected one."""


class Listed(NamedTuple):
    """An object in a list; `made` is in seconds since 1970 by the bucket's clock."""

    name: str
    size: int
    crc32c: str
    made: float


class Sink(Protocol):
    """A receiver of the bytes of a download; an exception of `write` ends the download."""

    def write(self, piece: bytes, /) -> int:
        """Receive the next bytes."""
        ...


class Bucket:
    """The objects below a place in a bucket.

    Parameters
    ----------
    place
        `gs://bucket/path`.
    token
        The file into which the controller writes a token, or a function that returns its content,
        and raises OSError or ValueError if it has none. None for default credentials.
    """

    def __init__(
        self, place: str, token: Path | Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        self.place = place.rstrip("/")
        name, self._path = split(place)
        # Objects belong to their bucket. A project is needed only to create one.
        project = None
        if token or os.environ.get("STORAGE_EMULATOR_HOST"):
            project = "emulated-project"
        credentials = _credentials(token) if token else None
        with self._explaining(""):
            self._client = storage.Client(project, credentials)
        # Prevent additional requests by the client, as in `cloud/storage.py`.
        self._client._bucket_metadata_cache = None  # pyright: ignore[reportAttributeAccessIssue]
        self._session, self._endpoint = _session_of(self._client)
        self._bucket = self._client.bucket(name)
        self._options: dict[str, Any] = {
            "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS),
            "timeout": _SILENCE_SECONDS,
        }

    def read_json(self, name: str) -> tuple[Any, int]:
        """Return a small JSON value and its generation; (None, 0) if there is none.

        The bucket itself must exist.
        """
        content, generation = self.read(name)
        if content is None:
            return None, 0
        try:
            return json.loads(content), generation
        except (ValueError, RecursionError) as error:
            raise TrainingError(
                "the object does not contain JSON", where=f"{self.place}/{name}"
            ) from error

    def read(self, name: str) -> tuple[bytes | None, int]:
        """Return a small object and its generation; (None, 0) if there is none.

        The bucket itself must exist.
        """
        from google.api_core.exceptions import Forbidden, NotFound

        blob = self._blob(name)
        with self._explaining(name):
            try:
                content = blob.download_as_bytes(checksum="crc32c", **self._options)
            except (NotFound, Forbidden):
                if self._is_there(name):
                    raise
                return None, 0
        return content, int(blob.generation)

    def write_json(self, name: str, value: Any, generation: int) -> None:
        """Replace a generation (0: no object) of a small JSON value.

        Raises OvertakenError if the object has another generation.
        """
        import base64

        import google_crc32c

        content = json.dumps(value, indent=1).encode()
        blob = self._blob(name)
        own = base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
        with self._explaining(name), self._unless_own(blob, own):
            blob.upload_from_string(
                content,
                "application/json",
                checksum="crc32c",
                if_generation_match=generation,
                **self._options,
            )

    def upload(self, path: Path, name: str) -> File:
        """Upload a file where there is no object yet, and return its entry for a manifest.

        The file is read first; afterwards the bucket's checksum is compared.
        """
        file = described(path)
        blob = self._blob(name)
        with self._explaining(name), self._unless_own(blob, file.crc32c):
            blob.upload_from_filename(
                str(path), checksum="crc32c", if_generation_match=0, **self._options
            )
        if (blob.size, blob.crc32c) != (file.size, file.crc32c):
            raise TrainingError(
                f"{path.name} changed while it was uploaded", where=f"{self.place}/{name}"
            )
        return file

    def download(self, file: File, name: str, path: Path) -> None:
        """Download the object that must be `file`.

        Raises DamagedError if it is missing, or another one.
        """
        from google.api_core.exceptions import Forbidden, NotFound

        part = path.with_name(f".{path.name}.part")
        try:
            with self._explaining(name):
                try:
                    self._blob(name).download_to_filename(
                        str(part), checksum="crc32c", **self._options
                    )
                except (NotFound, Forbidden):
                    if self._is_there(name):
                        raise
                    raise DamagedError(
                        f"{file.name} is missing", where=f"{self.place}/{name}"
                    ) from None
            if part.stat().st_size != file.size or checksum(part) != file.crc32c:
                raise DamagedError(
                    f"{file.name} differs from the manifest", where=f"{self.place}/{name}"
                )
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def read_range(self, name: str, begin: int, size: int, sink: Sink, patience: float) -> None:
        """Write a range of an object to `sink`, in one attempt and without verification.

        Uses the client's session: its own downloads return 8 KiB at a time, which costs a core for
        about 100 MB/s.

        Parameters
        ----------
        name
            The object.
        begin, size
            The range in bytes.
        sink
            Receives the bytes as they arrive.
        patience
            Seconds without a byte after which the download ends.
        """
        from google.api_core.exceptions import from_http_response
        from urllib3.exceptions import HTTPError

        url = f"{self._endpoint}/download/storage/v1{self._blob(name).path}"
        request = {
            "params": {"alt": "media"},
            "headers": {"Range": f"bytes={begin}-{begin + size - 1}"},
        }
        with (
            self._explaining(name),
            self._session.get(url, stream=True, timeout=patience, **request) as answer,
        ):
            if answer.status_code == HTTPStatus.OK:  # its body is the whole object
                raise TrainingError(
                    "Cloud Storage ignores the requested range", where=f"{self.place}/{name}"
                )
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise from_http_response(answer)
            try:
                while piece := answer.raw.read1(_PIECE):
                    sink.write(piece)
            except HTTPError as error:
                raise ConnectionError(
                    f"the download from Cloud Storage ended early: {error}"
                ) from error

    def list(self, prefix: str) -> list[Listed]:
        """Return the objects below `prefix`, oldest first."""
        with self._explaining(prefix):
            found = list(
                self._client.list_blobs(self._bucket, prefix=self._path + prefix, **self._options)
            )
        return sorted(map(self._listed, found), key=lambda listed: listed.made)

    def _listed(self, blob: Any) -> Listed:
        made = blob.time_created.timestamp() if blob.time_created else 0.0
        name = blob.name.removeprefix(self._path)
        return Listed(name, blob.size or 0, str(blob.crc32c), made)

    def files(self) -> list[File]:
        """Return the objects directly in the place, without those in folders below it."""
        with self._explaining(""):
            found = list(
                self._client.list_blobs(
                    self._bucket, prefix=self._path, delimiter="/", **self._options
                )
            )
        files = [
            File(blob.name.removeprefix(self._path), blob.size or 0, str(blob.crc32c))
            for blob in found
        ]
        return [file for file in files if file.name]

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        from google.api_core.exceptions import NotFound

        with self._explaining(name), contextlib.suppress(NotFound):
            self._blob(name).delete(**self._options)

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(self._path + name)

    def _is_there(self, name: str) -> bool:
        """Return whether a list contains an object.

        For a missing object, some tokens get the answer that they may not see it.
        """
        whole = self._path + name
        found = self._client.list_blobs(self._bucket, prefix=whole, max_results=1, **self._options)
        return any(blob.name == whole for blob in found)

    @contextlib.contextmanager
    def _unless_own(self, blob: Any, crc32c: str) -> Iterator[None]:
        """Treat a refusal as success if an earlier attempt of this process wrote the object.

        The answer to that attempt was lost. A token that may not replace the object is refused
        before the condition is checked.
        """
        from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed

        try:
            yield
        except (PreconditionFailed, Forbidden) as error:
            try:
                blob.reload(**self._options)
            except (NotFound, Forbidden):
                raise error from None
            if blob.crc32c != crc32c:
                raise PreconditionFailed("another object exists") from error

    @contextlib.contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        """Convert Google's errors to TrainingErrors."""
        import requests.exceptions
        from google.api_core.exceptions import (
            Forbidden,
            GoogleAPICallError,
            NotFound,
            PreconditionFailed,
            RetryError,
        )
        from google.auth.exceptions import GoogleAuthError, RefreshError
        from google.cloud.storage.exceptions import DataCorruption

        where = f"{self.place}/{name}"
        try:
            yield
        except PreconditionFailed as error:
            raise OvertakenError("another process wrote it first", where=where) from error
        except RefreshError as error:
            raise TrainingError(
                "the VM has no valid token for the bucket", where=where, fix=_WAIT
            ) from error
        except (Forbidden, GoogleAuthError) as error:
            raise TrainingError(
                "the VM has no right to use the bucket", where=where, fix=_ROLE
            ) from error
        except NotFound as error:
            raise TrainingError("the bucket or object does not exist", where=where) from error
        except (
            GoogleAPICallError,
            RetryError,
            DataCorruption,
            requests.exceptions.RequestException,
        ) as error:
            message = " ".join(str(error).split())[:200]
            raise TrainingError(f"Cloud Storage failed: {message}", where=where) from error


def _session_of(client: Any) -> tuple[Any, str]:
    """Return the session of a client, which is private, and the address of the service."""
    return client._http, client.api_endpoint


def _credentials(token: Path | Callable[[], Mapping[str, Any]]) -> Any:
    """Return credentials that read the token from its file or function when they need one."""
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials

    def read(request: Any = None, scopes: Any = None) -> tuple[str, datetime]:
        try:
            if isinstance(token, Path):
                content = json.loads(token.read_text(encoding="utf-8"))
            else:
                content = token()
            expires = datetime.fromtimestamp(float(content["expires"]), UTC)
            return str(content["token"]), expires.replace(tzinfo=None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefreshError(f"no token: {error!r}") from error

    return Credentials(None, refresh_handler=read)
