"""Batches: multipart/mixed requests whose parts are HTTP requests or responses of their own."""

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
    """One call of a batch.

    Attributes
    ----------
    identity
        The client's Content-ID, which marks the answer.
    method, target, headers, body
        The HTTP request. `target` is the path with its query.
    """

    identity: str
    method: str
    target: str
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Answer:
    """The answer to one call: `text` is JSON, or empty for an answer without a body."""

    identity: str
    status: int
    text: bytes


def split(content_type: str, body: bytes, most: int) -> list[Part]:
    """Split a batch into its calls.

    Parameters
    ----------
    content_type
        The header of the request, which names the boundary.
    body
        The body of the request.
    most
        Calls that are allowed.

    Raises
    ------
    ApiError
        400 if it is not a batch, or has too many calls.
    """
    # The parser of mail understands multipart bodies. It needs the header in front.
    head = b"Content-Type: " + content_type.encode() + b"\r\n\r\n"
    message = BytesParser().parsebytes(head + body)
    if not message.is_multipart():
        raise wire.ApiError(400, "badRequest", "The batch is not multipart/mixed.")
    found = list(_parts(message.get_payload()))
    if len(found) > most:
        raise wire.ApiError(400, "badRequest", f"A batch has {most} calls at most.")
    return found


def _parts(messages: Any) -> Iterator[Part]:
    for message in messages:
        content = message.get_payload(decode=True).replace(b"\r\n", b"\n")
        head, _, body = content.partition(b"\n\n")
        line, _, headers = head.decode().partition("\n")
        words = line.split()
        if len(words) < 2:
            raise wire.ApiError(400, "badRequest", "A part of the batch is not a request.")
        # Clients write whole URLs. The host is this emulator in any case.
        target = urlsplit(words[1])._replace(scheme="", netloc="").geturl()
        identity = str(message.get("Content-ID", "")).strip("<>")
        yield Part(identity, words[0], target, HeaderParser().parsestr(headers), body)


def join(answers: list[Answer]) -> tuple[str, bytes]:
    """Return the content type and the body of the answer to a batch."""
    boundary = f"batch_{secrets.token_hex(16)}"
    body = bytearray()
    for answer in answers:
        head = f"--{boundary}\r\nContent-Type: application/http\r\n"
        if answer.identity:
            head += f"Content-ID: <response-{answer.identity}>\r\n"
        head += f"\r\nHTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        if answer.text:
            head += "Content-Type: application/json; charset=UTF-8\r\n"
        head += f"Content-Length: {len(answer.text)}\r\n\r\n"
        body += head.encode() + answer.text + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return f"multipart/mixed; boundary={boundary}", bytes(body)
