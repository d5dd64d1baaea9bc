"""Checksums in Cloud Storage's form: CRC-32C (big-endian) and MD5, both in base64."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import google_crc32c

CHUNK = 1 << 20
"""Bytes of contents that are read, summed and written at a time."""


class Digest:
    """The checksums and the size of data that arrives in pieces."""

    def __init__(self) -> None:
        self.size = 0
        self._crc32c = google_crc32c.Checksum()
        self._md5 = hashlib.md5(usedforsecurity=False)

    def update(self, data: bytes) -> None:
        """Add data."""
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
        """The MD5 in hexadecimal, as in the XML API's entity tags."""
        return self._md5.hexdigest()


def of_file(path: Path) -> Digest:
    """Return the checksums of a file."""
    digest = Digest()
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            digest.update(part)
    return digest
