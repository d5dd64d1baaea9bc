"""What is done about jobs: whatever happens to VMs and commands, in any order, each ends as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.controller.decisions.core import Situation, unused_seconds
from transient_magics.controller.decisions.ledger import leases
from transient_magics.errors import JournalError
from transient_magics.journal import ClusterState, Event, bill, events, fold, replay
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.spec import WORKER
from transient_magics.works.jobs.decisions import (
    LEAVING_SECONDS,
    STOP_SECONDS,
    Begin,
    End,
    Interrupt,
    StopOn,
    Stopping,
    Warn,
    decide,
)
from transient_magics.works.jobs.events import JobBegan, JobExited, JobInterrupted, JobStarted
from transient_magics.works.jobs.spec import JobSpec
from transient_magics.works.jobs.state import JobState

SECOND = 10**9


class Cluster:
    """A cluster of workers' places of which nothing is there but its journal; a look is a second."""

    def __init__(self, places: int = 2) -> None:
        self.places, self.time, self.history = places, 1000, list[Event]()
        self.state = ClusterState(phase="ready", ready_at=1000.0)
        self.vms = 0
        for slot in range(places):
            self.rent(slot)

    def record(self, event: Event) -> None:
        event = replace(event, seq=len(self.history) + 1, time=self.time * SECOND)
        self.history.append(event)
        self.state = fold(self.state, event)

    def rent(self, slot: int) -> None:
        name = f"worker-{self.vms}"
        self.vms += 1
        self.record(events.VmRequested(
            vm=name, role=WORKER, slot=slot, zone="us-west1-b", accelerator="k80", machine_type="n1-standard-4",
            provisioning_model="spot", hourly=0.2, on_demand_hourly=0.6,
        ))  # fmt: skip
        self.record(events.VmRunning(vm=name, address=f"10.0.0.{self.vms}"))
        self.record(events.VmReady(vm=name))

    def declare(self, name: str = "job-1", **fields: Any) -> None:
        spec = JobSpec(name, "python train.py", **fields)
        self.record(events.WorkDeclared(of="job", work=name, spec=spec.to_dict()))

    def look(self) -> list[Any]:
        """What the controller does at a look, but for what is done on VMs."""
        self.time += 1
        held = leases(self.state, dict.fromkeys(range(self.places), "k80"))
        if (held.ports, held.workers) != (self.state.ports, self.state.leases):
            workers = {str(slot): name for slot, name in held.workers.items()}
            self.record(events.ClusterLeased(ports=held.ports, workers=workers))
        made: list[Any] = []
        for job in self.state.active(JobState):
            for decision in decide(job, self.state, float(self.time)):
                made.append(decision)
                match decision:
                    case Begin():
                        self.record(JobBegan(job=job.name, attempt=job.attempt + 1, vms=decision.vms))
                    case Interrupt():
                        self.record(JobInterrupted(
                            job=job.name, attempt=job.attempt, reason=decision.reason, failed=decision.failed
                        ))  # fmt: skip
                    case Stopping():
                        self.record(events.WorkStopping(
                            work=job.name, of="job", reason=decision.reason, state=decision.state
                        ))  # fmt: skip
                    case End():
                        self.record(events.WorkEnded(
                            work=job.name, of="job", state=decision.state, reason=decision.reason
                        ))  # fmt: skip
        return made

    def job(self, name: str = "job-1") -> Any:
        return self.state.of(JobState)[name]

    def start(self, vm: str, name: str = "job-1") -> None:
        job = self.job(name)
        self.record(JobStarted(job=name, attempt=job.attempt, rank=job.vms.index(vm)))

    def exit(
        self, vm: str, code: int | None = 0, name: str = "job-1", *, noticed: bool = False, preempted: bool = False
    ) -> None:
        job = self.job(name)
        self.record(JobExited(
            job=name, attempt=job.attempt, rank=job.vms.index(vm), code=code, noticed=noticed, preempted=preempted,
            seconds=1.0,
        ))  # fmt: skip

    def lose(self, vm: str, *, notice: bool = False, replaced: bool = True) -> None:
        slot = self.state.vms[vm].slot
        if notice:
            self.record(events.VmPreemptionNotice(vm=vm))
        else:
            self.record(events.VmRevoked(vm=vm, signal="api"))
        if replaced:
            self.rent(slot)


def test_a_job_is_done_when_its_command_ends_well() -> None:
    cluster = Cluster()
    cluster.declare()
    assert cluster.look() == [Begin(("worker-0",))]
    cluster.start("worker-0")
    assert cluster.look() == []
    cluster.exit("worker-0")
    assert cluster.look() == [End("finished")]
    cluster.look()
    assert not cluster.state.leases, "its worker is free again"
    assert unused_seconds(Situation(cluster.time + 10.0, cluster.state)) > 0


@pytest.mark.parametrize("notice", [True, False])
@pytest.mark.parametrize("code", [0, 1, -15, None])
def test_a_revocation_is_no_failure_whatever_the_command_says_then(notice: bool, code: int | None) -> None:
    cluster = Cluster(1)
    cluster.declare()
    cluster.look()
    cluster.start("worker-0")
    cluster.lose("worker-0", notice=notice)
    if notice:
        assert cluster.look() == [], "it has its grace"
        cluster.exit("worker-0", code, noticed=True)
    [interrupted] = cluster.look()
    assert interrupted == Interrupt("worker-0 was revoked")
    assert cluster.look() == [Begin(("worker-1",))]
    assert (cluster.job().failures, cluster.job().interruptions, cluster.job().attempt) == (0, 1, 2)


def test_a_notice_after_which_the_vm_stays_was_none_and_is_tried_as_often_as_was_said() -> None:
    """A VM says that by itself: it could have a job begin anew for ever."""
    cluster = Cluster(1)
    cluster.declare(retries=1)
    begun = 0
    for _ in range(20 * int(LEAVING_SECONDS)):
        begun += Begin(("worker-0",)) in cluster.look()
        if (job := cluster.job()).vms and not job.exits:
            cluster.exit("worker-0", 0, noticed=True)
    assert (begun, cluster.job().phase, cluster.job().failures) == (2, "failed", 1)
    assert cluster.job().reason == "its command ended at a notice, and its VM stayed"


@pytest.mark.parametrize("notice", [True, False])
def test_a_vm_that_leaves_soon_after_its_commands_word_of_a_notice_is_no_failure(notice: bool) -> None:
    cluster = Cluster(1)
    cluster.declare()
    cluster.look()
    cluster.exit("worker-0", -15, noticed=True)
    cluster.time += int(LEAVING_SECONDS) - 2
    assert cluster.look() == [], "its VM may say it a moment later, or say nothing until it is gone"
    cluster.lose("worker-0", notice=notice)
    assert cluster.look() == [Interrupt("worker-0 was revoked")]
    assert cluster.look() == [Begin(("worker-1",))]


def test_of_several_vms_a_notice_after_which_the_vm_stays_ends_all() -> None:
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    cluster.exit("worker-0", 0, noticed=True)
    assert cluster.look() == []
    cluster.time += int(LEAVING_SECONDS)
    assert cluster.look() == [StopOn("worker-1")]
    cluster.exit("worker-1", 0, noticed=True)
    [ended] = cluster.look()
    assert (ended.state, ended.reason) == ("failed", "its command ended at a notice, and its VM stayed")


def test_a_command_that_fails_is_tried_as_often_as_was_said() -> None:
    cluster = Cluster(1)
    cluster.declare(retries=1)
    cluster.look()
    cluster.exit("worker-0", 3)
    assert cluster.look() == [Interrupt("its command ended with code 3", failed=True)]
    assert cluster.look() == [Begin(("worker-0",))]
    cluster.exit("worker-0", -11)
    assert cluster.look() == [End("failed", "its command was ended by signal 11")]
    assert cluster.job().code == -11


def test_a_job_on_several_vms_has_the_exit_code_of_the_rank_that_failed() -> None:
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    cluster.exit("worker-1", 1)
    cluster.exit("worker-0", 143, noticed=True)
    assert cluster.look() == [End("failed", "its command ended with code 1")]
    assert cluster.job().code == 1


def test_of_several_vms_one_that_goes_ends_all_and_failures_for_want_of_it_count_for_nothing() -> None:
    cluster = Cluster(3)
    cluster.declare(workers=2)
    cluster.look()
    for vm in ("worker-0", "worker-1"):
        cluster.start(vm)
    cluster.exit("worker-0", 1)  # it lost its peer before anybody knew
    assert cluster.look() == [StopOn("worker-1")]
    cluster.lose("worker-1", replaced=False)
    assert cluster.look() == [Interrupt("worker-1 was revoked")]
    assert cluster.look() == [Begin(("worker-0", "worker-2"))], "an idle worker is ready before a replacement"
    cluster.rent(1)
    cluster.look()
    assert cluster.state.leases == {0: "job-1", 2: "job-1"}, "the replacement is free"


@pytest.mark.parametrize("leaving", [["worker-1"], ["worker-0"], ["worker-0", "worker-1"]])
def test_at_a_notice_every_rank_is_warned_at_the_same_moment_and_none_is_ended(leaving: list[str]) -> None:
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    for vm in ("worker-0", "worker-1"):
        cluster.start(vm)
    for vm in leaving:
        cluster.lose(vm, notice=True, replaced=False)
    assert cluster.look() == [Warn("worker-0", 29.0), Warn("worker-1", 29.0)]
    cluster.time += 4
    assert cluster.look() == [Warn("worker-0", 24.0), Warn("worker-1", 24.0)], "also by another controller"
    cluster.exit("worker-0", 0, noticed=True)
    assert Warn("worker-1", 23.0) in (made := cluster.look()) or made == [StopOn("worker-1")]
    cluster.exit("worker-1", 0, noticed=True)
    assert cluster.look() == [Interrupt(f"{leaving[0]} was revoked")], "a rank that saved and left has not finished"


def test_a_rank_that_fails_for_want_of_one_under_notice_is_no_failure() -> None:
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    cluster.lose("worker-1", notice=True, replaced=False)
    cluster.exit("worker-0", 1)  # its collective broke before the warning came
    assert cluster.look() == [StopOn("worker-1")]
    cluster.exit("worker-1", 0, noticed=True)
    assert cluster.look() == [Interrupt("worker-1 was revoked")]
    assert cluster.job().failures == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_that_fails_for_want_of_one_whose_notice_is_heard_later_is_no_failure(leaves: bool) -> None:
    """As of a controller that was started again: it reads what ranks tell before it knows of the notice."""
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    cluster.exit("worker-0", 1)
    assert cluster.look() == [StopOn("worker-1")]
    cluster.exit("worker-1", 0, noticed=True, preempted=True)
    assert cluster.look() == []
    if leaves:
        cluster.lose("worker-1", notice=True, replaced=False)
        assert cluster.look() == [Interrupt("worker-1 was revoked")]
    else:
        cluster.time += int(LEAVING_SECONDS)
        assert [each.state for each in cluster.look()] == ["failed"], "it said so and stayed"


@pytest.mark.parametrize("then", ["revoked", "stays"])
def test_a_command_that_finishes_during_the_notice_is_done_and_one_whose_rank_was_warned_is_not(then: str) -> None:
    cluster = Cluster(2)
    cluster.declare(workers=2)
    cluster.look()
    cluster.lose("worker-1", notice=True, replaced=False)
    cluster.exit("worker-1", 0)
    assert cluster.look() == [], "what it had to do is done, so nobody else is warned for it"
    if then == "revoked":
        cluster.record(events.VmRevoked(vm="worker-1", signal="api"))
        cluster.exit("worker-0", 0, noticed=True)  # it had been warned before
        assert cluster.look() == [Interrupt("worker-1 was revoked")]
    else:
        cluster.exit("worker-0", 0)
        assert cluster.look() == [End("finished")]


def test_a_job_waits_for_as_many_workers_as_it_wants_and_one_that_wants_too_many_holds_up_nobody() -> None:
    cluster = Cluster(2)
    cluster.declare("huge", workers=3)
    cluster.declare("both", workers=2)
    cluster.declare("one")
    assert cluster.look() == [Begin(("worker-0", "worker-1"))]
    assert set(cluster.state.leases.values()) == {"both"}
    for vm in ("worker-0", "worker-1"):
        cluster.exit(vm, name="both")
    assert End("finished") in cluster.look()
    assert cluster.look() == [Begin(("worker-0",))]
    assert cluster.job("huge").phase == "declared"


def test_a_job_waits_behind_a_run_that_has_all_workers_and_a_run_behind_a_job() -> None:
    cluster = Cluster(2)
    cluster.record(events.WorkDeclared(of="run", work="run-1", spec=RunSpec("run-1", 100, check=False).without_token()))
    cluster.declare()
    assert cluster.look() == []
    assert set(cluster.state.leases.values()) == {"run-1"}
    cluster.record(TrainFinished(run="run-1", step=100))
    assert cluster.look() == [Begin(("worker-0",))]
    two = RunSpec("run-2", 100, check=False, least_workers=2, most_workers=2).without_token()
    cluster.record(events.WorkDeclared(of="run", work="run-2", spec=two))
    cluster.look()
    assert set(cluster.state.leases.values()) == {"job-1"}, "it is not taken from the job"


def test_who_is_stopped_is_told_and_one_that_is_not_heard_of_has_ended_all_the_same() -> None:
    cluster = Cluster(1)
    cluster.declare()
    cluster.look()
    cluster.record(events.WorkStopping(work="job-1", of="job", reason="stopped by the user"))
    assert cluster.look() == [StopOn("worker-0")]
    cluster.time += int(STOP_SECONDS)
    assert cluster.look() == [End("stopped", "stopped by the user")]


def test_the_limit_on_its_time_counts_over_all_attempts_and_is_a_failure() -> None:
    cluster = Cluster(1)
    cluster.declare(timeout_seconds=100.0)
    cluster.look()
    cluster.start("worker-0")
    cluster.time += 60
    cluster.lose("worker-0")
    cluster.look()
    cluster.look()
    cluster.start("worker-1")
    cluster.time += 60
    [stopping] = cluster.look()
    assert stopping == Stopping("it has run for 2 min, its limit (--job-timeout)", "failed")
    assert cluster.look() == [StopOn("worker-1")]
    cluster.exit("worker-1", -15, noticed=True)
    [ended] = cluster.look()
    assert (ended.state, "--job-timeout" in ended.reason) == ("failed", True)


def test_a_cluster_that_ends_ends_its_jobs() -> None:
    cluster = Cluster(1)
    cluster.declare()
    cluster.look()
    cluster.record(events.ClusterDeleting(reason="the limit of $5.00 is reached"))
    assert cluster.look() == [Stopping("the cluster ends: the limit of $5.00 is reached")]
    cluster.exit("worker-0", 0, noticed=True)
    assert StopOn("worker-0") not in (made := cluster.look())
    assert [each.state for each in made] == ["stopped"]


@pytest.mark.parametrize(("hours", "ahead"), [(1.0, 60), (0.02, 18)])
def test_jobs_end_before_the_limits_of_their_cluster_so_that_what_they_keep_comes_home(
    hours: float, ahead: int
) -> None:
    cluster = Cluster(1)
    spec = specify(Declaration("cpu", name="c", max_hours=hours))
    cluster.record(events.ClusterDeclared(spec=replace(spec, declared_at=float(cluster.time)).to_dict()))
    cluster.declare()
    cluster.look()
    cluster.start("worker-0")
    cluster.time = 1000 + round(3600 * hours) - ahead - 2
    assert cluster.look() == []
    [stopping] = cluster.look()
    assert stopping.reason.startswith("its cluster's limits end it in ")
    assert stopping.state == "stopped"
    assert cluster.look() == [StopOn("worker-0")]
    cluster.exit("worker-0", 0, noticed=True)
    assert [each.state for each in cluster.look()] == ["stopped"]


_HAPPENS = st.lists(
    st.tuples(
        st.sampled_from(["look", "start", "exit", "fail", "notice", "revoke", "stop", "declare", "again"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(_HAPPENS, st.integers(1, 3), st.integers(1, 2))
def test_whatever_happens_no_revocation_is_a_failure_all_ends_and_costs_sum_to_the_bill(
    story: list[tuple[str, int]], places: int, workers: int
) -> None:
    cluster = Cluster(places)
    cluster.declare(workers=min(workers, places), retries=1)
    failures = 0
    for what, which in story:
        job = cluster.job()
        mine = [vm for vm in job.vms if cluster.state.vms[vm].living and vm not in job.exits]
        vm = mine[which % len(mine)] if mine else ""
        if what == "declare" and len(cluster.state.of(JobState)) < 4:
            cluster.declare(f"more-{len(cluster.state.of(JobState))}")
        elif what == "stop" and not job.over and not job.stop and which == 0:
            cluster.record(events.WorkStopping(work="job-1", of="job", reason="stopped by the user"))
        elif what == "again":
            assert replay(cluster.history, ClusterState(phase="ready", ready_at=1000.0)) == cluster.state
        elif what in ("start", "exit", "fail", "notice", "revoke") and vm:
            leaves = cluster.state.vms[vm].state == "leaving"
            if what == "start":
                cluster.start(vm)
            elif what == "revoke":
                cluster.lose(vm)
            elif what == "notice" and not leaves:
                cluster.lose(vm, notice=True)
            elif what in ("exit", "fail"):
                failures += what == "fail" and not leaves
                cluster.exit(vm, what == "fail", noticed=leaves)
        cluster.look()
        owners = cluster.state.leases
        assert set(owners.values()) <= {each.name for each in cluster.state.of(JobState).values()}
        for each in cluster.state.active(JobState):
            had = sum(name == each.name for name in owners.values())
            assert had in (0, each.spec.workers), "all that it wants, or none"
    for _ in range(40):  # nothing more happens: it runs to its end
        for each in cluster.state.active(JobState):
            for vm in each.vms:
                if vm not in each.exits and cluster.state.vms[vm].living:
                    told = bool(each.stop) or cluster.state.vms[vm].state == "leaving"
                    cluster.exit(vm, name=each.name, noticed=told)
        cluster.look()
    assert not cluster.state.active(JobState)
    job = cluster.job()
    assert job.failures <= failures
    assert job.phase != "failed" or failures > 0
    moment = cluster.time + 5.0
    account = bill(cluster.state, moment)
    assert sum(account.lines.values()) == pytest.approx(account.total)


def test_an_attempt_on_vms_that_the_cluster_never_had_is_refused() -> None:
    cluster = Cluster()
    cluster.declare(workers=2)
    with pytest.raises(JournalError, match="unknown VM ghost"):
        cluster.record(JobBegan(job="job-1", attempt=1, vms=("worker-0", "ghost")))
    assert [type(decision) for decision in cluster.look()] == [Begin]
