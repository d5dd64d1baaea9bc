"""What the controller says and leaves while Google accepts no credentials."""

from __future__ import annotations

from pathlib import Path

from transient_magics.controller.record import Recorder
from transient_magics.controller.vms.credentials import CredentialStatus
from transient_magics.errors import CredentialsError
from transient_magics.journal import ClusterState, Journal, events, read

EXPIRED = CredentialsError("Google did not accept the credentials", where="worker-1 in zone us-west1-b", fix="Log in.")


def test_the_journal_says_once_that_it_began_and_once_that_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        login = CredentialStatus(Recorder(journal, ClusterState()))
        for _ in range(3):
            with login.noting_refusal():
                raise EXPIRED
        assert login.refused
        login.refuse(CredentialsError("Another sentence"))
        login.accept()
        login.accept()
        assert not login.refused
    troubles = [event.what for event in read(path) if isinstance(event, events.ControllerTrouble)]
    assert len(troubles) == 2
    assert troubles[0].startswith("Google did not accept the credentials. Training continues")
    assert "`gcloud auth application-default login`" in troubles[0]
    assert troubles[1] == ""


def test_while_a_cluster_is_deleted_it_is_said_that_what_is_left_costs_money(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, ClusterState())
        login = CredentialStatus(recorder)
        login.report()
        assert not recorder.trouble
        login.refuse(EXPIRED)
        recorder.record(events.ClusterDeleting(reason="asked by the user"))
        login.report()
        told = "Google did not accept the credentials. The rest of the cluster is not deleted and costs money"
        assert recorder.trouble.startswith(told)
        assert "`gcloud auth application-default login`" in recorder.trouble


def test_what_troubled_an_earlier_controller_is_told_until_this_one_knows_better(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        for first in ("", "what is wrong now"):
            recorder = Recorder(journal, ClusterState(trouble="what was wrong then"))
            assert recorder.trouble == "what was wrong then"
            recorder.note("poll", first)
            assert recorder.state.trouble == recorder.trouble == first


def test_credentials_are_looked_for_ever_less_often_half_a_minute_at_most(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        login = CredentialStatus(Recorder(journal, ClusterState()))
        assert [login.next_pause() for _ in range(6)] == [2, 4, 8, 16, 30, 30]
        login.accept()
        assert login.next_pause() == 2
