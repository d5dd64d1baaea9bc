"""Access tokens that reach some places of buckets and nothing else: Google's Credential Access Boundaries.

Whoever controls a cluster exchanges its own token at the Security Token Service for one whose rights end at `Reach`es,
and hands that to a VM which runs a user's code. The rights of the two are intersected; the new one lives as long as
the old one would have. Such tokens work in buckets with uniform access only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any, Literal

from ...errors import AccessError, CloudError
from ...journal import now
from ..calling import failures
from ..calling.calls import Attempts

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_GOOGLE = "https://sts.googleapis.com"
_PLAIN_PLACE = re.compile(r"gs://([a-z0-9][a-z0-9_.-]*)(?:/([A-Za-z0-9_.=/-]*))?")


@dataclass(frozen=True)
class Reach:
    """What may be done with the objects whose names begin with `place` (`gs://bucket/text`).

    A place that is to be a folder ends in a slash. To be a user is to read, list, make, replace and delete; a creator
    makes what is not there yet, and neither reads nor replaces anything.
    """

    place: str
    role: Literal["objectUser", "objectViewer", "objectCreator"]

    def rule(self) -> dict[str, Any]:
        """As a rule of an access boundary. ValueError for a place whose name could end its condition."""
        found = _PLAIN_PLACE.fullmatch(self.place)
        if not found:
            raise ValueError(f"{self.place!r} is no place in a bucket")
        bucket, begin = found[1], found[2] or ""
        resource = f"projects/_/buckets/{bucket}"
        rule: dict[str, Any] = {
            "availableResource": f"//storage.googleapis.com/{resource}",
            "availablePermissions": [f"inRole:roles/storage.{self.role}"],
        }
        clauses = [f"resource.name.startsWith('{resource}/objects/{begin}')"]
        if self.role != "objectCreator":
            listed = "api.getAttribute('storage.googleapis.com/objectListPrefix', '')"
            clauses.append(f"{listed}.startsWith('{begin}')")
        return rule | ({"availabilityCondition": {"expression": " || ".join(clauses)}} if begin else {})


@dataclass(frozen=True)
class BoundedToken:
    """A token and when it ends (seconds since 1970). Its holder may do what its boundary allows."""

    text: str = field(repr=False)
    expires: float

    def to_dict(self) -> dict[str, Any]:
        """As what is handed to a VM."""
        return {"token": self.text, "expires": self.expires}


async def bounded_token(
    reaches: Sequence[Reach], project: str, endpoint: str | None = None, *, patience: float = 60.0
) -> BoundedToken:
    """A token for these places, at `endpoint` (an emulator) or at Google with the default credentials.

    CredentialsError if there are none or they have expired, AccessError if they cannot be exchanged, other CloudErrors
    after `patience` seconds of attempts, or at once for a place that cannot be bounded.
    """
    try:
        rules = [reach.rule() for reach in reaches]
    except ValueError as error:
        raise CloudError(f"There is no token for such a place: {error}", where="gs://") from error

    def explain(error: Exception, where: str) -> CloudError | None:
        from google.auth.exceptions import OAuthError

        if isinstance(error, OAuthError):
            what = f"The Security Token Service gives no token for the VMs: {error.args[0]}"
            fix = f"Type `gcloud services enable sts.googleapis.com --project {project}`."
            return AccessError(what, where=where, fix=fix)
        return failures.explain(error, where=where, project=project, endpoint=endpoint or _GOOGLE)

    attempts = Attempts("tokens", 1, patience, explain)
    options = {"accessBoundary": {"accessBoundaryRules": rules}}
    try:
        return await attempts.call(reaches[0].place, lambda: _exchange(options, endpoint))
    finally:
        attempts.end()


def _exchange(options: dict[str, Any], endpoint: str | None) -> BoundedToken:
    import google.auth
    from google.auth.transport.requests import Request
    from google.oauth2 import sts
    from requests import Session

    own, ends = "of-this-user", 0.0
    session = Session()
    session.trust_env = not endpoint
    with session:
        request = Request(session)
        if not endpoint:  # a fresh one, so that what it is exchanged for lives long
            credentials, _ = google.auth.default(scopes=[_SCOPE])
            credentials.refresh(request)
            own = credentials.token or ""
            ends = credentials.expiry.replace(tzinfo=UTC).timestamp() if credentials.expiry else 0.0
        begun = now()
        answer = sts.Client(f"{endpoint or _GOOGLE}/v1/token").exchange_token(
            request, _GRANT, own, _ACCESS_TOKEN, requested_token_type=_ACCESS_TOKEN, additional_options=options
        )
    lasts = float(answer.get("expires_in") or 0)  # Google leaves it out where it is the old token's
    return BoundedToken(str(answer["access_token"]), begun + lasts if lasts else ends)
