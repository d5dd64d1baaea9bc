"""When Google does not accept our credentials any more, in the middle of a cluster's life.

Nothing is given up: VMs and training go on, what is wanted of Compute Engine waits, and the panel
says what to type. Credentials are looked for again at growing intervals, so that a login in any
terminal is enough; then what waited is carried out. The journal says once that it began, and once
that it is over.
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
    "until you type `gcloud auth application-default login` in a terminal of the machine on which the controller runs "
    "(nothing has to be restarted)."
)
_FIX = f"Training goes on; VMs are neither made nor deleted {_TYPE}"
_FIX_DELETING = f"What is left of the cluster is not deleted, and costs money, {_TYPE}"


class Login:
    """Whether Google accepts our credentials, as far as the latest answers tell."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pause = _FIRST_PAUSE
        self._said = ""

    @property
    def refused(self) -> bool:
        """Whether they were not accepted."""
        return bool(self._said)

    def refuse(self, error: CredentialsError) -> None:
        """They were not accepted. Every request says so in its own words; the first is told."""
        self._said = self._said or error.what.rstrip(".")
        self.tell()

    def tell(self) -> None:
        """Say what waits for a login, if anything does: while the cluster is deleted, its end."""
        if self._said:
            if self._recorder.state.phase == "deleting":
                fix = _FIX_DELETING
            else:
                fix = _FIX
            self._recorder.note(_SOURCE, f"{self._said}. {fix}")

    def accept(self) -> None:
        """A request was answered."""
        self._said = ""
        self._pause = _FIRST_PAUSE
        self._recorder.note(_SOURCE, "")

    def pause(self) -> float:
        """How many seconds to wait before looking for credentials again; longer every time."""
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        return pause

    @contextmanager
    def minded(self) -> Generator[None]:
        """What fails in here for want of credentials is not done, and is decided upon again when
        there are some.
        """
        try:
            yield
        except CredentialsError as error:
            self.refuse(error)
