"""The conduct of a run against the files of its VMs, over real SSH; the agents answer as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.processes import until
from tests.remote import ssh_server
from tests.remote.vms import Vm
from transient_magics.cloud import BoundedToken
from transient_magics.controller.vms.link import Link, Work
from transient_magics.errors import ConnectionLostError, TrainingError
from transient_magics.journal import ClusterState, Event, RunState, VmState, Works, events, fold
from transient_magics.protocol.agent_commands import Assignment, Command
from transient_magics.protocol.objective import Best
from transient_magics.protocol.run import RunSpec
from transient_magics.protocol.vm_events import TrainFailed, TrainFinished
from transient_magics.remote import Connection, generate_key
from transient_magics.runtime.files.checkpoints import Checkpoints
from transient_magics.works.runs import checking, checkpoint_copy, shipments, training
from transient_magics.works.runs.bucket_token import NAME
from transient_magics.works.runs.checking import possible_here
from transient_magics.works.runs.training import Training
from transient_magics.works.runs.words import work_words


class Machine:
    """A VM of a parameter server and, as far as the conduct of a run sees it, the link to it."""

    def __init__(self, home: Path, connection: Connection) -> None:
        self.run = home / "transient" / "runs" / "run-1"
        self.run.mkdir(parents=True)
        self.live = connection
        self.holds_run = asyncio.Event()
        self.asked: Callable[[], None] = lambda: None
        self.assigned: Assignment | None = None

    def expect(self, run: str, role: str, *, own: bool, warm: bool) -> None:
        pass

    def assign(self, work: Work) -> None:
        self.assigned = work.assignment

    async def connection(self, run: str = "") -> Connection:
        await self.holds_run.wait()
        return self.live

    answering = True

    async def bring(self, run: str, files: Callable[[], object]) -> Connection:
        return self.live  # they are there already

    async def ask(self, command: Command, timeout: float = 10.0) -> dict[str, Any]:
        self.asked()
        return {"ok": True}

    def saves(self, step: int, *, asked: bool = False) -> None:
        """What a chief does that saves, because it is time to or because it was asked."""
        folder = self.run / "checkpoints"
        folder.mkdir(exist_ok=True)
        for name in (f"model.ckpt-{step}.data-00000-of-00001", f"model.ckpt-{step}.index", "checkpoint"):
            (folder / name).write_text(f"{step}", encoding="utf-8")
        self.tells("train.checkpoint", step=step, asked=asked, path=f"checkpoints/model.ckpt-{step}")

    def tells(self, kind: str, **values: Any) -> None:
        """One more event of the run."""
        with (self.run / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time_ns(), "kind": kind, "run": "run-1", **values}) + "\n")


class Conducted:
    """A run that trains, its conduct, and the journal that comes of it."""

    def __init__(
        self,
        folder: Path,
        *,
        started: bool = True,
        store: str | None = None,
        mint: Any = None,
        others: tuple[RunState, ...] = (),
        **declared: Any,
    ) -> None:
        phase, since = ("running", time.time() - 60) if started else ("declared", 0.0)
        run = RunState("run-1", RunSpec("run-1", 1000, "m", **declared), phase=phase, started_at=since, step=90)
        self.state = ClusterState(works=Works([run]))
        self.history: list[Event] = []
        self.machines: dict[str, Machine] = {}
        folder.mkdir(parents=True)
        link = cast("Callable[[str], Link | None]", self.machines.get)
        self.troubles: dict[str, str] = {}
        self.training = Training(
            run,
            folder,
            self.record,
            link,
            lambda: None,
            store,
            mint=mint,
            note=self.troubles.__setitem__,
            checked=lambda: others,
        )
        self.home = folder / "checkpoints"
        self.task = asyncio.create_task(self.training.conduct())

    @property
    def trouble(self) -> list[str]:
        return [*filter(None, self.troubles.values())]

    def record(self, event: Event) -> None:
        self.history.append(event)
        self.state = fold(self.state, event)

    def on(self, vm: str, machine: Machine) -> None:
        """The parameter server is there from now on."""
        self.machines[vm] = machine
        place = ("z", "", "m", "standard", 0.0, 0.0, "ready", "127.0.0.1")
        self.training.give([VmState(vm, "ps", 0, *place)], 1)

    def at_home(self) -> set[str]:
        return {path.name for path in self.home.glob("*.index")}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[str], Awaitable[Machine]]]:
    opened: list[tuple[Any, Connection]] = []

    async def start(name: str) -> Machine:
        home, key = tmp_path / name, tmp_path / "key"
        home.mkdir()
        acceptor, host_key = await ssh_server.serve(home, generate_key(key))
        connection = await Vm(home, key, acceptor.get_port(), host_key).connect()
        opened.append((acceptor, connection))
        return Machine(home, connection)

    yield start
    for acceptor, connection in opened:
        await connection.close()
        acceptor.close()


async def test_a_run_that_waited_begins_with_a_token_of_that_moment(
    tmp_path: Path, start: Callable[[str], Awaitable[Machine]]
) -> None:
    made: list[BoundedToken] = []

    async def mint(_: object) -> BoundedToken:
        made.append(BoundedToken(f"secret-{len(made)}", time.time() + 3600))
        return made[-1]

    server = await start("ps-0")
    run = Conducted(tmp_path / "runs" / "run-1", started=False, store="gs://b/runs/run-1", mint=mint, check=False)
    run.machines["ps-0"] = cast("Link", server)
    servers = [VmState("ps-0", "ps", 0, "z", "", "m", "standard", 0.0, 0.0, "ready", "127.0.0.1")]
    run.training.find_server(servers)
    await until(lambda: made)
    assert server.assigned is None
    await until(lambda: run.training.give(servers, 1) or server.assigned)
    assert "secret-1" in (server.run / NAME).read_text(encoding="utf-8"), (
        "before the chief begins with what lies in the bucket"
    )
    run.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run.task


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Conducted]:
    conducted = Conducted(tmp_path / "runs" / "run-1")
    yield conducted
    conducted.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await conducted.task


async def test_a_stopped_run_ends_with_what_it_saved_last(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    machine = await start("ps-0")
    (machine.run / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    machine.holds_run.set()

    def saves() -> None:
        machine.saves(120)  # that was under way already
        machine.saves(140, asked=True)

    machine.asked = saves
    run.on("ps-0", machine)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    await asyncio.wait_for(run.task, 30)
    ended = run.history[-1]
    assert isinstance(ended, TrainFinished)
    assert (ended.step, ended.checkpoint) == (140, "checkpoints/model.ckpt-140")
    assert run.at_home() == {"model.ckpt-120.index", "model.ckpt-140.index"}


async def test_what_a_stopped_run_names_is_there_where_one_checkpoint_is_kept(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: machine.saves(140, asked=True)
    run.on("ps-0", machine)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    for path in (machine.run / "checkpoints").iterdir():
        path.unlink()
    machine.saves(150)  # its workers train on until it is over
    await asyncio.wait_for(run.task, 30)
    assert run.state.of(RunState)["run-1"].checkpoint == "checkpoints/model.ckpt-140"
    assert run.at_home() == {"model.ckpt-140.index"}


async def test_what_is_saved_while_a_run_is_stopped_does_not_come_home_where_its_chief_ships(
    tmp_path: Path, start: Callable[[str], Awaitable[Machine]]
) -> None:
    run, machine = Conducted(tmp_path / "runs" / "run-1", store="gs://results/c/run-1"), await start("ps-0")
    machine.holds_run.set()

    def saves() -> None:
        machine.saves(140, asked=True)
        machine.saves(160)  # its workers train on, and shipping takes longer than they do from one save to the next
        machine.tells("train.shipped", step=140, path="gs://results/c/run-1/checkpoints/140-ab/model.ckpt-140")
        machine.saves(180)

    machine.asked = saves
    run.on("ps-0", machine)
    await asyncio.wait_for(run.training.stop(lambda: run.state.of(RunState)["run-1"]), 30)
    await asyncio.wait_for(run.task, 30)
    assert not run.home.exists(), "its chief ships those of steps 160 and 180 as it ends"
    assert not run.trouble
    ended = run.state.of(RunState)["run-1"]
    assert (ended.phase, ended.shipped_step) == ("finished", 140)


async def test_a_stopped_run_without_its_last_checkpoint_says_so(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipments, "_LAST_SAVE_SECONDS", 0.5)
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(80)
    machine.asked = lambda: machine.saves(85)  # that was under way already
    run.on("ps-0", machine)
    await until(lambda: run.state.of(RunState)["run-1"].checkpoint_step == 80)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    await asyncio.wait_for(run.task, 30)
    (trouble,) = run.trouble
    assert trouble.startswith("run-1 is stopped at step 90 without a checkpoint of it (")
    assert trouble.endswith("there is that of step 85")
    ended = run.history[-1]
    assert isinstance(ended, TrainFinished)
    assert (ended.step, ended.checkpoint) == (90, "checkpoints/model.ckpt-85")


async def test_a_run_that_is_stopped_while_it_is_evaluated_has_its_last_checkpoint(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    asked = list[bool]()
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: asked.append(True)
    machine.saves(140)
    machine.tells("train.made", step=140)
    run.on("ps-0", machine)
    await until(lambda: run.state.of(RunState)["run-1"].made)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    await asyncio.wait_for(run.task, 30)
    ended = run.history[-1]
    assert isinstance(ended, TrainFinished)
    assert (ended.step, ended.checkpoint, run.trouble, asked) == (140, "checkpoints/model.ckpt-140", [], [])
    words = work_words(run.state.of(RunState)["run-1"], None)
    assert words.startswith("finished at step ")
    assert words.endswith(", stopped before it was evaluated")


async def test_a_run_that_measured_nothing_ends_without_trouble(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: machine.saves(0, asked=True)
    run.on("ps-0", machine)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    await asyncio.wait_for(run.task, 30)
    assert not run.trouble


@pytest.mark.slow
async def test_checkpoints_at_home_outlive_the_vm_and_those_of_the_next_one_come_too(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    first, second = await start("ps-0"), await start("ps-1")
    first.holds_run.set()
    first.saves(100)
    run.on("ps-0", first)
    await until(lambda: run.at_home() == {"model.ckpt-100.index"})

    first.holds_run.clear()  # it is gone, and nobody has noticed yet
    first.saves(120)
    await until(lambda: run.state.of(RunState)["run-1"].checkpoint_step == 120)
    await first.live.close()
    run.on("ps-1", second)
    second.saves(20)  # from the start, as where the run did not come to it
    second.holds_run.set()
    await until(lambda: "model.ckpt-20.index" in run.at_home())
    assert "model.ckpt-100.index" in run.at_home()
    second.saves(140)
    await until(lambda: run.at_home() == {"model.ckpt-20.index", "model.ckpt-140.index"})

    for step in (20, 40):  # as large, and another
        best = Best("max accuracy", step / 100, step)
        second.saves(40)
        Checkpoints(second.run / "checkpoints").keep_best(best)
        second.tells("train.best", step=step, metric="accuracy", value=best.value)
        await until(lambda best=best: Checkpoints(run.home).best() == best)
    assert run.state.of(RunState)["run-1"].best.value == 0.4


async def test_a_checkpoint_whose_copy_home_was_cut_off_comes_anew_as_a_whole(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    """Its data came, and then the parameter server began anew and made the step once more, as large and with others."""
    run.home.mkdir()
    (run.home / "model.ckpt-120.data-00000-of-00001").write_text("???", encoding="utf-8")
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(120)
    (machine.run / "checkpoints" / "model.ckpt-160.data-00000-of-00001.tempstate7").write_text(
        "a part of the next", encoding="utf-8"
    )
    run.on("ps-0", machine)
    await until(lambda: run.at_home() == {"model.ckpt-120.index"})
    assert (run.home / "model.ckpt-120.data-00000-of-00001").read_text(encoding="utf-8") == "120"
    assert not list(run.home.glob("model.ckpt-160.*"))


async def test_what_the_bucket_does_not_take_comes_home_until_it_takes_some_again(
    tmp_path: Path, start: Callable[[str], Awaitable[Machine]]
) -> None:
    run = Conducted(tmp_path / "runs" / "run-1", store="gs://results/c/run-1")
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(20)
    run.on("ps-0", machine)
    await until(lambda: run.state.of(RunState)["run-1"].checkpoint_step == 20)
    assert not run.home.exists(), "the bucket has it"
    machine.tells("train.unshipped", reason="the VM has no right to use the bucket")
    await until(lambda: run.home.exists() and run.at_home() == {"model.ckpt-20.index"})
    machine.saves(40)
    await until(lambda: run.at_home() == {"model.ckpt-20.index", "model.ckpt-40.index"})
    machine.tells("train.shipped", step=40, path="gs://results/c/run-1/checkpoints/40-ab/model.ckpt-40")
    machine.saves(60)
    await until(lambda: run.state.of(RunState)["run-1"].checkpoint_step == 60)
    await asyncio.sleep(0.3)
    assert run.at_home() == {"model.ckpt-20.index", "model.ckpt-40.index"}
    run.task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run.task


async def test_a_checkpoint_that_was_asked_for_and_cannot_be_written_is_told_at_once(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: machine.tells("train.unsaved", step=90, reason="No space left on device")
    run.on("ps-0", machine)
    with pytest.raises(TrainingError, match="No space left on device"):
        await asyncio.wait_for(run.training.save(), 30)


@pytest.mark.parametrize("replaced", [False, True])
async def test_who_waits_for_a_checkpoint_hears_at_once_that_the_servers_vm_is_lost(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], replaced: bool
) -> None:
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: run.machines.pop("ps-0", None) and None
    run.on("ps-0", machine)
    if replaced:
        other = await start("ps-1")
        machine.asked = lambda: run.on("ps-1", other)
    with pytest.raises(ConnectionLostError, match=r"parameter server( has no VM|'s VM)"):
        await asyncio.wait_for(run.training.save(), 10)


async def test_checkpoints_come_home_only_where_all_of_them_have_room(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipments, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(checkpoint_copy, "room", lambda _: 10)
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(1000)
    run.on("ps-0", machine)
    await until(lambda: run.trouble)
    (trouble,) = run.trouble
    assert trouble.startswith(
        "Checkpoints of run-1 are not copied here: this machine's disk has no room for another 1 MiB"
    )
    assert trouble.endswith("Free some space; then the copy is retried.")
    assert not [*run.home.iterdir()]
    monkeypatch.setattr(checkpoint_copy, "room", lambda _: 12)
    await until(run.at_home)
    await until(lambda: not run.trouble)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_run_is_not_over_before_there_is_room_for_its_last_checkpoint(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(shipments, "_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(training, "_ROOM_SECONDS", 0.05)
    monkeypatch.setattr(checkpoint_copy, "room", lambda _: 10)
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.asked = lambda: machine.saves(1000, asked=True)
    run.on("ps-0", machine)
    if stopped:
        await run.training.stop(lambda: run.state.of(RunState)["run-1"])
    else:
        machine.saves(1000)
        machine.tells("train.finished", step=1000, loss=0.1, seconds=9.0, checkpoint="checkpoints/model.ckpt-1000")
    said = "The results of run-1 wait for room here: this machine's disk has no room for another 1 MiB ("
    await until(lambda: [each for each in run.trouble if each.startswith(said)])
    assert len(run.trouble) == 1
    assert run.trouble[0].endswith("Free some space; then the copy is retried.")
    assert not run.state.of(RunState)["run-1"].over
    monkeypatch.setattr(checkpoint_copy, "room", lambda _: 12)
    await asyncio.wait_for(run.task, 30)
    assert run.state.of(RunState)["run-1"].phase == "finished"
    assert run.at_home() == {"model.ckpt-1000.index"}
    assert not run.trouble


async def test_a_run_that_nobody_wants_any_more_waits_for_no_room(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_copy, "room", lambda _: 10)
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(1000)
    run.on("ps-0", machine)
    await until(lambda: run.state.of(RunState)["run-1"].checkpoint_step)
    await run.training.stop(lambda: run.state.of(RunState)["run-1"], save=False)
    await asyncio.wait_for(run.task, 30)
    assert not run.at_home()


async def test_what_was_in_the_way_of_a_run_is_told_no_longer_than_it_is(
    run: Conducted, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = await start("ps-0")
    machine.holds_run.set()
    (machine.run / "events.jsonl").write_text("[1]\n", encoding="utf-8")
    run.on("ps-0", machine)
    said = "The chief of run-1 wrote lines that are refused"
    await until(lambda: any(each.startswith(said) for each in run.trouble))  # a starved connection tells of itself, too
    run.troubles["results"] = "told of the run before"
    run.training.fail("over")
    await asyncio.wait_for(run.task, 30)
    assert run.trouble == ["told of the run before"]


async def test_a_machine_that_cannot_check_leaves_that_to_the_vms(
    tmp_path: Path, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_memory(_: Path) -> str:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(checking, "check", no_memory)
    run = Conducted(tmp_path / "runs" / "run-1", started=False)
    machine = await start("ps-0")
    machine.holds_run.set()
    machine.saves(100)
    run.on("ps-0", machine)
    await asyncio.sleep(0)
    await until(lambda: run.task.done() or run.on("ps-0", machine) or run.at_home())
    assert run.at_home() == {"model.ckpt-100.index"}
    run.task.cancel()


async def test_a_run_that_differs_in_a_number_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checks(folder: Path) -> str:
        return f"{folder.name} was checked"

    monkeypatch.setattr(checking, "check", checks)
    monkeypatch.setattr(checking, "possible_here", lambda: True)
    earlier = tmp_path / "runs" / "earlier"
    earlier.mkdir(parents=True)
    (earlier / "model.json").write_text('{"parameters": 7, "variable_bytes": 28}', encoding="utf-8")
    others = (RunState("earlier", RunSpec("earlier", 9, "m", hparams="learning_rate=0.5"), checked=True),)
    ended: list[Event] = []
    for name, cell in (("same", "x = 1"), ("other", "x = 2")):
        (earlier / "cell.py").write_text("x = 1", encoding="utf-8")
        run = Conducted(tmp_path / name / "runs" / "run-1", started=False, others=others, hparams="learning_rate=0.1")
        (run.training.folder / "cell.py").write_text(cell, encoding="utf-8")
        earlier = earlier.rename(run.training.folder.with_name("earlier"))
        await until(lambda run=run: run.history)
        ended += run.history
        run.task.cancel()
    assert ended == [
        events.TrainChecked(run="run-1", parameters=7, variable_bytes=28),
        TrainFailed(run="run-1", reason="run-1 was checked"),
    ]


async def test_beside_a_controller_on_a_vm_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_SEAT", "controller-0")
    run = Conducted(tmp_path / "runs" / "run-1", started=False, pip=["left-pad"], pip_build=True)
    await asyncio.wait_for(run.task, 30)
    (failed,) = run.history
    assert isinstance(failed, TrainFailed)
    assert failed.reason.startswith("--pip-build would run code of the packages on the controller's VM")
    assert not possible_here(), "nor is a graph of the user's"


@pytest.mark.parametrize("why", ["", "No matching distribution found for left-pad"])
async def test_a_run_that_is_taken_back_has_its_packages_for_new_vms_and_is_not_checked_again(
    tmp_path: Path, start: Callable[[str], Awaitable[Machine]], monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """They were gathered on the VM of a controller that was lost."""

    async def gather(packages: Sequence[str], wheels: Path, *, build: bool) -> None:
        if why:
            raise TrainingError(why)
        wheels.mkdir()
        (wheels / f"{packages[0]}.whl").touch()

    async def check(folder: Path) -> str:
        raise AssertionError(f"{folder.name} trains already")

    monkeypatch.setattr(training, "gather", gather)
    monkeypatch.setattr(checking, "check", check)
    run, machine = Conducted(tmp_path / "runs" / "run-1", pip=["left-pad"]), await start("ps-0")
    await until(lambda: machine.assigned or run.on("ps-0", machine))
    sent = run.training._workers_files()
    assert ("wheels/left-pad.whl" in sent) == (not why)
    assert run.trouble == ([f"New VMs of run-1 have none of its packages: {why}."] if why else [])
    run.task.cancel()


async def test_a_worker_is_told_which_gpu_it_has_to_have(
    run: Conducted, start: Callable[[str], Awaitable[Machine]]
) -> None:
    run.machines |= {name: await start(name) for name in ("ps-0", "worker-0", "worker-1")}
    place = ("m", "standard", 0.0, 0.0, "ready", "127.0.0.1")
    vms = [VmState("ps-0", "ps", 0, "z", "", *place)]
    vms += [VmState(f"worker-{slot}", "worker", slot, "z", kind, *place) for slot, kind in enumerate(("t4", "cpu"))]
    await until(lambda: run.training.give(vms, 1) or run.machines["worker-1"].assigned)
    assert [machine.assigned.gpu for machine in run.machines.values() if machine.assigned] == ["", "t4", ""]


async def test_workers_that_keep_ending_are_the_runs_fault_unless_somebody_trains(run: Conducted) -> None:
    training = run.training
    assert training.give_up("worker-0", "worker", "Killed")
    assert training.give_up("worker-1", "worker", "Killed")
    assert not training.give_up("worker-2", "worker", "Killed")
    await asyncio.wait_for(run.task, 30)
    (failed,) = run.history
    assert isinstance(failed, TrainFailed)
    assert failed.reason == "Workers keep ending, the last one on worker-2: Killed"


async def test_a_run_whose_parameter_server_keeps_ending_has_failed(run: Conducted) -> None:
    assert not run.training.give_up("ps-1", "ps", "the disk is full")
    await asyncio.wait_for(run.task, 30)
    (failed,) = run.history
    assert isinstance(failed, TrainFailed)
    assert failed.reason == "The parameter server on ps-1 keeps ending: the disk is full"
