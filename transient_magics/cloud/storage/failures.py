"""From the failures of Google's storage client to our typed errors, each with what would mend it."""

from __future__ import annotations

import re

from ...errors import (
    AccessError,
    AlreadyExistsError,
    ChangedError,
    CloudError,
    CredentialsError,
    GoneError,
    RateLimitError,
    UnreachableError,
)
from ..calling import failures

_WRITE = "roles/storage.objectAdmin on the bucket"
_MAKE = "roles/storage.admin in the project where the bucket is to be made"


def explain(error: Exception, *, where: str, project: str, endpoint: str = "") -> CloudError | None:
    """Our error for `error`, met at `where`; None for what is a defect of this program."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, GoogleAPICallError):
        return _by_status(int(error.code or 0), _said(str(error.message or error)), where, project)
    if isinstance(error, DataCorruption):
        return CloudError("Its contents did not arrive as they were sent", where=where, fix="Try again.")
    if isinstance(error, (requests.exceptions.RequestException, TransportError)):
        remedy = "Check the network" + (" and that the emulator runs." if endpoint else " and any proxy settings.")
        what = f"{endpoint or 'https://storage.googleapis.com'} does not answer"
        return UnreachableError(what, where=where, fix=remedy)
    return failures.explain(error, where=where, project=project, endpoint=endpoint)


def _said(message: str) -> str:
    """Google's own sentence: its client puts the request before it, and for uploads the whole answer around it."""
    told = re.search(r'"message": ?"([^"]+)"', message)
    line = told[1] if told else message.split("\n", 1)[0]
    return " ".join(re.sub(r"^[A-Z]+ https?://\S+: ", "", line).split()).rstrip(".")


def _by_status(status: int, said: str, where: str, project: str) -> CloudError:
    if policy := failures.policy_in(said):
        return failures.forbidden_by_policy(policy, said, where, project)
    if status == 403 and ("disabled" in said or "has not been used" in said):
        command = f"gcloud services enable storage.googleapis.com --project {project}"
        what = f"The Cloud Storage API is not enabled in project {project}"
        return AccessError(what, where=where, fix=f"Type `{command}` and wait a minute.")
    if status == 401:
        fix = "Type `gcloud auth application-default login` in a terminal."
        return CredentialsError("Google did not accept the credentials", where=where, fix=fix)
    if status == 403:
        what = f"The credentials in use do not allow this: {said}"
        return AccessError(what, where=where, fix=f"Ask for {_WRITE}, and for {_MAKE}; or use --bucket none.")
    if status == 404:
        return GoneError(f"There is no such bucket or object: {said}", where=where, fix="Name another with --bucket.")
    if status == 409:
        what, fix = f"The name is taken: {said}", "Bucket names are the whole world's: choose another with --bucket."
        return AlreadyExistsError(what, where=where, fix=fix)
    if status == 412:
        return ChangedError("Somebody else has changed it meanwhile", where=where, fix="Read it again first.")
    if status == 429:
        return RateLimitError(f"Cloud Storage takes no more requests now: {said}", where=where, fix="Wait a minute.")
    if status >= 500:
        return UnreachableError(f"Cloud Storage failed (HTTP {status}): {said}", where=where, fix="Try again later.")
    return CloudError(f"Cloud Storage refused ({status}): {said}", where=where)
