"""All errors that a user can meet, as one small tree.

Each error says in one sentence what is wrong, where, and how to fix it. The branches correspond to
what a caller can do about an error. A notebook shows the sentence without a traceback. Elsewhere
they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .protocol.checks import all_plain, clipped

_MOST_NAMES = 14
"""Valid names that an error lists."""
_MOST_NUMBERED = 6
"""Names that an error lists if numbers count them: the latest ones."""
_MOST_SUMMARY = 160
"""Characters of an exception in a log."""
_DIGITS = re.compile(r"\d+")


class TransientError(Exception):
    """Base class of all errors of this package.

    Parameters
    ----------
    what
        What is wrong: a sentence without a full stop.
    where
        The place: an option, a column, a VM, a file. Empty if the sentence names it.
    fix
        What to do or type next: a sentence. Empty if there is nothing to do.

    Examples
    --------
    >>> str(TransientError("Unknown GPU 'k8'", where="--gpus", fix="Did you mean k80?"))
    "Unknown GPU 'k8' (--gpus). Did you mean k80?"
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        """Return all parts. Text that came from a VM or a service loses its control characters."""
        place = f" ({self.where})" if self.where else ""
        fix = f" {self.fix}" if self.fix else ""
        return all_plain(f"{self.what.rstrip('.')}{place}.{fix}")

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback."""
        return [str(self)]


class DeclarationError(TransientError):
    """A declaration is invalid: a SPEC, an option or a name. Correct it and run it again."""


class CellError(TransientError):
    """The body of a training cell is invalid; `where` names the line."""


class TrainingError(TransientError):
    """A run cannot start or continue."""


class ClusterError(TransientError):
    """An unknown cluster or work, or a command that the state of the cluster does not allow."""


class NameTakenError(ClusterError):
    """The name is in use or reserved by another cluster, or by other work of the cluster."""


class UnknownWorkError(ClusterError):
    """The cluster has no run, study, job, bag or Dask cluster of this name."""


class HomeError(ClusterError):
    """The folder with this user's clusters cannot be read or written.

    It is read-only, or belongs to another user.
    """


class AgreementError(ClusterError):
    """A VM or a bucket asks for something that this machine's user has not agreed to."""


class ControllerError(ClusterError):
    """The controller of a cluster cannot be started or does not answer."""


class JournalError(TransientError):
    """A journal cannot be read or written."""


class PlanError(TransientError):
    """There is not enough data for a plan, or a package that planning needs is not installed."""


class StoreError(PlanError):
    """The measurements of earlier runs of a model cannot be read; `where` names their file."""


class CloudError(TransientError):
    """Compute Engine or Cloud Storage has refused a request or failed."""


class StockoutError(CloudError):
    """The zone has no capacity for this machine now. Try another zone, or later.

    Attributes
    ----------
    zones
        Zones that have capacity, as far as the answer names some.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", zones: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.zones = zones


class QuotaError(CloudError):
    """A quota of the project is exceeded. Request more, or use fewer machines.

    Attributes
    ----------
    everywhere
        Whether it is a quota for all regions together, so that another region does not help.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", everywhere: bool = False
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.everywhere = everywhere


class RateLimitError(CloudError):
    """There were too many requests, and the retries were used up."""


class AccessError(CloudError):
    """The credentials do not allow the request, or the API is not enabled."""


class ConsumerError(AccessError):
    """The project that is charged for a request does not serve it.

    Its API or billing is not enabled, or the user has no right to use the project.
    """


class CredentialsError(AccessError):
    """There are no valid credentials. Log in again."""


class GoneError(CloudError):
    """The resource does not exist, or does not exist any more."""


class AlreadyExistsError(CloudError):
    """A resource of this name exists."""


class ChangedError(CloudError):
    """Another process has changed the resource since it was read."""


class NotReadyError(CloudError):
    """The resource is being created, changed or deleted. Try again in a moment."""


class UnreachableError(CloudError):
    """The API does not answer."""


class RemoteError(TransientError):
    """A VM cannot be used over SSH."""


class ConnectionLostError(RemoteError):
    """The VM does not answer, or does not answer any more."""


class HostKeyError(RemoteError):
    """The VM has another host key than Compute Engine reports. This is never retried."""


class ForeignError(RemoteError):
    """A VM has sent something that is refused: too much, or under an invalid name."""


class RoomError(RemoteError):
    """The disk of this machine has no room for what a VM has. Retried once there is room."""


class CommandError(RemoteError):
    """A command on a VM has failed."""


def reason_of(error: BaseException) -> str:
    """Return what went wrong, as a clause for another sentence that says where.

    Parameters
    ----------
    error
        Any exception. Of a group, the first exception in it counts.

    Returns
    -------
    str
        The message of the operating system for an OSError, else the message of the exception, or
        the name of its class if it has none.
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return str(error) or type(error).__name__


def summary_of(error: BaseException) -> str:
    """Return the class and the beginning of the first line of an exception, for a log."""
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line[:_MOST_SUMMARY]}"


def error_class(name: object, default: type[TransientError]) -> type[TransientError]:
    """Return the class in this module of that name, which may come from another process.

    Parameters
    ----------
    name
        The name of the class.
    default
        What to return if `name` is not the name of an error.
    """
    found = globals().get(name) if isinstance(name, str) else None
    if isinstance(found, type) and issubclass(found, TransientError):
        return found
    return default


def to_message(error: Exception) -> dict[str, str]:
    """Return the parts of an error, to send them to another process; see `from_message`."""
    kind = type(error).__name__
    if isinstance(error, TransientError):
        return {"error": error.what, "where": error.where, "fix": error.fix, "kind": kind}
    return {"error": str(error), "kind": kind}


def from_message(values: Mapping[str, Any], default: type[TransientError]) -> TransientError:
    """Return the error that another process sent by `to_message`.

    Parameters
    ----------
    values
        The parts of the error. Each is cut to the length of a text of an event, because the process
        may run on a VM.
    default
        The class of the error if `values` does not name a class of this module.
    """
    what, where, fix = (clipped(str(values.get(part) or "")) for part in ("error", "where", "fix"))
    return error_class(values.get("kind"), default)(what, where=where, fix=fix)


def combined(errors: Sequence[TransientError]) -> TransientError:
    """Return several errors as one, a ClusterError; a single error is returned as it is."""
    if len(errors) == 1:
        return errors[0]
    return ClusterError(" ".join(map(str, errors)))


def install_extra(extra: str) -> str:
    """Return the sentence that says how to install an optional part of the package.

    Parameters
    ----------
    extra
        A name in `[project.optional-dependencies]`.
    """
    return f'Run in the checkout: pip install ".[{extra}]"'


def checked_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a controller's answer to a command; raise the error that it reports instead."""
    if not answer.pop("ok", False):
        raise from_message({"error": "The controller refused the command", **answer}, ClusterError)
    return answer


def unknown(
    kind: str,
    name: str,
    valid: Iterable[str],
    *,
    at: str = "",
    where: str = "",
    otherwise: str = "",
    numbered: bool = False,
    error: type[TransientError] = DeclarationError,
) -> TransientError:
    """Return the error for an unknown name, such as `Unknown GPU 'k8' (--gpus). Did you mean k80?`.

    Parameters
    ----------
    kind
        What the name stands for: `GPU`, `zone`, `option`.
    name
        The unknown name.
    valid
        The valid names. Names that numbers count are in the order of their creation.
    at
        The line or column with the name, before the sentence.
    where
        The option with the name.
    otherwise
        What to type if no valid name is close (default: some of the valid names).
    numbered
        Whether numbers count the names, as in `run-1`. A name that differs in its number alone was
        not mistyped, so the latest names are listed instead of the closest one.
    error
        The class of the error.
    """
    what = f"{at}: unknown {kind} '{name}'" if at else f"Unknown {kind} '{name}'"
    return error(what, where=where, fix=_suggestion(name, list(valid), otherwise, numbered))


def _suggestion(name: str, valid: list[str], otherwise: str, numbered: bool) -> str:
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.6 if numbered else 0.5)
    if close:
        differs_in_number = _DIGITS.sub("", close[0]) == _DIGITS.sub("", name)
        if not (numbered and differs_in_number):
            return f"Did you mean {close[0]}?"
    if otherwise or not valid:
        return otherwise
    listed = sorted(valid)[:_MOST_NAMES]
    if numbered:
        listed = valid[::-1][:_MOST_NUMBERED]
    more = ", ..." if len(valid) > len(listed) else "."
    return f"Known: {', '.join(listed)}{more}"
