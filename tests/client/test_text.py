"""Events as a person would tell them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, find, settings

from tests.controller.test_taken_back import lines
from transient_magics.client import Declaration, text
from transient_magics.client.declaring import specify
from transient_magics.client.text import event_words, group_words, grouped
from transient_magics.client.text.events import quiet_kinds
from transient_magics.errors import ClusterError, TrainingError
from transient_magics.journal import RunState, bill, events, replay
from transient_magics.protocol.events import kinds
from transient_magics.protocol.vm_events import (
    TrainBest,
    TrainCheckpoint,
    TrainData,
    TrainDetour,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMeasured,
    TrainOrder,
    TrainProgress,
    TrainRecovered,
    TrainReread,
    TrainShipped,
    TrainSlow,
    TrainStarted,
    TrainUnevaluated,
    TrainUnsaved,
    WorkerBatchResized,
    WorkerLeft,
)
from transient_magics.works.jobs.events import JobUnkept
from transient_magics.works.runs.words import work_words


def test_a_slow_run_is_told_with_what_is_likely_to_hold_it_up() -> None:
    def words(bottleneck: str, **named: Any) -> str:
        return event_words(TrainSlow(run="run-1", speed=96.0, expected=160.0, bottleneck=bottleneck, **named))

    assert words("worker", worker="worker-2") == "run-1 runs at 60% of its workers' best speed: worker-2 is slow"
    assert "the parameter server has no CPU to spare" in words("parameter server")
    assert "ps-1 has no CPU to spare; more of them (--ps) would help" in words("parameter server", server="ps-1")
    told = words("parameter server", servers=2, with_servers=144.0)
    assert told.endswith("has no CPU to spare; --ps 2 would make it about 1.5 times as fast")
    assert "workers wait for their examples" in words("input pipeline")
    assert "--wire bf16" in words("network")


def test_a_boot_is_told_as_it_goes_on_and_as_it_fails() -> None:
    requested = events.VmRequested(
        vm="worker-0", role="worker", slot=0, zone="us-west1-b", accelerator="t4", machine_type="n1-standard-4",
        provisioning_model="spot", hourly=0.2, on_demand_hourly=0.5,
    )  # fmt: skip
    story = [
        events.ClusterDeclared(spec=specify(Declaration("t4", name="c")).to_dict()),
        requested,
        events.VmRunning(vm="worker-0", address="10.128.0.2"),
        events.VmBootStep(vm="worker-0", what="installing Python 3.11"),
        events.VmBootFailed(vm="worker-0", reason="failed at: installing Python 3.11", lines="E: no such package"),
    ]

    def words(count: int) -> str:
        state = replay(story[:count])
        return text.vm_words(state, state.vms["worker-0"], 1.0)

    assert [words(count) for count in (3, 4, 5)] == [
        "booting",
        "booting, installing Python 3.11",
        "did not boot, failed at: installing Python 3.11",
    ]
    assert event_words(story[-1]).splitlines()[1:] == ["E: no such package"]


def test_a_slow_run_and_a_save_or_evaluation_that_failed_are_told_for_as_long_as_they_last() -> None:
    beginning = [
        events.ClusterDeclared(spec=specify(Declaration("k80x2", name="c")).to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 200}),
        TrainStarted(run="run-1", step=0),
    ]
    slow = TrainSlow(run="run-1", speed=96.0, expected=160.0, bottleneck="worker", worker="worker-2")
    failed = TrainUnevaluated(run="run-1", step=1050, reason="ValueError: no dev split")
    unsaved = TrainUnsaved(run="run-1", step=1060, reason="No space left on device")
    saved = TrainCheckpoint(run="run-1", step=1070, path="checkpoints/model.ckpt-1070")
    recovered = TrainRecovered(run="run-1", speed=158.0, expected=160.0)
    evaluated = TrainEvaluated(run="run-1", step=1100, metrics={"accuracy": 0.9})

    def status(*more: events.Event) -> str:
        state = replay([*beginning, *more])
        return text.status(state, bill(state, 1.0), 1.0)

    assert "slow: worker-2 is slow" in status(slow)
    assert "could not be evaluated at step 1,050: ValueError: no dev split" in status(failed)
    assert "not saved since step 1,060: No space left on device" in status(unsaved)
    assert "not saved" not in status(unsaved, saved)
    for after in ((slow, recovered), (slow, TrainStarted(run="run-1", step=5)), (failed, evaluated)):
        assert "slow:" not in status(*after)
        assert "could not be evaluated" not in status(*after)
    assert event_words(recovered) == "run-1 is as fast as its workers allow again"
    assert event_words(failed) == "run-1 could not be evaluated at step 1,050: ValueError: no dev split"


def test_an_evaluation_says_of_how_many_examples_it_is_and_what_is_no_number() -> None:
    part = TrainEvaluated(
        run="run-1", step=1100, metrics={"accuracy": 0.9}, batches=100, examples=12800, complete=False,
        undefined=("loss",),
    )  # fmt: skip
    assert event_words(part) == "run-1 evaluated at step 1,100: accuracy 0.9, loss nan (the first 12,800 examples)"
    begin = [
        events.ClusterDeclared(spec=specify(Declaration("k80x2", name="c")).to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 200}),
    ]
    state = replay([*begin, part])
    assert "evaluation: accuracy 0.9, loss nan (the first 12,800 examples)" in text.status(state, bill(state, 1.0), 1.0)
    whole = TrainEvaluated(run="run-1", step=1100, metrics={"accuracy": 0.9}, batches=3, examples=360)
    assert event_words(whole) == "run-1 evaluated at step 1,100: accuracy 0.9 (all 360 examples)"
    drawn = replace(part, of=50_000, drawn=12_800, among=50_000)
    assert "evaluation: accuracy 0.9, loss nan (12,800 of 50,000 examples)" in text.status(
        state := replay([*begin, drawn]), bill(state, 1.0), 1.0
    )
    best = TrainBest(run="run-1", step=9, metric="accuracy", value=0.5, seen="2 of 3 examples")
    assert event_words(best) == "run-1 has its best accuracy at step 9, 0.5 (2 of 3 examples)"
    order = TrainOrder(run="run-1", reason="input_fn's dataset has no end")
    assert event_words(order) == "run-1: input_fn's dataset has no end"
    assert "input_fn's dataset has no end" in text.status(state := replay([*begin, order]), bill(state, 1.0), 1.0)


def test_how_a_run_reads_its_data_is_told() -> None:
    told = TrainData(
        run="run-1", blocks=1011, records=18_600, bytes=2_100_000_000, epochs=3, bound=26, again=20, hits=1930,
        misses=1400, saved_bytes=4_100_000_000, fetched_bytes=2_900_000_000, straight_bytes=2_610_000_000,
        waited_seconds=12.4,
    )  # fmt: skip
    begin = [
        events.ClusterDeclared(spec=specify(Declaration("k80x2", name="c")).to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 200}),
        TrainStarted(run="run-1", step=0),
    ]
    state = replay([*begin, told])
    assert (
        "data: 2.1 GB in 1,011 blocks, at most 26 at a time per worker; 3 epochs read; 1,930 blocks (58%) "
        "from caches, 4.1 GB saved; 1,400 blocks copied, 2.9 GB (90% straight from the bucket), each byte 1.4 times; "
        "20 blocks read again; 12 s waited for records"
    ) in text.status(state, bill(state, 1.0), 1.0)
    lost = TrainReread(run="run-1", worker="worker-2", blocks=20, bound=26)
    detour = TrainDetour(run="run-1", worker="worker-1", reason="the VM has no right to use the bucket")
    assert event_words(detour) == (
        "run-1 reads records through ps-0, not directly from the bucket: "
        "the VM has no right to use the bucket (worker-1)"
    )
    assert event_words(lost) == "run-1 reads the 20 blocks of worker-2 again (26 at most)"


def resized(worker: str, old: int, new: int, reason: str) -> WorkerBatchResized:
    return WorkerBatchResized(run="run-1", worker=worker, old=old, new=new, reason=reason)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("static", "in proportion to the published speed of its GPU"),
        ("dynamic", "in proportion to its measured speed"),
        ("revocation", "another worker left"),
        ("join", "a worker joined"),
        ("oom", "memory was exhausted"),
        ("new", "new"),
    ],
)
def test_a_new_mini_batch_says_why(reason: str, said: str) -> None:
    words = event_words(resized("worker-1", 32, 48, reason))
    assert words == f"worker-1 takes mini-batches of 48, not of 32: {said}"


def test_mini_batches_that_change_together_are_one_line() -> None:
    alike = grouped([resized("worker-0", 32, 48, "dynamic"), resized("worker-1", 32, 16, "dynamic")])
    assert [group_words(group) for group in alike] == [
        "2 workers of run-1 now take mini-batches of 48, 16: in proportion to its measured speed"
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\x08\x00b\x9bc", "a\ufffd\ufffdb\ufffdc"),
        ("abc\u202egnp.exe", "abc\ufffdgnp.exe"),
        ("half \ud800", "half \ufffd"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("  5%|#\r 10%|##\r\n", "  5%|#\n 10%|##\n"),
        ("größer, 日本語, 🚀", "größer, 日本語, 🚀"),
    ],
)
def test_what_a_vm_says_steers_nothing(said: str, shown: str) -> None:
    assert text.plain(said) == shown


_STEERING = "a\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2Jb\u202ec"


def test_nothing_that_is_said_of_a_cluster_steers_a_terminal() -> None:
    run, job = {"run": "run-1"}, {"job": "job-1"}
    history = [
        events.ClusterDeclared(spec=specify(Declaration("v100x6", name="c")).to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}),
        TrainStarted(**run, step=0),
        TrainUnsaved(**run, step=1, reason=_STEERING),
        TrainUnevaluated(**run, step=1, reason=_STEERING),
        TrainEvaluated(**run, step=1, metrics={_STEERING: 1.0}),
        TrainShipped(**run, step=1, path=_STEERING),
        TrainSlow(**run, speed=1, expected=2, bottleneck=_STEERING),
        events.WorkDeclared(of="job", work="job-1", spec={"name": "job-1", "command": "x", "declared_at": 1.0}),
        JobUnkept(**job, attempt=1, reason=_STEERING),
        events.ControllerTrouble(what=_STEERING),
        WorkerLeft(**run, worker="worker-0", number=1, active=0, reason=_STEERING),
        TrainFailed(**run, reason=_STEERING),
        events.ClusterDeleting(reason=_STEERING),
    ]
    history = [replace(event, seq=number, time=number * 10**9) for number, event in enumerate(history, 1)]
    state = replay(history)
    said = [text.status(state, bill(state, 99.0), 99.0), *map(event_words, history), text.phase_words(state)]
    said += [work_words(each, None) for each in state.of(RunState).values()]
    said += [str(TrainingError(_STEERING, where=_STEERING)), *ClusterError(_STEERING)._render_traceback_()]
    assert sum("ab\ufffdc" in each for each in said) > 10
    assert not [each for each in said if "\x1b" in each or "\u202e" in each or "\x07" in each]


def test_what_a_vm_says_ends() -> None:
    assert len(text.plain("x" * 10**6)) == text.MOST_CHARACTERS
    assert len(text.plain("\x1b[31m" * 10**6)) <= text.MOST_CHARACTERS


def test_what_the_cluster_meets_is_told_in_words() -> None:
    spec = specify(Declaration("v100x6", name="c")).to_dict()
    advised = events.ClusterAdvised(accelerator="v100", zones={"us-west1-a": (0.4, 0.0), "us-west1-b": (0.9, 0.0)})
    assert event_words(events.ClusterResized(spec=spec)) == "the cluster becomes v100x6"
    named = events.ClusterResized(spec=spec, gives_up=("worker-7", "worker-2"))
    assert event_words(named) == "the cluster becomes v100x6, without worker-7, worker-2"
    measured = TrainMeasured(
        run="stalls-1", measure="S3", repeat=2, examples=32, bytes=0, straggler=0.0,
        seconds={"worker-0": 0.2, "worker-1": 0.203}, steps={"worker-0": 20, "worker-1": 20},
    )  # fmt: skip
    assert event_words(measured) == "stalls-1 measured S3 in repeat 2: 201.5 ms"
    assert event_words(advised) == "Compute Engine's advice on Spot V100s, best in us-west1-b (90% likely)"
    assert event_words(events.ClusterPriced(hourly=1.25, on_demand_hourly=3.5, spec=spec)) == (
        "Google's prices of today count: $1.25 per hour, $3.50 on demand"
    )


def test_of_several_runs_the_one_that_trains_is_told_first_and_the_others_wait_for_it() -> None:
    history = [
        events.ClusterDeclared(spec=specify(Declaration("k80x2", name="c")).to_dict()),
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 200}),
        events.WorkDeclared(of="run", work="run-2", spec={"train_steps": 100}),
        TrainStarted(run="run-1", step=0),
        TrainProgress(run="run-1", step=50, loss=1.0, steps_per_second=5.0),
    ]
    state = replay(history)
    shown = text.status(state, bill(state, 1.0), 1.0)
    assert "run-1  step 50 of 200" in shown
    assert "run-2  waits for the end of run-1" in shown
    assert "run-1 50/200" in text.listing([("c", state, bill(state, 1.0))])
    for held, said in (
        (("check", "is checked first, to see whether it fits beside run-1"), "run-2  is checked first, to see"),
        (("link", "a parameter server's link is full"), "run-2  waits for the end of run-1: a parameter server's link"),
    ):
        leased = events.ClusterLeased(ports={"run-1": 0}, workers={"0": "run-1"}, held={"run-2": held})
        behind = replay([*history, leased, events.WorkDeclared(of="run", work="run-3", spec={"train_steps": 9})])
        shown = text.status(behind, bill(behind, 1.0), 1.0)
        assert said in shown
        assert "run-3  waits behind run-2" in shown
    finished = replay([*history, TrainFinished(run="run-1", step=202)])
    assert work_words(finished.of(RunState)["run-1"], None).startswith(
        "finished at step 200 of 200 (2 more were under way)"
    )
    assert text.event_words(finished.recent[-1]) == "run-1 finished at step 202", "which is that of its checkpoint"
    state = replay([*history, TrainFinished(run="run-1", step=200)])
    assert work_words(state.of(RunState)["run-1"], None).startswith("finished at step 200 of 200, ")
    assert "run-2  waits for its first step" in text.status(state, bill(state, 1.0), 1.0)


@pytest.mark.parametrize(("project", "said"), [
    (None, "; it was emulated, so nothing was billed: $0.00 is what its VMs would have cost."),
    ("my-project", " and none is billed any more; it cost $0.00."),
])  # fmt: skip
def test_a_deleted_cluster_is_said_to_be_billed_no_more(project: str | None, said: str) -> None:
    spec = replace(specify(Declaration("t4", name="c")), project=project)
    state = replay([events.ClusterDeclared(spec=spec.to_dict())])
    assert text.deleted_words(state, bill(state, 0.0)) == f"c is deleted, no VM is left{said}"


NOT_DRAWN: dict[str, dict[str, object]] = {
    "vm.deflated": {"vm": "worker-0", "cpu": 0.5, "network": 1.0},
    "vm.inflated": {"vm": "worker-0", "cpu": 1.0, "network": 1.0, "cpu_before": 0.5},
    "work.stopping": {"work": "run-1", "of": "run"},
    "work.ended": {"work": "run-1", "of": "run", "state": "failed", "reason": "it ran out of memory"},
    "train.checked": {"run": "run-1"},
    "bag.result": {"bag": "bag-1", "job": 0, "attempt": 1, "returned": {"y": 1.0}, "seconds": 2.0},
}
"""Values of kinds of events of which `lines` draws none."""
OF_BUILDS = ("image.step", "image.built", "image.failed")
"""Events of the builds of images, which have a journal and a text of their own (client/project/images.py)."""

FIRST = settings(phases=[Phase.generate], database=None)
"""The first example that fits, without a search for a simpler one."""


@pytest.mark.parametrize("kind", sorted(kinds().keys() - quiet_kinds() - set(OF_BUILDS)))
def test_each_kind_of_event_that_users_see_has_a_text(kind: str) -> None:
    if kind in NOT_DRAWN:
        event = events.from_dict(kind, {**NOT_DRAWN[kind], "seq": 1, "time": 10**18})
    else:
        event = find(lines(kind), lambda drawn: drawn is not None, settings=FIRST)
    assert event is not None
    assert event_words(event) not in ("", kind), (
        "add a case to `event_words` (client/text/events.py, or words.py of work)"
    )
