"""A cluster that is declared again under the name of a deleted one: handles, waiting, events and panels of both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.homes import own_home
from transient_magics import client, places
from transient_magics.client import Cluster, Job, Run, Study, commands, launch
from transient_magics.client.following.cluster import watch
from transient_magics.client.following.follower import follower
from transient_magics.errors import ClusterError, NameTakenError, TrainingError
from transient_magics.journal import ClusterState, Event, Journal, events
from transient_magics.panels.display import Display
from transient_magics.protocol import jsonl, layout
from transient_magics.protocol.cluster_commands import Delete
from transient_magics.spec import ClusterSpec
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState

DELETED: tuple[Event, ...] = (
    events.WorkDeclared(of="job", work="job-1", spec=JobSpec("job-1", "make").to_dict()),
    *(events.ControllerTrouble(what=f"trouble {number}") for number in range(9)),
    events.ControllerTrouble(what=""),
    events.ClusterDeleting(reason="asked by the user"),
    events.ClusterDeleted(),
)
READY = events.ClusterReady(workers=2, seconds=1.0)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home in which no controller is started, and each change of a file is noticed soon."""
    with own_home() as folder:
        monkeypatch.setattr(commands, "in_charge", lambda directory: True)
        monkeypatch.setattr(jsonl, "_CHECK_SECONDS", 0.05)
        yield folder
        for path in places.clusters().glob(f"*/{layout.SPEC}"):
            path.unlink()  # nothing to delete: they never had VMs


def declared(*history: Event, name: str = "re") -> Cluster:
    """Return the handle of a cluster that has just been declared."""
    spec = client.specify(client.Declaration("cpux2", name=name))
    launch.make(spec)
    cluster = Cluster(name)
    happened(cluster, events.ClusterDeclared(spec=spec.to_dict()), *history)
    return cluster


def happened(cluster: Cluster, *history: Event) -> None:
    with Journal(cluster.directory / layout.JOURNAL) as journal:
        for event in history:
            journal.append(event)


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def shown(cluster: Cluster) -> Display:
    def publish(data: dict[str, Any], *, update: bool) -> None:
        assert data

    display = Display(cluster, None, follower())
    display.show(publish)
    return display


def test_a_cluster_declared_again_at_once_is_shown_and_waited_for_as_what_it_is(home: Path) -> None:
    old = declared(*DELETED)
    old_panel = shown(old)
    eventually(lambda: old_panel.state.over)
    new = declared(READY)
    new_panel = shown(new)
    assert new.wait(timeout=20).phase == "ready"
    with pytest.raises(ClusterError, match="re is deleted: asked by the user"):
        old.wait(timeout=20)
    happened(new, events.ControllerTrouble(what="again"))
    eventually(lambda: new_panel.state.trouble == "again")
    assert new_panel.state.phase == "ready"
    assert old_panel.state.over
    assert "re deleted" in " ".join(str(old_panel.bundle(live=False)["text/plain"]).split())
    followed = watch(new, until=lambda state: state.trouble == "again")
    assert [event.kind for event in followed] == ["cluster.declared", "cluster.ready", "controller.trouble"]
    assert [event.kind for event in watch(old)][-1] == "cluster.deleted"


def test_handles_of_work_stay_with_the_cluster_of_which_they_were_made(home: Path) -> None:
    old = declared(*DELETED)
    job, run, study = Job("job-1", old), Run("run-1", old), Study("study-1", old)
    new = declared(READY)
    assert (old.state.over, new.state.over, old.name, new.name) == (True, False, "re", "re")
    assert old.directory.parent == job.directory.parents[2] == places.past()
    assert new.directory == places.cluster("re")
    assert job.state.name == "job-1"
    assert not new.state.of(JobState)
    assert run.directory.parents[1] == study.directory.parents[1] == old.directory
    with pytest.raises(TrainingError, match="re was deleted before run-1 began"):
        run.wait(timeout=20)
    with pytest.raises(ClusterError, match="re is deleted"):
        commands.send(old.directory, Delete())
    assert not new.state.over
    assert client.cluster("re").identity == new.identity != old.identity


def test_a_declaration_that_was_overtaken_moves_no_living_cluster_away(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(*DELETED)
    take_lock = launch._try_lock

    def overtaken(name: str) -> int | None:
        monkeypatch.setattr(launch, "_try_lock", take_lock)
        declared(READY)
        return take_lock(name)

    monkeypatch.setattr(launch, "_try_lock", overtaken)
    with pytest.raises(NameTakenError, match="The cluster re already exists"):
        launch.make(client.specify(client.Declaration("cpux2", name="re")))
    assert Cluster("re").state.phase == "ready"
    assert len(list(places.past().iterdir())) == 1


def test_an_automatic_name_that_was_just_taken_is_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "start_controller", lambda directory: None)
    make = launch.make

    def overtaken(spec: ClusterSpec) -> Path:
        monkeypatch.setattr(launch, "make", make)
        make(spec)
        return make(spec)

    monkeypatch.setattr(launch, "make", overtaken)
    assert client.declare(client.Declaration("cpux2")).name == "cpux2-2"
    monkeypatch.setattr(launch, "make", overtaken)
    with pytest.raises(NameTakenError, match="The cluster named already exists"):
        client.declare(client.Declaration("cpux2", name="named"))


def test_who_follows_a_cluster_never_sees_the_one_that_takes_its_name(home: Path) -> None:
    old = declared(DELETED[0])
    seen: list[ClusterState] = []
    end = follower().subscribe(old.identity, lambda state, new: seen.append(state))
    eventually(lambda: seen)
    happened(old, *DELETED[1:])
    new = declared(READY)
    happened(new, events.ControllerTrouble(what="of the new one"))
    eventually(lambda: seen[-1].over)
    time.sleep(0.2)  # four looks at the file
    end()
    assert seen[-1].over
    assert {state.spec.id for state in seen if state.spec} == {old.identity.id}


def test_a_name_that_is_taken_as_its_cluster_begins_to_be_followed_is_not_followed(home: Path) -> None:
    old = declared(*DELETED)
    begin, subscribed, go_on = threading.Event(), threading.Event(), threading.Event()
    seen: list[ClusterState] = []
    follower().call(begin.wait)
    end = follower().subscribe(old.identity, lambda state, new: seen.append(state))
    follower().call(subscribed.set)
    follower().call(go_on.wait)
    begin.set()
    assert subscribed.wait(20)
    declared(READY)
    go_on.set()
    eventually(lambda: seen)
    end()
    assert [state.phase for state in seen] == ["deleted"]


def test_a_journal_that_lost_its_end_is_shown_as_it_goes_on(home: Path) -> None:
    cluster = declared(READY, *DELETED[1:10])
    panel = shown(cluster)
    eventually(lambda: panel.state.trouble == "trouble 8")
    path = cluster.directory / layout.JOURNAL
    lines = path.read_bytes().splitlines(keepends=True)
    beside = path.with_name(".journal")
    beside.write_bytes(b"".join(lines[:2]))
    beside.replace(path)
    happened(cluster, events.ControllerTrouble(what="after the loss"))
    eventually(lambda: panel.state.trouble == "after the loss")
