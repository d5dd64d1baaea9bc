"""Lists as the API gives them: filtered, ordered, in pages; of one scope or aggregated over all."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from . import filters, wire

_MOST = 500


def page(request: web.Request, kind: str, items: Iterable[dict[str, Any]], self_link: str) -> dict[str, Any]:
    """One page of a list. `kind` is that of the list, such as `compute#instanceList`."""
    chosen, token = _select(request, [("", item) for item in items])
    answer: dict[str, Any] = {"kind": kind, "id": wire.path_of(self_link), "selfLink": self_link}
    if chosen:
        answer["items"] = [item for _, item in chosen]
    return answer | ({"nextPageToken": token} if token else {})


def aggregated(
    request: web.Request, kind: str, member: str, items: Iterable[tuple[str, dict[str, Any]]],
    scopes: Iterable[str], self_link: str,
) -> dict[str, Any]:  # fmt: skip
    """One page of an aggregated list: `items` come with their scope; scopes without any carry a warning."""
    chosen, token = _select(request, sorted(items, key=lambda pair: pair[0]))
    grouped: dict[str, Any] = {}
    for scope in scopes:
        warning = {
            "code": "NO_RESULTS_ON_PAGE", "data": [{"key": "scope", "value": scope}],
            "message": f"There are no results for scope '{scope}' on this page.",
        }  # fmt: skip
        grouped[scope] = {"warning": warning}
    for scope, item in chosen:
        entry = grouped.setdefault(scope, {})
        entry.pop("warning", None)
        entry.setdefault(member, []).append(item)
    answer: dict[str, Any] = {"kind": kind, "id": wire.path_of(self_link), "selfLink": self_link, "items": grouped}
    return answer | ({"nextPageToken": token} if token else {})


def _select(
    request: web.Request, items: list[tuple[str, dict[str, Any]]]
) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    query = request.query
    wanted = filters.parse(query.get("filter", ""))
    chosen = [pair for pair in items if wanted(pair[1])]
    order = query.get("orderBy", "")
    if order == "creationTimestamp desc":
        chosen.reverse()  # of one millisecond's, too, the latest is the first
        chosen.sort(key=lambda pair: pair[1].get("creationTimestamp", pair[1].get("insertTime", "")), reverse=True)
    elif order in ("", "name", "name asc"):
        chosen.sort(key=lambda pair: (pair[0], pair[1]["name"]))
    else:
        raise wire.invalid("orderBy", order, "Only 'name' and 'creationTimestamp desc' are supported.")
    size = _size(query.get("maxResults"))
    if token := query.get("pageToken"):
        # The token names the last one seen, so that what is deleted meanwhile moves nothing over a page's edge.
        seen = _decoded(token)
        keys = [f"{scope}/{item['name']}" for scope, item in chosen]
        if seen in keys:
            chosen = chosen[keys.index(seen) + 1 :]
        elif order != "creationTimestamp desc":
            chosen = [pair for pair, key in zip(chosen, keys, strict=True) if key > seen]
    rest = len(chosen) > size
    chosen = chosen[:size]
    return chosen, _encoded(f"{chosen[-1][0]}/{chosen[-1][1]['name']}") if rest and chosen else ""


def _size(text: str | None) -> int:
    if text is None:
        return _MOST
    if not text.isdigit() or int(text) > _MOST:
        raise wire.invalid("maxResults", text, "Must be a number from 0 to 500.")
    return int(text) or _MOST


def _encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _decoded(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise wire.invalid("pageToken", token, "The page token is not valid.") from None
