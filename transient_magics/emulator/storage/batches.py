"""Many calls in one request: multipart/mixed, each part an HTTP request or response of its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import BytesParser
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from .. import wire
from .service import Call, Reply

MOST = 100


@dataclass(frozen=True)
class Part:
    """One call, and what its answer is to be marked with."""

    identity: str
    call: Call


def parts(content_type: str, body: bytes, base: str) -> list[Part]:
    """The calls of a batch. ApiError 400 where it is none."""
    message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    if not message.is_multipart():
        raise wire.ApiError(400, "badRequest", "The batch is not multipart/mixed.")
    found = list(_parts(message.get_payload(), base))
    if len(found) > MOST:
        raise wire.ApiError(400, "badRequest", f"A batch has {MOST} calls at most.")
    return found


def _parts(messages: Any, base: str) -> Iterator[Part]:
    for each in messages:
        payload = each.get_payload(decode=True)
        head, _, rest = payload.replace(b"\r\n", b"\n").partition(b"\n\n")
        words = head.decode().partition("\n")[0].split()
        if len(words) < 2:
            raise wire.ApiError(400, "badRequest", "A part of the batch is no request.")
        url = urlsplit(words[1])
        names = [unquote(name) for name in url.path.removeprefix("/storage/v1/").split("/")]
        content = json.loads(rest) if rest.strip() else {}
        call = Call(words[0], names, dict(parse_qsl(url.query, keep_blank_values=True)), content, base)
        yield Part(str(each.get("Content-ID", "")).strip("<>"), call)


def answer(replies: list[tuple[Part, Reply]]) -> tuple[str, bytes]:
    """Content type and body of the answer."""
    boundary = f"batch_{secrets.token_hex(16)}"
    body = bytearray()
    for part, (status, content) in replies:
        text = b"" if content is None else json.dumps(content).encode()
        phrase = HTTPStatus(status).phrase
        mark = f"Content-ID: <response-{part.identity}>\r\n" if part.identity else ""
        kind = "Content-Type: application/json; charset=UTF-8\r\n" if content is not None else ""
        body += f"--{boundary}\r\nContent-Type: application/http\r\n{mark}\r\n".encode()
        body += f"HTTP/1.1 {status} {phrase}\r\n{kind}Content-Length: {len(text)}\r\n\r\n".encode() + text + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return f"multipart/mixed; boundary={boundary}", bytes(body)
