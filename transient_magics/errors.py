"""Every error a user can meet, as one small tree.

Each error says in one sentence what is wrong, where, and how to fix it. Branches are named after
what the caller can do about them. In a cell they show that sentence and no traceback; everywhere
else they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .protocol.checks import all_plain, clipped

_MOST_KNOWN = 14
_MOST_NUMBERED = 6
_MOST_SUMMARY = 160
_DIGITS = re.compile(r"\d+")


class TransientError(Exception):
    """Root of all errors of this package.

    `what` is the sentence, `where` the place (a column, a VM, a file), `fix` the next thing to do.
    Both may be empty.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        """The whole of it, with what a VM or a service may have said of it in plain text."""
        if self.where:
            place = f" ({self.where})"
        else:
            place = ""
        if self.fix:
            remedy = f" {self.fix}"
        else:
            remedy = ""
        return all_plain(f"{self.what.rstrip('.')}{place}.{remedy}")

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of a traceback."""
        return [str(self)]


class DeclarationError(TransientError):
    """What was declared is invalid: a typo in a SPEC, an option, a name. Correct it and run again."""


class CellError(TransientError):
    """The body of a training cell is at fault; `where` names its line."""


class TrainingError(TransientError):
    """A run could not start or could not go on."""


class ClusterError(TransientError):
    """No such cluster, a name taken twice, or a command that the cluster's state does not allow."""


class NameTakenError(ClusterError):
    """Another cluster, or other work of the cluster, has the name already, or reserves it."""


class UnknownWorkError(ClusterError):
    """The cluster has no work of this kind and name: a run, study, job, bag or Dask cluster."""


class HomeError(ClusterError):
    """The folder in which everything of this user is kept cannot be read or written: it is
    read-only, or another's.
    """


class AgreementError(ClusterError):
    """What would be done is decided by a stranger (a VM, a bucket), and this machine's user has not
    agreed to it.
    """


class ControllerError(ClusterError):
    """The controller of a cluster could not be started or does not answer."""


class JournalError(TransientError):
    """A journal cannot be read or written."""


class PlanError(TransientError):
    """What is known does not carry a plan, or what planning needs is not installed."""


class StoreError(PlanError):
    """The file with what earlier runs of a model measured cannot be read; `where` names it."""


class CloudError(TransientError):
    """Compute Engine refused or failed."""


class StockoutError(CloudError):
    """The zone has no capacity for this machine now. Another zone (`zones`: those that have some),
    or later.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", zones: tuple[str, ...] = ()
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.zones = zones


class QuotaError(CloudError):
    """The project's quota does not allow it (`everywhere`: that of all regions). Ask for more, or
    fewer machines.
    """

    def __init__(
        self, what: str, *, where: str = "", fix: str = "", everywhere: bool = False
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.everywhere = everywhere


class RateLimitError(CloudError):
    """Too many requests; retried with a limit already."""


class AccessError(CloudError):
    """The credentials do not allow it, or the API is not enabled."""


class ConsumerError(AccessError):
    """The project that a request is charged to does not serve it: no API, no billing, no right to
    use the project.
    """


class CredentialsError(AccessError):
    """There are no credentials, or Google does not accept them (any more). A login mends it."""


class GoneError(CloudError):
    """The resource does not exist (any more)."""


class AlreadyExistsError(CloudError):
    """A resource of that name exists."""


class ChangedError(CloudError):
    """Somebody else was faster: the resource is not what it was when it was read."""


class NotReadyError(CloudError):
    """What the request is about is being made, changed or ended just now. In a moment it may be
    had.
    """


class UnreachableError(CloudError):
    """The API does not answer."""


class RemoteError(TransientError):
    """A VM could not be used over SSH."""


class ConnectionLostError(RemoteError):
    """The VM does not answer (any more)."""


class HostKeyError(RemoteError):
    """The VM's host key is not the one that Compute Engine told us. Never retried."""


class ForeignError(RemoteError):
    """A VM says or holds what is not taken from one: too much of it, or under a name that leads
    elsewhere.
    """


class RoomError(RemoteError):
    """What a VM holds cannot be taken yet: the disk of this machine has no room for it. To be tried
    again.
    """


class CommandError(RemoteError):
    """A command on a VM ended with a failure."""


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


def error_class(kind: object, otherwise: type[TransientError]) -> type[TransientError]:
    """Return the error class of this module with the name `kind`, or `otherwise` without one."""
    if isinstance(kind, str):
        found = globals().get(kind)
    else:
        found = None
    if isinstance(found, type) and issubclass(found, TransientError):
        return found
    return otherwise


def to_record(error: Exception) -> dict[str, str]:
    """Return the parts of an error for another process; `from_record` restores the error there."""
    kind = type(error).__name__
    if isinstance(error, TransientError):
        return {"error": error.what, "where": error.where, "fix": error.fix, "kind": kind}
    return {"error": str(error), "kind": kind}


def from_record(values: Mapping[str, Any], otherwise: type[TransientError]) -> TransientError:
    """Restore an error of another process; an unknown class becomes `otherwise`.

    Each part is cut to the length of a text in an event: the process may run on a VM.
    """
    what, where, fix = (clipped(str(values.get(part) or "")) for part in ("error", "where", "fix"))
    return error_class(values.get("kind"), otherwise)(what, where=where, fix=fix)


def joined(errors: Sequence[TransientError]) -> TransientError:
    """What several acts failed with, as one error; the only one stays what it is."""
    if len(errors) == 1:
        return errors[0]
    return ClusterError(" ".join(map(str, errors)))


def install_extra(extra: str) -> str:
    """Return the command that installs an optional part (`[project.optional-dependencies]`) from a
    checkout.
    """
    return f'Run in the checkout: pip install ".[{extra}]"'


def granted(answer: dict[str, Any]) -> dict[str, Any]:
    """A controller's answer to a command, as `serve` gives it; raises the error in it if that is
    what it holds.
    """
    if not answer.pop("ok", False):
        raise from_record({"error": "The controller refused", **answer}, ClusterError)
    return answer


def unknown(
    kind: str,
    name: str,
    known: Iterable[str],
    *,
    at: str = "",
    where: str = "",
    otherwise: str = "",
    numbered: bool = False,
    error: type[TransientError] = DeclarationError,
) -> TransientError:
    """Return the error for an unknown name, as `Unknown GPU 'k8' (--gpus). Did you mean k80?`.

    Parameters
    ----------
    kind
        What the name stands for: `GPU`, `zone`, `option`.
    known
        The known names, those that numbers count in their order.
    at
        The line or column with the name, before the sentence.
    where
        The option with the name.
    otherwise
        What to type where no known name is close (default: some of the known names).
    numbered
        Whether numbers count the names, as in `run-1`. A name that differs in its number alone was
        not mistyped, so the latest names are listed instead of the closest one.
    error
        The type of the error.
    """
    if at:
        what = f"{at}: unknown {kind} '{name}'"
    else:
        what = f"Unknown {kind} '{name}'"
    return error(what, where=where, fix=_suggestion(name, list(known), otherwise, numbered))


def _suggestion(name: str, known: list[str], otherwise: str, numbered: bool) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6 if numbered else 0.5)
    if close and not (numbered and _DIGITS.sub("", close[0]) == _DIGITS.sub("", name)):
        return f"Did you mean {close[0]}?"
    if otherwise or not known:
        return otherwise
    latest = known[::-1][:_MOST_NUMBERED]
    sample = sorted(known)[:_MOST_KNOWN]
    listed = latest if numbered else sample
    more = ", ..." if len(known) > len(listed) else "."
    return f"Known: {', '.join(listed)}{more}"
