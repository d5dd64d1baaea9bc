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
from ..calling.error_info import (
    billing_disabled,
    error_info,
    explain_infrastructure,
    service_disabled,
)

_WRITE = "roles/storage.objectAdmin on the bucket"
_MAKE = "roles/storage.admin in the project where the bucket is to be made"


def explain(error: Exception, *, where: str, project: str, endpoint: str = "") -> CloudError | None:
    """Our error for `error`, met at `where`; None for what is a defect of this program."""
    import requests.exceptions
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, GoogleAPICallError):
        said = _said(str(error.message or error))
        if found := explain_infrastructure(error_info(error), said, where=where, project=project):
            return found
        return _by_status(int(error.code or 0), said, where, project)
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
    return " ".join(failures.without_request(line).split()).rstrip(".")


def _by_status(status: int, said: str, where: str, project: str) -> CloudError:
    if policy := failures.policy_in(said):
        return failures.forbidden_by_policy(policy, said, where, project)
    if status == 403 and "billing account" in said:
        return billing_disabled(project, where=where)
    if status == 403 and ("disabled" in said or "has not been used" in said):
        consumer = failures.consumer_in(said, project)
        return service_disabled("storage.googleapis.com", consumer, where=where)
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
