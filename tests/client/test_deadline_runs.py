"""What a run with a deadline is refused for before anything begins, and when its deadline is."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.steered import swift_emulator, weather
from transient_magics import client, places
from transient_magics.client import commands, text
from transient_magics.client.planning import deadlines
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import Journal, events
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import Agree, Command, Resize, Train
from transient_magics.spec import RunSpec


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Command]:
    """What a controller that nobody started was told."""
    heard: list[Command] = []
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "start_controller", lambda directory: None)
    monkeypatch.setattr(commands, "send", lambda directory, command: heard.append(command))
    return heard


def declared(spec: str = "k80x2", **options: Any) -> client.Cluster:
    cluster = client.declare(client.Declaration(spec, name="c", **options))
    happened(events.ClusterDeclared(spec=deadlines_spec(cluster)))
    return cluster


def deadlines_spec(cluster: client.Cluster) -> dict[str, object]:
    return json.loads((cluster.directory / layout.SPEC).read_text())


def happened(*more: events.Event) -> None:
    with Journal(places.cluster("c") / layout.JOURNAL) as journal:
        for event in more:
            journal.append(event)


def begin(cluster: client.Cluster, finish_by: Any = "6h", **options: Any) -> client.Run:
    return client.train(source="", cluster=cluster, train_steps=1000, finish_by=finish_by, **options)


def test_a_deadline_is_a_moment_and_the_next_one_of_its_time_of_day(sent: list[Command]) -> None:
    run = begin(declared(), "6h")
    assert run.declared.finish_by == pytest.approx(time.time() + 6 * 3600, abs=60)
    assert run.declared.checkpoint_auto, "as nothing was said of checkpoints"
    assert sent == [Train(run="run-1")]
    later = datetime.now() + timedelta(hours=3)
    assert deadlines.moment(later, run.cluster) == later.timestamp()
    clock = deadlines.moment(later.strftime("%H:%M"), run.cluster)
    assert 0 <= later.timestamp() - clock < 60
    assert (
        deadlines.moment((datetime.now() - timedelta(minutes=2)).strftime("%H:%M"), run.cluster)
        > time.time() + 23 * 3600
    )
    with pytest.raises(DeclarationError, match="The deadline is past already"):
        deadlines.moment(datetime.now() - timedelta(hours=1), run.cluster)


def test_what_is_promised_is_said_before_and_which_limit_wins(sent: list[Command]) -> None:
    run = begin(declared(max_cost=20.0), max_cost=5.0)
    said = text.declared_words(run.declared, time.time())
    assert said.startswith("It is to be done by ")
    assert "capacity and quota for them are not promised" in said
    assert said.endswith("Where $5.00 are not enough for that, the money wins and it is late.")
    asked = text.declared_words(RunSpec(name="r", train_steps=1, finish_by=time.time() + 60, adapt="ask"), time.time())
    assert "nothing is changed before you agree" in asked


def test_a_cluster_that_is_shared_or_ends_before_or_has_no_spot_is_refused(sent: list[Command]) -> None:
    cluster = declared(max_hours=3.0, max_cost=2.0)
    with pytest.raises(DeclarationError, match="c ends by its own limits in 3 h, before the deadline"):
        begin(cluster, "6h")
    with pytest.raises(DeclarationError, match=r"\$5.00 are more than the \$2.00 left of c's limit"):
        begin(cluster, "1h", max_cost=5.0)
    happened(events.TrainDeclared(run="run-9", spec={"train_steps": 5}))
    with pytest.raises(ClusterError, match="needs c for itself, and run-9 would share it"):
        begin(cluster, "1h")
    assert sent == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"provisioning_model": "standard"}, "is on demand only"),
        ({"replace": False}, "was declared with --no-replace"),
        ({"chief": "worker"}, "has its chief on a worker"),
    ],
)
def test_clusters_that_cannot_be_followed_up_are_refused(
    sent: list[Command], options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ClusterError, match=why):
        begin(declared(**options))


def test_a_gpu_that_the_cluster_has_no_price_of_becomes_known_first(sent: list[Command]) -> None:
    cluster = declared()
    begin(cluster, gpus=("k80", "p100"))
    resize, train = sent
    assert isinstance(resize, Resize)
    assert isinstance(train, Train)
    assert "p100" in resize.spec["prices"]  # type: ignore[operator]
    assert [each["count"] for each in resize.spec["groups"]] == [2]  # type: ignore[attr-defined]
    with pytest.raises(DeclarationError, match="None of us-west4-a has K80s"):
        deadlines.refuse_untimely(cluster, {"finish_by": time.time() + 60, "zones": ("us-west4-a",)})


def test_nothing_begins_beside_it_and_a_proposal_is_agreed_to_by_its_number(sent: list[Command]) -> None:
    run = begin(declared(), adapt="ask")
    happened(events.TrainDeclared(run="run-1", spec=run.declared.without_token()))
    for other in (lambda: begin(run.cluster), lambda: run.cluster.run("true --fast", keep="")):
        with pytest.raises(ClusterError, match="run-1 has a deadline, and c for itself until it is over"):
            other()
    with pytest.raises(ClusterError, match="run-1 has a deadline, for which the workers of c are changed"):
        run.cluster.resize("k80x1")
    with pytest.raises(ClusterError, match="Nothing is proposed for run-1"):
        run.agree()
    machines = (("k80", "standard", 2),)
    happened(events.DeadlineProposed(run="run-1", machines=machines, reason="because", until=time.time() + 60))
    assert "proposed: because" in text.status(run.cluster.state, run.cluster.cost(), time.time())
    run.agree()
    assert sent[-1] == Agree(run="run-1", proposal=run.cluster.state.seq)


def test_what_earlier_runs_tell_that_no_workers_can_do_is_refused_with_the_nearest_that_they_can(
    sent: list[Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "_needed", lambda spec, run, source, steps: 2.5 * 3600.0)
    cluster = declared()
    with pytest.raises(DeclarationError, match=r"run-1 takes 2 h 30 min even on demand.*The nearest deadline is 150m"):
        begin(cluster, "2h")
    begin(cluster, "3h")


def test_without_quota_for_vms_on_demand_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator is asked as Compute Engine is; nobody is in charge of the cluster, so that none of its VMs boots."""
    monkeypatch.setattr(commands, "start_controller", lambda directory: None)
    monkeypatch.setattr(commands, "send", lambda directory, command: None)
    with swift_emulator() as url:
        cluster = declared("k80x2", zone=("us-west1-b",))
        happened(
            events.VmRequested(
                vm="worker-0", role="worker", slot=0, zone="us-west1-b", accelerator="k80", provisioning_model="spot",
                machine_type="n1-standard-4", hourly=0.1, on_demand_hourly=0.3,
            )
        )  # fmt: skip
        weather(url, quota=["k80=1"])
        with pytest.raises(ClusterError, match=r"2 K80 VMs on demand could not be had.*quota NVIDIA_K80_GPUS"):
            begin(cluster)
        weather(url, quota=["k80=2"])
        assert begin(cluster).name == "run-1"
        happened(events.ClusterDeleted())  # or the end of this home waits for somebody who deletes it
