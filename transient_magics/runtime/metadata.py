"""The metadata server of this VM, which is watched for the preemption notice.

One long poll waits for a change of `instance/preempted` (`wait_for_change` with the last etag), so
a notice is seen within milliseconds, without traffic in between. The server may answer 503, close
the connection or restart at any time: the watch continues after a short pause. It uses asyncio's
streams, because VMs have no HTTP library.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
from collections.abc import Callable

from ..protocol.layout import NOTICE_KEY
from ..protocol.machines import NOTICE_SECONDS

_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 60
_LIMIT = 1 << 16
_SHORTEST = 0.05
_LONGEST = 2.0


def metadata_host() -> str:
    """Return the host of the metadata server."""
    return os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"


def notice_seconds(host: str | None = None) -> float:
    """Return the seconds that this VM runs after a preemption notice.

    Compute Engine shuts a Spot VM down within 30 s. If the VM's scheduling requests a longer
    notice, its metadata server reports the preemption that much earlier. Then the longer notice
    counts, and the shutdown behind it does not, because the operating system ends programs during
    it.
    """
    connection = http.client.HTTPConnection(host or metadata_host(), timeout=_ANSWER_SECONDS)
    path = f"/computeMetadata/v1/instance/attributes/{NOTICE_KEY}"
    try:
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        text = answer.read(_LIMIT).decode("ascii", errors="replace").strip()
        if answer.status == 200:
            return max(NOTICE_SECONDS, float(int(text)))
        return NOTICE_SECONDS
    except (OSError, http.client.HTTPException, ValueError):
        return NOTICE_SECONDS
    finally:
        connection.close()


async def watch_preemption(notice: Callable[[], None], host: str | None = None) -> None:
    """Call `notice` once, as soon as this VM is under notice; return then, or when cancelled."""
    place = host or metadata_host()
    etag = "0"
    pause = _SHORTEST
    while True:
        try:
            status, etag_now, body = await _get(place, etag)
        except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
            status = 0
            etag_now = None
            body = ""
        if status == 200:
            if body.strip().upper() == "TRUE":
                notice()
                return
            # Without an etag each poll returns immediately, so poll at long intervals.
            pause = _SHORTEST if etag_now else _LONGEST
            if etag_now and etag_now != etag:
                etag = etag_now
                continue
        elif status:
            etag = "0"  # a restarted server does not know the etag: request the current value
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST)


async def _get(host: str, etag: str) -> tuple[int, str | None, str]:
    """Make one long poll; return status, etag and body."""
    name, _, port = host.partition(":")
    async with asyncio.timeout(_POLL_SECONDS + 15):
        reader, writer = await asyncio.open_connection(name, int(port or 80), limit=_LIMIT)
        try:
            path = "/computeMetadata/v1/instance/preempted"
            query = f"wait_for_change=true&last_etag={etag}&timeout_sec={_POLL_SECONDS}"
            request = (
                f"GET {path}?{query} HTTP/1.1\r\nHost: {name}\r\n"
                "Metadata-Flavor: Google\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode("ascii"))
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split()[1])
            headers = {
                key.strip().lower(): value.strip()
                for key, _, value in (line.partition(":") for line in head[1:])
            }
            if headers.get("metadata-flavor") != "Google":
                raise ValueError("the answer is not from a metadata server")
            body = await _body(reader, headers)
            return status, headers.get("etag"), body
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> str:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        return b"".join(parts).decode()
    if "content-length" in headers:
        return (await reader.readexactly(int(headers["content-length"]))).decode()
    return (await reader.read(_LIMIT)).decode()
