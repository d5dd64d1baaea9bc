"""The checksums of contents, as Cloud Storage writes them: CRC-32C (big-endian) and MD5, both in base64."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import google_crc32c

CHUNK = 1 << 20  # bytes; one part of contents that is read, summed and written at a time


class Digest:
    """Checksums of what it has been fed with, and how many bytes that was."""

    def __init__(self) -> None:
        self.size = 0
        self._crc32c = google_crc32c.Checksum()
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Feed it."""
        self.size += len(data)
        self._crc32c.update(data)
        self._md5.update(data)

    @property
    def crc32c(self) -> str:
        """The CRC-32C."""
        return base64.b64encode(self._crc32c.digest()).decode()

    @property
    def md5(self) -> str:
        """The MD5."""
        return base64.b64encode(self._md5.digest()).decode()

    @property
    def md5_hex(self) -> str:
        """The MD5 in hexadecimal, as the XML API's entity tags have it."""
        return self._md5.hexdigest()


def of_file(path: Path) -> Digest:
    """The checksums of a file."""
    digest = Digest()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    return digest
