"""HTTP requests to the emulator itself, for a cluster on it."""

from __future__ import annotations

import http.client
import json
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import emulator
from ...errors import ClusterError, DeclarationError, UnreachableError, from_message

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_ANSWER_SECONDS = 10.0


def emulator_of(cluster: BaseCluster, elsewhere: str, here: str) -> str:
    """Return the URL of the emulator of a cluster, and start the emulator if it is not running.

    Parameters
    ----------
    cluster
        The cluster.
    elsewhere
        A clause for errors: the situation in a project.
    here
        A clause for errors: what is possible without a project.

    Raises
    ------
    ClusterError
        The cluster is in a project. Or it is deleted, and the emulator is not running.
    """
    state = cluster.state
    if state.spec and not state.spec.emulated:
        what = f"{cluster.name} runs in project {state.spec.project}, where {elsewhere}"
        raise ClusterError(what, fix=f"Name a cluster without a project: {here}.")
    if url := emulator.running():
        return url
    if state.over:
        fix = "Name a cluster that is not deleted."
        raise ClusterError(f"{cluster.name} is deleted, and the emulator is not running", fix=fix)
    return emulator.ensure()


def ask(url: str, method: str, path: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Send a request to the emulator and return its answer.

    Parameters
    ----------
    url
        The URL of the emulator.
    method, path
        The method and the path of the request.
    given
        The values of the body.

    Raises
    ------
    DeclarationError
        The emulator refused a value.
    UnreachableError
        The emulator does not answer.
    """
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=_ANSWER_SECONDS
    )
    try:
        body = None
        if given:
            body = json.dumps(given)
        connection.request(method, path, body)
        answer = connection.getresponse()
        content = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnreachableError(
            "The emulator does not answer", where=url, fix="Run the cell again."
        ) from error
    finally:
        connection.close()
    if answer.status == 400:
        refusal = content["error"]
        raise from_message(refusal.get("parts", {"error": refusal["message"]}), DeclarationError)
    if answer.status != 200:
        raise UnreachableError(
            f"The emulator refused the request: {content['error']['message']}", where=url
        )
    return content
