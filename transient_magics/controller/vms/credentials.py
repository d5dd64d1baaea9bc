"""Handle credentials that Google no longer accepts, in the middle of a cluster's life.

VMs and training continue, requests to Compute Engine wait, and the panel shows what to type. The
controller loads the credentials again at growing intervals, so that a login in any terminal is
enough. Then it sends the requests that waited. The journal notes once when this begins, and once
when it is over.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from ...errors import CredentialsError
from ..record import Recorder

_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 30.0
_SOURCE = "credentials"
_TYPE = (
    "until you type `gcloud auth application-default login` in a terminal of the machine on which "
    "the controller runs (nothing has to be restarted)."
)
_FIX = f"Training continues; VMs are neither created nor deleted {_TYPE}"
_FIX_DELETING = f"The rest of the cluster is not deleted and costs money {_TYPE}"


class CredentialStatus:
    """Status of this process's credentials, by Google's latest answers."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pause = _FIRST_PAUSE
        self._reason = ""

    @property
    def refused(self) -> bool:
        """Whether Google refused the credentials."""
        return bool(self._reason)

    def refuse(self, error: CredentialsError) -> None:
        """Note that Google refused them. Only the first sentence is reported: later ones differ."""
        self._reason = self._reason or error.what.rstrip(".")
        self.report()

    def report(self) -> None:
        """Report what waits for a login. While the cluster is deleted, that is its end."""
        if self._reason:
            deleting = self._recorder.state.phase == "deleting"
            fix = _FIX_DELETING if deleting else _FIX
            self._recorder.note(_SOURCE, f"{self._reason}. {fix}")

    def accept(self) -> None:
        """Note that Google answered a request."""
        self._reason = ""
        self._pause = _FIRST_PAUSE
        self._recorder.note(_SOURCE, "")

    def next_pause(self) -> float:
        """Return the seconds until the next attempt to load credentials. Doubles every time."""
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        return pause

    @contextmanager
    def noting_refusal(self) -> Generator[None]:
        """Note a refusal of the credentials instead of raising it.

        The work in this context ends there. It is decided again after a login.
        """
        try:
            yield
        except CredentialsError as error:
            self.refuse(error)
