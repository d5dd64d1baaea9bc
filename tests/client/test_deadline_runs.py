"""What a run with a deadline is refused for before anything begins, and when its deadline is."""

from __future__ import annotations

import itertools
import json
import re
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.steered import swift_emulator, weather
from transient_magics import client, places
from transient_magics.cli import arguments
from transient_magics.cli.answers import Begun
from transient_magics.client import commands, text
from transient_magics.client.planning import deadlines
from transient_magics.client.planning.deadlines import OnDemand, on_demand
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import Journal, events
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import Agree, Command, Declare, Resize
from transient_magics.spec import ClusterSpec, RunSpec
from transient_magics.spec.measurement import MeasureSpec, Sighting, write_sightings


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calm: str) -> list[Command]:
    """What a controller that nobody started was told."""
    heard: list[Command] = []
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setenv("TRANSIENT_MAGICS_EMULATOR", calm)
    monkeypatch.setattr(commands, "start_controller", lambda directory: None)
    monkeypatch.setattr(commands, "send", lambda directory, command: heard.append(command))
    return heard


def declared(spec: str = "k80x2", **options: Any) -> client.Cluster:
    cluster = client.declare(client.Declaration(spec, name="c", **options))
    happened(events.ClusterDeclared(spec=deadlines_spec(cluster)))
    return cluster


def deadlines_spec(cluster: client.Cluster) -> dict[str, object]:
    return json.loads((cluster.directory / layout.SPEC).read_text(encoding="utf-8"))


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
    assert sent == [Declare(kind="run", name="run-1")]
    later = datetime.now() + timedelta(hours=3)
    assert deadlines.moment(later, run.cluster) == later.timestamp()
    clock = deadlines.moment(later.strftime("%H:%M"), run.cluster)
    assert 0 <= later.timestamp() - clock < 60
    assert (
        deadlines.moment((datetime.now() - timedelta(minutes=2)).strftime("%H:%M"), run.cluster)
        > time.time() + 23 * 3600
    )
    with pytest.raises(DeclarationError, match="The deadline has already passed"):
        deadlines.moment(datetime.now() - timedelta(hours=1), run.cluster)


def test_what_is_promised_is_said_before_and_which_limit_wins(sent: list[Command]) -> None:
    run = begin(declared(max_cost=20.0), max_cost=5.0)
    said = text.declared_words("run", run.declared, time.time())
    assert said.startswith("Its deadline is ")
    assert "capacity or quota may be lacking" in said
    assert said.endswith("If $5.00 is not enough, the cost limit wins and the run is late.")
    spec = RunSpec(name="r", train_steps=1, finish_by=time.time() + 60, adapt="ask")
    asked = text.declared_words("run", spec, time.time())
    assert "wait for your approval" in asked


def test_a_cluster_that_is_shared_or_ends_before_or_has_no_spot_is_refused(sent: list[Command]) -> None:
    cluster = declared(max_hours=3.0, max_cost=2.0)
    with pytest.raises(DeclarationError, match="c reaches its limits in 3 h, before the deadline"):
        begin(cluster, "6h")
    with pytest.raises(DeclarationError, match=r"\$5.00 exceeds the rest of the limit of c, \$2.00"):
        begin(cluster, "1h", max_cost=5.0)
    happened(events.WorkDeclared(of="run", work="run-9", spec={"train_steps": 5}))
    with pytest.raises(ClusterError, match="needs c alone, but run-9 would share it"):
        begin(cluster, "1h")
    assert sent == []


def test_a_resize_to_workers_that_static_mini_batches_cannot_follow_is_refused(sent: list[Command]) -> None:
    cluster = declared()
    static = {"train_steps": 5, "batching": "static"}
    happened(events.WorkDeclared(of="run", work="run-1", spec={**static, "most_workers": 1}))
    cluster.resize("k80x2+cpu")
    assert [type(each) for each in sent] == [Resize]
    happened(events.WorkDeclared(of="run", work="run-2", spec=static))
    with pytest.raises(DeclarationError, match="that of workers without a GPU is unknown"):
        cluster.resize("k80x2+cpu")
    cluster.resize("k80x2+p100")
    assert [type(each) for each in sent] == [Resize, Resize]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"provisioning_model": "standard"}, "has only on-demand workers"),
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
    assert isinstance(train, Declare)
    assert "p100" in resize.spec["prices"]  # type: ignore[operator]
    assert [each["count"] for each in resize.spec["groups"]] == [2]  # type: ignore[attr-defined]
    with pytest.raises(DeclarationError, match="K80s are not available in us-west4-a"):
        deadlines.refuse_untimely(cluster, {"finish_by": time.time() + 60, "zones": ("us-west4-a",)})


def test_nothing_begins_beside_it_and_a_proposal_is_agreed_to_by_its_number(sent: list[Command]) -> None:
    run = begin(declared(), adapt="ask")
    happened(events.WorkDeclared(of="run", work="run-1", spec=run.declared.without_token()))
    for other in (lambda: begin(run.cluster), lambda: run.cluster.run("true --fast", keep="")):
        with pytest.raises(ClusterError, match="c is reserved for run-1, which has a deadline"):
            other()
    with pytest.raises(ClusterError, match="c changes its workers automatically"):
        run.cluster.resize("k80x1")
    with pytest.raises(ClusterError, match="run-1 has no proposal to agree to"):
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
    with pytest.raises(DeclarationError, match=r"needs up to 2 h 30 min.*Use --finish-by 150m or later"):
        begin(cluster, "2h")
    begin(cluster, "3h")


@pytest.mark.slow
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
        with pytest.raises(ClusterError, match=r"may need 2 on-demand K80 VMs.*quota NVIDIA_K80_GPUS"):
            begin(cluster)
        weather(url, quota=["k80=2"])
        assert begin(cluster).name == "run-1"
        happened(events.ClusterDeleted())  # or the end of this home waits for somebody who deletes it


def asked_on_demand(at: float, vm: str, *, given: bool, zone: str = "us-west1-b") -> list[events.Event]:
    """A worker on demand that the cluster `c` asked for, and what became of it."""
    asked = events.VmRequested(
        vm=vm, role="worker", slot=0, zone=zone, accelerator="k80", provisioning_model="standard",
        machine_type="n1-standard-4", hourly=0.3, on_demand_hourly=0.3, time=int(at * 1e9),
    )  # fmt: skip
    running = events.VmRunning(vm=vm, address="10.0.0.9", time=int(at * 1e9))
    return [asked, running if given else events.VmRefused(vm=vm, reason="none", cause="stockout", time=running.time)]


def test_what_was_met_of_capacity_on_demand_is_said_before_and_waited_for_from_the_start(sent: list[Command]) -> None:
    cluster = declared(zone=("us-west1-b",))
    now = time.time()
    run = begin(cluster, name="early")
    said = str(Begun(run, 0))
    assert "Unknown capacity for K80s on demand in us-west1-b" in said
    look = said.partition("To measure it: %transient_measure ")[2]
    assert arguments.parse("measure", look.split()).values["provisioning_model"] == "standard"
    assert run.declared.on_demand_wait == 0

    happened(
        *asked_on_demand(now - 9000, "worker-1", given=False), *asked_on_demand(now - 7800, "worker-2", given=False),
        *asked_on_demand(now - 6600, "worker-3", given=True),
        *asked_on_demand(now, "worker-4", given=False, zone="us-east1-c"),
    )  # fmt: skip
    run = begin(cluster, name="later")
    assert run.declared.on_demand_wait == pytest.approx(2400, abs=2)
    assert "1 of 3 requests of the last week succeeded. The longest wait was 40 min" in str(Begun(run, 0))
    elsewhere = begin(cluster, name="elsewhere", zones=("us-east1-c",))
    assert elsewhere.declared.on_demand_wait == 600, "one refusal tells little, and not nothing"
    assert re.search(r"The last request, \d+ (s|min) ago, failed\.", str(Begun(elsewhere, 0)))
    assert "requests" not in str(Begun(begin(cluster, name="only-told", adapt="off"), 0))


@pytest.mark.parametrize("gpu", ["cpu", "a100-80gb"])
def test_the_measurement_that_is_proposed_can_be_begun_with_the_dearest_gpu_too(
    gpu: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    monkeypatch.setattr(commands, "start", lambda *_: None)
    [unknown] = on_demand(client.specify(client.Declaration(gpu)), RunSpec(name="r", train_steps=1), time.time())
    look = unknown.words(time.time()).partition("To measure it: %transient_measure ")[2]
    assert client.measure(**arguments.parse("measure", look.split()).values)


def test_what_a_measurement_saw_on_demand_counts_and_what_it_saw_of_spot_does_not(sent: list[Command]) -> None:
    cluster = declared(zone=("us-west1-b",))
    now = time.time()
    for terms in ("spot", "standard"):
        folder = places.private(places.measurements() / f"k80-{terms}")
        spec = MeasureSpec(
            folder.name, "k80", ("us-west1-b",), {"us-west1-b": 0.5}, 1.0, 600.0, 3600.0, now - 4000,
            provisioning_model=terms,  # type: ignore[arg-type]
        )  # fmt: skip
        (folder / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        given = terms == "spot"
        write_sightings(folder, [Sighting(now - at, "us-west1-b", given=given) for at in (4000, 3400, 2800)])
    [known] = on_demand(ClusterSpec.from_dict(deadlines_spec(cluster)), RunSpec(name="r", train_steps=1), now)
    assert [each.given for each in known.seen] == [False] * 3
    assert known.waited(now) == pytest.approx(4000, abs=2), "nobody knows whether there is one now"
    assert known.waited(now, rate=360.0) == pytest.approx(600 / 360), "time passes faster there"


@given(st.lists(st.tuples(st.floats(1, 20_000), st.booleans()), max_size=30), st.sampled_from([1.0, 60.0, 360.0]))
def test_a_wait_is_no_longer_than_somebody_asked_and_none_where_all_were_given(
    looks: list[tuple[float, bool]], rate: float
) -> None:
    moments = list(itertools.accumulate((after / rate for after, _ in looks), initial=0.0))[1:]
    seen = tuple(Sighting(at, "z", given=given) for at, (_, given) in zip(moments, looks, strict=True))
    now = moments[-1] + 1 if moments else 1.0
    wait = OnDemand("k80", ("z",), seen).waited(now, rate)
    assert (wait == 0) == all(each.given for each in seen)
    assert wait <= max(now - min((each.at for each in seen), default=now), 600 / rate) + 1e-6
