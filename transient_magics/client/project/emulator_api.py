"""What is asked of this user's emulator itself, over HTTP, for a cluster that lives in it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import emulator
from ...errors import ClusterError, DeclarationError, UnreachableError, from_record

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_ANSWER_SECONDS = 10.0


def emulator_of(cluster: BaseCluster, elsewhere: str, here: str) -> str:
    """The emulator's URL. It is started where it does not run and the cluster still needs it.

    Of a cluster in a project there is none: ClusterError says that there it is as the clause
    `elsewhere`, and of one without a project what the clause `here` says.
    """
    state = cluster.state
    if state.spec and not state.spec.emulated:
        what = f"{cluster.name} runs in project {state.spec.project}, where {elsewhere}"
        raise ClusterError(what, fix=f"Name a cluster without a project: {here}.")
    if url := emulator.running():
        return url
    if state.over:
        fix = "Name a cluster that is not deleted."
        raise ClusterError(f"{cluster.name} is deleted, and no emulator runs any more", fix=fix)
    return emulator.ensure()


def ask(url: str, method: str, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What it answers. Raises DeclarationError with its sentence where it refuses, and
    UnreachableError.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=_ANSWER_SECONDS
    )
    try:
        connection.request(method, path, json.dumps(given) if given else None)
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(
            "The emulator does not answer", where=url, fix="Run the cell again."
        ) from error
    finally:
        connection.close()
    if answer.status == 400:
        said = content["error"]
        raise from_record(said.get("parts", {"error": said["message"]}), DeclarationError)
    if answer.status != 200:
        raise UnreachableError(f"The emulator refuses: {content['error']['message']}", where=url)
    return content
