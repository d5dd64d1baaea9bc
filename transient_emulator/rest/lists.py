"""Lists in the form of the API: filtered, ordered, in pages; of one scope or of all scopes."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from . import filters, wire

# The largest page, and the default, of Compute Engine's lists.
_MOST = 500
_NEWEST_FIRST = "creationTimestamp desc"
_Item = tuple[str, dict[str, Any]]


def page(
    request: web.Request, kind: str, items: Iterable[dict[str, Any]], self_link: str
) -> dict[str, Any]:
    """Return one page of a list.

    Parameters
    ----------
    request
        The request, whose query selects the page.
    kind
        The kind of the list, such as `compute#instanceList`.
    items
        All resources of the list.
    self_link
        The URL of the list.

    Raises
    ------
    ApiError
        400 for an invalid filter, order, size or page token.
    """
    chosen, token = _select(request, [("", item) for item in items])
    answer: dict[str, Any] = {
        "kind": kind,
        "id": wire.path_of(self_link),
        "selfLink": self_link,
    }
    # The API leaves out empty fields.
    if chosen:
        answer["items"] = [item for _, item in chosen]
    if token:
        answer["nextPageToken"] = token
    return answer


def aggregated(
    request: web.Request,
    kind: str,
    member: str,
    items: Iterable[_Item],
    scopes: Iterable[str],
    self_link: str,
) -> dict[str, Any]:
    """Return one page of an aggregated list.

    Parameters
    ----------
    request
        The request, whose query selects the page.
    kind
        The kind of the list.
    member
        The field of a scope that holds its resources.
    items
        All resources, each after its scope.
    scopes
        All scopes. Those without resources carry a warning, as in the API.
    self_link
        The URL of the list.

    Raises
    ------
    ApiError
        400 for an invalid filter, order, size or page token.
    """
    chosen, token = _select(request, sorted(items, key=lambda pair: pair[0]))
    grouped: dict[str, Any] = {scope: {"warning": _no_results(scope)} for scope in scopes}
    for scope, item in chosen:
        entry = grouped.setdefault(scope, {})
        entry.pop("warning", None)
        entry.setdefault(member, []).append(item)
    answer: dict[str, Any] = {
        "kind": kind,
        "id": wire.path_of(self_link),
        "selfLink": self_link,
        "items": grouped,
    }
    if token:
        answer["nextPageToken"] = token
    return answer


def _no_results(scope: str) -> dict[str, Any]:
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "data": [{"key": "scope", "value": scope}],
        "message": f"There are no results for scope '{scope}' on this page.",
    }


def _select(request: web.Request, items: list[_Item]) -> tuple[list[_Item], str]:
    """Return the items of the requested page, and the token of the next page ('' for the last)."""
    query = request.query
    matches = filters.parse(query.get("filter", ""))
    order = query.get("orderBy", "")
    chosen = _ordered([pair for pair in items if matches(pair[1])], order)
    size = _size(query.get("maxResults"))
    token = query.get("pageToken")
    if token:
        # The token names the last item seen, so a deletion between two requests shifts no item past
        # a page.
        seen = _decode(token)
        keys = [_key(pair) for pair in chosen]
        if seen in keys:
            chosen = chosen[keys.index(seen) + 1 :]
        elif order != _NEWEST_FIRST:
            chosen = [pair for pair, key in zip(chosen, keys, strict=True) if key > seen]
    page_items = chosen[:size]
    if len(chosen) <= size:
        return page_items, ""
    return page_items, _encode(_key(page_items[-1]))


def _ordered(items: list[_Item], order: str) -> list[_Item]:
    if order in ("", "name", "name asc"):
        return sorted(items, key=lambda pair: (pair[0], pair[1]["name"]))
    if order != _NEWEST_FIRST:
        why = "Only 'name' and 'creationTimestamp desc' are supported."
        raise wire.invalid("orderBy", order, why)
    # Sorting keeps the order of equal times. Reversed first, the latest of one millisecond comes
    # first, too.
    newest = list(reversed(items))
    newest.sort(key=_created, reverse=True)
    return newest


def _created(pair: _Item) -> str:
    return pair[1].get("creationTimestamp", pair[1].get("insertTime", ""))


def _key(pair: _Item) -> str:
    scope, item = pair
    return f"{scope}/{item['name']}"


def _size(text: str | None) -> int:
    if text is None:
        return _MOST
    if not text.isdigit() or int(text) > _MOST:
        raise wire.invalid("maxResults", text, "Must be a number from 0 to 500.")
    return int(text) or _MOST


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise wire.invalid("pageToken", token, "The page token is not valid.") from None
