"""A place in a bucket (`gs://bucket/path`), as programs on a VM use it: blocking, with Google's own
client.

The VM has no rights of its own. The controller brings a token that opens the run's places for an
hour at most, and a fresh one before that has passed; it is read anew whenever the one in use comes
to its end. A worker has one that opens the records alone, from the chief. Retries are Google's
(jittered, two minutes at most). Errors are TrainingErrors that say what to do.
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
_ROLE = "Who declared the cluster needs the role roles/storage.objectUser on the bucket."
_WAIT = (
    "The cluster's controller brings one as soon as it can; until then checkpoints stay on the VM."
)


class OvertakenError(TrainingError):
    """Somebody else wrote the object first."""


class DamagedError(TrainingError):
    """An object is not there, or is another one than it must be."""


class Listed(NamedTuple):
    """An object as a list tells it: `made` in seconds since 1970, by the bucket's clock."""

    name: str
    size: int
    crc32c: str
    made: float


class Sink(Protocol):
    """What takes the bytes of a download as they come; whatever `write` raises ends it."""

    def write(self, piece: bytes, /) -> int: ...


class Bucket:
    """Objects below `place`. `token` is the file in which the controller puts one, or gives what
    would be in it (raises OSError or ValueError where it has none); None: default credentials.
    """

    def __init__(
        self, place: str, token: Path | Callable[[], Mapping[str, Any]] | None = None
    ) -> None:
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        self.place = place.rstrip("/")
        name, self._path = split(place)
        # Objects belong to their bucket: the project only counts for making one, which is not done
        # here.
        emulated = bool(os.environ.get("STORAGE_EMULATOR_HOST"))
        with self._explaining(""):
            project = "emulated-project" if emulated or token else None
            self._client = storage.Client(project, _brought(token) if token else None)
        # No requests of its own accord, as in `cloud/storage.py`.
        self._client._bucket_metadata_cache = None  # pyright: ignore[reportAttributeAccessIssue]
        self._session, self._endpoint = _way(self._client)
        self._bucket = self._client.bucket(name)
        self._how: dict[str, Any] = {
            "retry": DEFAULT_RETRY.with_timeout(_RETRY_SECONDS),
            "timeout": _SILENCE_SECONDS,
        }

    def read_json(self, name: str) -> tuple[Any, int]:
        """A small JSON value and its generation; (None, 0) where there is none. The bucket itself
        must be there.
        """
        content, generation = self.read(name)
        if content is None:
            return None, 0
        try:
            return json.loads(content), generation
        except (ValueError, RecursionError) as error:
            raise TrainingError("the object is not JSON", where=f"{self.place}/{name}") from error

    def read(self, name: str) -> tuple[bytes | None, int]:
        """A small object and its generation; (None, 0) where there is none. The bucket itself must
        be there.
        """
        from google.api_core.exceptions import Forbidden, NotFound

        blob = self._blob(name)
        with self._explaining(name):
            try:
                content = blob.download_as_bytes(checksum="crc32c", **self._how)
            except (NotFound, Forbidden):
                if self._is_there(name):
                    raise
                return None, 0
        return content, int(blob.generation)

    def write_json(self, name: str, value: Any, generation: int) -> None:
        """Replace this generation (0: nothing) of a small JSON value. OvertakenError if it is
        another one by now.
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
                **self._how,
            )

    def upload(self, path: Path, name: str) -> File:
        """Put a file where nothing is yet, and return what is there now: read first, checked by the
        bucket after it.
        """
        file = described(path)
        blob = self._blob(name)
        with self._explaining(name), self._unless_own(blob, file.crc32c):
            blob.upload_from_filename(
                str(path), checksum="crc32c", if_generation_match=0, **self._how
            )
        if (blob.size, blob.crc32c) != (file.size, file.crc32c):
            raise TrainingError(
                f"{path.name} changed while it was uploaded", where=f"{self.place}/{name}"
            )
        return file

    def download(self, file: File, name: str, path: Path) -> None:
        """Get the object that must be `file`. DamagedError if it is not there, or another one."""
        from google.api_core.exceptions import Forbidden, NotFound

        part = path.with_name(f".{path.name}.part")
        try:
            with self._explaining(name):
                try:
                    self._blob(name).download_to_filename(str(part), checksum="crc32c", **self._how)
                except (NotFound, Forbidden):
                    if self._is_there(name):
                        raise
                    raise DamagedError(
                        f"{file.name} is missing", where=f"{self.place}/{name}"
                    ) from None
            if part.stat().st_size != file.size or checksum(part) != file.crc32c:
                raise DamagedError(
                    f"{file.name} is not what the manifest says", where=f"{self.place}/{name}"
                )
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)

    def read_range(self, name: str, begin: int, size: int, sink: Sink, patience: float) -> None:
        """Give `size` bytes of an object from `begin` on to `sink`; they are not checked. Once:
        nothing is tried again.

        It ends after `patience` seconds without a byte. `sink` has them as they come, through the
        client's session: its own downloads hand out 8 KiB at a time, which takes a core for some
        100 MB/s.
        """
        from google.api_core.exceptions import from_http_response
        from urllib3.exceptions import HTTPError

        url = f"{self._endpoint}/download/storage/v1{self._blob(name).path}"
        asked = {
            "params": {"alt": "media"},
            "headers": {"Range": f"bytes={begin}-{begin + size - 1}"},
        }
        with (
            self._explaining(name),
            self._session.get(url, stream=True, timeout=patience, **asked) as answer,
        ):
            if answer.status_code == HTTPStatus.OK:  # its body is all of the object
                raise TrainingError(
                    "Cloud Storage sends no part of it, only all", where=f"{self.place}/{name}"
                )
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                raise from_http_response(answer)
            try:
                while piece := answer.raw.read1(_PIECE):
                    sink.write(piece)
            except HTTPError as error:
                raise ConnectionError(f"Cloud Storage sends no more: {error}") from error

    def list(self, prefix: str) -> list[Listed]:
        """The objects below `prefix`, oldest first."""
        with self._explaining(prefix):
            found = list(
                self._client.list_blobs(self._bucket, prefix=self._path + prefix, **self._how)
            )
        objects = [
            Listed(
                each.name.removeprefix(self._path),
                each.size or 0,
                str(each.crc32c),
                each.time_created.timestamp() if each.time_created else 0.0,
            )
            for each in found
        ]
        return sorted(objects, key=lambda each: each.made)

    def files(self) -> list[File]:
        """What lies in the place itself, not in folders below it."""
        with self._explaining(""):
            found = list(
                self._client.list_blobs(self._bucket, prefix=self._path, delimiter="/", **self._how)
            )
        files = [
            File(each.name.removeprefix(self._path), each.size or 0, str(each.crc32c))
            for each in found
        ]
        return [file for file in files if file.name]

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        from google.api_core.exceptions import NotFound

        with self._explaining(name), contextlib.suppress(NotFound):
            self._blob(name).delete(**self._how)

    def _blob(self, name: str) -> Any:
        return self._bucket.blob(self._path + name)

    def _is_there(self, name: str) -> bool:
        """Whether a list has it: of what is not there, some tokens are told no more than that they
        may not see it.
        """
        whole = self._path + name
        found = self._client.list_blobs(self._bucket, prefix=whole, max_results=1, **self._how)
        return any(each.name == whole for each in found)

    @contextlib.contextmanager
    def _unless_own(self, blob: Any, crc32c: str) -> Iterator[None]:
        """A refusal because of what our earlier attempt wrote, whose answer was lost, counts as
        success.

        Who may not replace what he finds there is refused before his condition is looked at.
        """
        from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed

        try:
            yield
        except (PreconditionFailed, Forbidden) as error:
            try:
                blob.reload(**self._how)
            except (NotFound, Forbidden):
                raise error from None
            if blob.crc32c != crc32c:
                raise PreconditionFailed("another one is there") from error

    @contextlib.contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
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
            raise OvertakenError("somebody else was faster", where=where) from error
        except RefreshError as error:
            raise TrainingError(
                "the VM has no token for the bucket now", where=where, fix=_WAIT
            ) from error
        except (Forbidden, GoogleAuthError) as error:
            raise TrainingError("the VM may not use the bucket", where=where, fix=_ROLE) from error
        except NotFound as error:
            raise TrainingError("there is no such bucket or object", where=where) from error
        except (
            GoogleAPICallError,
            RetryError,
            DataCorruption,
            requests.exceptions.RequestException,
        ) as error:
            said = " ".join(str(error).split())[:200]
            raise TrainingError(f"Cloud Storage does not do it: {said}", where=where) from error


def _way(client: Any) -> tuple[Any, str]:
    """The session through which a client asks (private, but there is no other way to it), and
    where.
    """
    return client._http, client.api_endpoint


def _brought(token: Path | Callable[[], Mapping[str, Any]]) -> Any:
    """Credentials of the token that lies in a file, or will, or that is given."""
    from google.auth.exceptions import RefreshError
    from google.oauth2.credentials import Credentials

    def read(request: Any = None, scopes: Any = None) -> tuple[str, datetime]:
        try:
            if isinstance(token, Path):
                told = json.loads(token.read_text(encoding="utf-8"))
            else:
                told = token()
            return str(told["token"]), datetime.fromtimestamp(float(told["expires"]), UTC).replace(
                tzinfo=None
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RefreshError(f"no token: {error!r}") from error

    return Credentials(None, refresh_handler=read)
