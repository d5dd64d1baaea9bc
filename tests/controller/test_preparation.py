"""How many VMs prepare a run's mini-batches, from what its workers were told to wait."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.test_core import PRICE, START, Story
from transient_magics import client, places
from transient_magics.client import commands
from transient_magics.client.declaring import with_preparation
from transient_magics.controller.decisions.core import DeleteVm, RequestVm
from transient_magics.controller.decisions.preparation import NO_WAITS, WAITS, Scaled, count, scaled
from transient_magics.journal import Journal, RunState, events
from transient_magics.journal.cost import costs
from transient_magics.protocol.cluster_commands import Command
from transient_magics.protocol.machines import parse_preparation, preparation_or_none
from transient_magics.protocol.vm_events import TrainFinished, TrainProgress

RUN = {"model": "m", "hparams_set": "h", "problem": "p", "train_steps": 1000, "prep": "cpux4", "check": False}


@given(
    have=st.integers(0, 40), most=st.integers(1, 40), least=st.integers(1, 40),
    told=st.lists(st.floats(0, 1), max_size=9),
)  # fmt: skip
def test_the_number_stays_within_what_was_asked_for(have: int, most: int, least: int, told: list[float]) -> None:
    have, least = min(have, most), min(least, most)
    wanted = count(have, most, least, told)
    assert 1 <= wanted <= most
    if have and wanted > have:
        assert min(told[-2:]) >= WAITS
    if wanted < have:
        assert wanted >= least
        assert max(told) >= NO_WAITS or have - wanted == 1


def test_what_is_between_waiting_and_not_changes_nothing() -> None:
    assert count(2, 4, 1, [0.05] * 9) == 2


@pytest.mark.parametrize("text", ["cpux0", "t4x1", "cpu+t4", "4", "cpux", "cpux1+cpux1x"])
def test_what_names_no_such_vms_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write .*x4|exceed the limit"):
        parse_preparation(text)


def test_the_grammar_writes_what_it_reads() -> None:
    assert [preparation_or_none(text) for text in ("cpux4", "cpu", "")] == ["cpux4", "cpux1", ""]


class Prepared(Story):
    """A cluster of one worker, whose run has up to four VMs prepare."""

    def __init__(self, **options: object) -> None:
        super().__init__(1, prices={"k80": PRICE, "parameter-server": PRICE, "cpu": PRICE}, preparation=4, **options)
        self.happens(
            events.WorkDeclared(of="run", work="run-1", spec={"name": "run-1", **RUN}),
            events.ClusterLeased(ports={"run-1": 0}, workers={"0": "run-1"}),
        )

    def scale(self) -> list[int]:
        for each in scaled(self.state):
            self.happens(events.PreparationScaled(run=each.run, slots=each.slots, waiting=each.waiting))
        self.carry_out(self.decisions())
        for vm in self.state.living:
            if vm.state == "requested":
                self.happens(events.VmRunning(vm=vm.name, address="10.0.0.9"), events.VmReady(vm=vm.name))
        return [*self.state.of(RunState)["run-1"].preparation.slots]

    def waits(self, share: float, times: int) -> Prepared:
        self.after(20)
        for _ in range(times):
            self.after(10).happens(TrainProgress(run="run-1", step=1, waiting=share))
        return self

    @property
    def preparing(self) -> list[str]:
        return sorted(vm.name for vm in self.state.living if vm.role == "prep")


def test_runs_share_the_vms_that_the_cluster_may_have_and_each_has_one() -> None:
    story = Prepared()
    assert story.scale() == [0]
    story.waits(0.5, 2)
    assert story.scale() == [0, 1]
    story.waits(0.5, 2)
    assert story.scale() == [0, 1, 2, 3]
    story.happens(
        events.WorkDeclared(of="run", work="run-2", spec={"name": "run-2", **RUN}),
        events.ClusterLeased(ports={"run-1": 0, "run-2": 1}, workers={"0": "run-1"}),
    )
    assert story.scale() == [0, 1, 2]
    story.scale()
    assert story.state.of(RunState)["run-2"].preparation.slots == (4,)
    story.waits(0.5, 9)
    assert story.scale() == [0, 1, 2], "there is no room for more"
    assert len(story.preparing) == 4


def test_a_run_beside_another_has_the_cluster_have_a_vm_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    spec = client.specify(client.Declaration("t4x2", name="two"))
    folder = places.cluster("two")
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    with Journal(folder / "journal.jsonl") as journal:
        journal.append(events.ClusterDeclared(spec=with_preparation(spec, 1).to_dict()))
        journal.append(events.WorkDeclared(of="run", work="run-1", spec={**RUN, "prep": "cpux1"}))
    sent: list[Command] = []
    monkeypatch.setattr(commands, "send", lambda _, command: sent.append(command))
    client.train(source="", cluster="two", **{**RUN, "prep": "cpux1"})
    assert [each.do for each in sent] == ["resize", "declare"]
    assert vars(sent[0])["spec"]["preparation"] == 2


def test_vms_are_added_while_steps_wait_and_given_back_when_nobody_does() -> None:
    story = Prepared()
    assert story.scale() == [0]
    assert story.preparing == ["prep-0"]
    (vm,) = (vm for vm in story.state.living if vm.role == "prep")
    assert (vm.provisioning_model, vm.accelerator) == ("spot", "cpu")
    assert story.waits(0.5, 1).scale() == [0], "one look is no trend"
    assert story.waits(0.5, 2).scale() == [0, 1]
    assert story.waits(0.5, 2).scale() == [0, 1, 2, 3]
    assert story.waits(0.5, 2).scale() == [0, 1, 2, 3], "no more were asked for"
    assert story.waits(0.0, 6).scale() == [0, 1, 2]
    assert story.preparing == ["prep-0", "prep-1", "prep-2"]
    assert len(story.waits(0.5, 2).scale()) == 4
    assert len(story.waits(0.0, 12).scale()) == 4, "with three it waited: they do not come and go in turns"


def test_while_one_is_missing_nothing_is_concluded_and_it_is_replaced() -> None:
    story = Prepared()
    story.scale()
    story.happens(events.VmRevoked(vm="prep-0", signal="notice"))
    story.waits(1.0, 3)
    assert not scaled(story.state)
    (request,) = (each for each in story.decisions() if isinstance(each, RequestVm) and each.role == "prep")
    assert (request.vm, request.replaces, request.zone) == ("prep-1", "prep-0", "us-west1-b")
    without = Prepared(replace=False)
    without.scale()
    without.happens(events.VmRevoked(vm="prep-0", signal="notice"))
    assert not [each for each in without.decisions() if isinstance(each, RequestVm) and each.role == "prep"]


def test_they_are_of_one_run_which_pays_for_them_and_go_with_it() -> None:
    story = Prepared()
    story.scale()
    story.happens(events.WorkDeclared(of="run", work="run-2", spec={"name": "run-2", **RUN}))
    story.happens(events.ClusterLeased(ports={"run-1": 0, "run-2": 1}, workers={"0": "run-1"}))
    assert scaled(story.state) == [Scaled("run-2", (1,), 0.0)]
    cost = costs(story.state, story.after(3600).now)["run-1"]
    assert cost.total > 2.5 * PRICE.hourly, "ps-0, worker-0 and prep-0"
    story.happens(TrainFinished(run="run-1", step=1000))
    assert DeleteVm("prep-0", "no longer needed") in story.decisions()
    assert story.state.spec is not None
    assert story.state.spec.most_hourly == pytest.approx(story.state.spec.hourly + 4 * PRICE.hourly)
    assert story.now > START
