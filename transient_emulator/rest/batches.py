"""Many calls in one request: multipart/mixed, each part an HTTP request or response of its own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser, HeaderParser
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from . import wire


@dataclass(frozen=True)
class Part:
    """One call: what its answer is to be marked with, method, path with query, headers, body."""

    identity: str
    method: str
    target: str
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What one call is answered: status and JSON text (empty: none)."""

    identity: str
    status: int
    text: bytes


def parts(content_type: str, body: bytes, most: int) -> list[Part]:
    """The calls of a batch. ApiError 400 where it is none, or has too many."""
    message = BytesParser().parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
    if not message.is_multipart():
        raise wire.ApiError(400, "badRequest", "The batch is not multipart/mixed.")
    found = list(_parts(message.get_payload()))
    if len(found) > most:
        raise wire.ApiError(400, "badRequest", f"A batch has {most} calls at most.")
    return found


def _parts(messages: Any) -> Iterator[Part]:
    for each in messages:
        head, _, body = each.get_payload(decode=True).replace(b"\r\n", b"\n").partition(b"\n\n")
        line, _, headers = head.decode().partition("\n")
        words = line.split()
        if len(words) < 2:
            raise wire.ApiError(400, "badRequest", "A part of the batch is no request.")
        target = urlsplit(words[1])._replace(scheme="", netloc="").geturl()
        identity = str(each.get("Content-ID", "")).strip("<>")
        yield Part(identity, words[0], target, HeaderParser().parsestr(headers), body)


def together(answers: list[Answer]) -> tuple[str, bytes]:
    """Content type and body of the answer to a batch."""
    boundary = f"batch_{secrets.token_hex(16)}"
    body = bytearray()
    for each in answers:
        mark = f"Content-ID: <response-{each.identity}>\r\n" if each.identity else ""
        kind = "Content-Type: application/json; charset=UTF-8\r\n" if each.text else ""
        body += f"--{boundary}\r\nContent-Type: application/http\r\n{mark}\r\n".encode()
        body += f"HTTP/1.1 {each.status} {HTTPStatus(each.status).phrase}\r\n{kind}".encode()
        body += f"Content-Length: {len(each.text)}\r\n\r\n".encode() + each.text + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return f"multipart/mixed; boundary={boundary}", bytes(body)
