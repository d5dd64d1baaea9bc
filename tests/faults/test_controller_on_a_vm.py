"""A controller on a VM of its own: this machine may go, another one may come, either kind of VM may be lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient, full_disk
from tests.light import LIGHT
from transient_emulator import settings
from transient_magics import client, places
from transient_magics.client import commands
from transient_magics.client.following.follower import follower
from transient_magics.journal import events, read
from transient_magics.protocol.vm_events import TrainStarted

PROJECT = "/compute/v1/projects/emulated-project"

COUNTS = """
import os, pathlib, signal, sys, time

kept = pathlib.Path(os.environ["TRANSIENT_KEEP"])
state = kept / "done"
done = int(state.read_text()) if state.exists() else 0
first = done + 1
print("begins at", done, flush=True)

def save(*_):
    (kept / "new").write_text(str(done))
    (kept / "new").replace(state)

def leave(*_):
    save()
    print("leaves at", done, flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, leave)
while not os.path.exists(os.environ["ENOUGH"]):
    time.sleep(0.1)
    done += 1
    save()
    if done == first:
        print("counts", flush=True)
print("done at", done, flush=True)
"""


def api(path: str, method: str = "GET") -> dict[str, Any]:
    """What the emulator's API answers."""
    url = settings.find(places.emulator())["url"]
    request = urllib.request.Request(f"{url}{PROJECT}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def listed(path: str) -> str:
    """Return the API's list of a kind of resource as text; empty once the emulator has ended after its last VM."""
    return json.dumps(api(path)) if settings.find(places.emulator()) else ""


def vms(cluster: str) -> dict[str, str]:
    """The status of each of a cluster's VMs, as Compute Engine tells it; the emulator ends soon after its last one."""
    if not settings.find(places.emulator()):
        return {}
    scopes = api("/aggregated/instances")["items"].values()
    found = {each["name"]: each["status"] for scope in scopes for each in scope.get("instances", ())}
    return {name.removeprefix(f"{cluster}-"): found[name] for name in found if name.startswith(f"{cluster}-")}


def place(cluster: client.Cluster, vm: str) -> str:
    """The path of a VM in the API."""
    return f"/zones/{cluster.state.vms[vm].zone}/instances/{cluster.name}-{vm}"


def until(reached: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait without following the cluster: that would start its local end again."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not {what} within {seconds:.0f} s"
        time.sleep(0.2)


def on_vm(cluster: str) -> list[int]:
    """Processes of the controller that runs on a VM of our emulator, as this machine numbers them."""
    ours, found = f"HOME={places.sockets()}/".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-m", b"transient_magics.controller", cluster.encode()]:
                known = (entry / "environ").read_bytes().split(b"\0")
                there = any(each.startswith(b"TRANSIENT_MAGICS_SEAT=") for each in known)
                found += [int(entry.name)] if there and any(each.startswith(ours) for each in known) else []
    return found


def governed_by_its_vm(cluster: client.Cluster) -> Patient:
    """The cluster once it is ready, and a controller on a VM of its own has taken over."""
    patient = Patient(cluster)
    patient.until(lambda state: state.seat == "controller-0" and state.phase == "ready", "ready in its charge")
    patient.until(lambda _: cluster.events("controller.recovered"), "taken over")
    return patient


@pytest.fixture
def elsewhere(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Another machine with the same emulated project: runs a program there, gives what it prints."""
    other_home = tmp_path_factory.mktemp("elsewhere")
    environment = {
        **os.environ, "TRANSIENT_MAGICS_HOME": str(other_home), "TRANSIENT_MAGICS_EMULATOR": str(places.emulator())
    }  # fmt: skip

    def run(code: str) -> str:
        command = [sys.executable, "-c", f"from transient_magics import client\n{code}"]
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, encoding="utf-8"
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    yield run
    for lock in other_home.glob("clusters/*/controller.lock"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lock.read_text(encoding="utf-8")), signal.SIGTERM)


def test_with_this_machine_away_the_cluster_goes_on_and_another_machine_ends_it(
    home: Path, tmp_path: Path, elsewhere: Callable[[str], str]
) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="away", purpose="jobs", controller="cluster"))
    patient = governed_by_its_vm(cluster)
    # A job whose folder is not copied before it ends.
    job = client.declare_job(
        source=COUNTS, cluster=cluster, name="counts", keep="kept", keep_seconds=600,
        environment={"ENOUGH": str(tmp_path / "never")},
    )  # fmt: skip
    until(lambda: "counts" in job.output(), "first words of the job")
    (other,) = {"worker-0", "worker-1"} - {*job.state.vms}
    os.kill(patient.controller(), signal.SIGKILL)
    until(lambda: not commands.in_charge(cluster.directory), "killed")
    mark = cluster.state.seq

    os.kill(on_vm("away")[0], signal.SIGKILL)
    api(f"{place(cluster, other)}/simulateMaintenanceEvent", "POST")
    until(lambda: vms("away").get("worker-2") == "RUNNING", "replaced")
    assert not commands.in_charge(cluster.directory)
    assert cluster.state.seq == mark, "a process here has followed it"
    patient.ends_at_once("controller-0", "ps-0", "worker-2")  # the last one by the controller on the VM

    printed = elsewhere(
        "from tests.ends import all_end\n"
        "assert client.sweep(all_machines=True).names == [], 'what another machine declared is no orphan'\n"
        "c = client.attach('away')\n"
        "c.resize('cpux3')\n"
        "c.follow(lambda now: sum(vm.role == 'worker' and vm.state == 'ready' for vm in now.living) == 3, 120)\n"
        "all_end('away', c.state.spec.declared_at + 24 * 3600, 'worker-3')\n"
        "c.delete(120)\n"
        "print(c.state.phase, c.cost().total)"
    )
    assert not vms("away")
    assert "cluster away" not in listed("/global/firewalls")
    assert "away" not in listed("/aggregated/disks")
    assert not commands.in_charge(cluster.directory)

    cluster.wait(PATIENCE, until="deleted")  # this machine is back, and learns what has happened
    history = cluster.events()
    left_out = read(cluster.directory / "journal.left-out.jsonl")
    assert [event.kind for event in left_out] == ["cluster.resized"], "what another machine's user wanted"
    numbers = sorted(event.seq for event in [*history, *left_out])
    assert numbers == list(range(1, len(numbers) + 1))
    assert {event.vm for event in cluster.events("vm.deleted")} >= {"ps-0", "controller-0"}  # type: ignore[attr-defined]
    assert [event.vm for event in cluster.events("controller.moved")] == ["controller-0", ""]  # type: ignore[attr-defined]
    assert printed.split() == ["deleted", str(cluster.cost().total)]
    assert job.state.phase == "stopped"
    assert "leaves at" in job.output()
    assert int((job.fetch(tmp_path / "got") / "done").read_text(encoding="utf-8")) > 0
    troubles = [event.what for event in history if isinstance(event, events.ControllerTrouble)]
    assert not [what for what in troubles if "kept" in what]


@pytest.mark.nightly
def test_a_full_disk_here_or_on_the_vm_is_said_and_loses_no_event(home: Path) -> None:
    cluster = client.declare(client.Declaration("k80", name="full", controller="cluster"))
    patient, told = governed_by_its_vm(cluster), [""]
    leave = follower().subscribe("full", lambda state, _: told.append(state.trouble))
    mirror = patient.controller()
    places_of_it = [(mirror, "cannot be copied to this machine"), (on_vm("full")[0], "The journal cannot be written")]
    for number, (process, said) in enumerate(places_of_it):
        worker, mark = f"worker-{number}", patient.mark()
        patient.until(
            lambda state, worker=worker: worker in state.vms and state.vms[worker].state == "ready", f"{worker} ready"
        )
        with full_disk(process, cluster.directory / "journal.jsonl"):
            cluster.revoke(worker)
            until(lambda said=said: said in told[-1], said)
            asked = time.monotonic()
            for _ in range(5):
                cluster.logs("controller-0", lines=1)
            assert time.monotonic() - asked < 60, "commands do not wait until there is room"
        patient.event(mark, events.WorkerReplaced, worker=worker)
        until(lambda: not told[-1], "silent again")
    leave()
    history = cluster.events()
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    cluster.delete()
    assert not vms("full")


def below(home: Path) -> dict[str, bytes]:
    """The files of a VM's account, and its sockets."""
    found = [path for path in home.rglob("*") if path.is_file() or path.is_socket()]
    return {str(path.relative_to(home)): path.read_bytes() if path.is_file() else b"" for path in found}


def programs(home: Path) -> set[str]:
    """Our programs that run in a VM."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOME={home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found |= set(re.findall(r" -m (transient_magics\.\S+)", line))
    return found


@pytest.mark.training
@pytest.mark.nightly
def test_controller_and_parameter_server_outlive_each_other_and_share_nothing(
    home: Path, elsewhere: Callable[[str], str]
) -> None:
    cluster = client.declare(client.Declaration("k80x2", name="seat", controller="cluster"))
    patient = Patient(cluster)
    patient.until(lambda state: state.seat, "in the charge of its VM")
    run = client.train(
        source=CELL, cluster=cluster, **LIGHT,
        train_steps=10**7, checkpoint_steps=40, checkpoint_seconds=None, pace_seconds=0.3,
    )  # fmt: skip
    patient.run = run
    patient.shipped()
    assert elsewhere("print(client.attach('seat').run('run-1').reach(60, 120))")

    seat, server = patient.home("controller-0"), patient.home("ps-0")
    own = "transient/controller/clusters/seat"
    key = (cluster.directory / "key").read_bytes()
    assert below(seat)[f"{own}/key"] == key
    assert f"{own}/command.sock" in below(seat)
    beside_users_code = below(server)
    assert not [name for name in beside_users_code if "controller/" in name or name.endswith("command.sock")]
    assert not [name for name, content in beside_users_code.items() if key.splitlines()[1] in content]
    assert "transient/runs/run-1/check.json" in beside_users_code, "where the graph was built once"
    assert "transient/runs/run-1/check.json" not in below(seat)
    assert programs(seat) == {"transient_magics.controller"}
    there = programs(server)
    assert "transient_magics.runtime.agent" in there
    assert not [name for name in there if not name.startswith("transient_magics.runtime.")]

    os.kill(patient.controller(), signal.SIGKILL)  # this machine is away
    until(lambda: not commands.in_charge(cluster.directory), "killed")
    mark = cluster.state.seq
    api(place(cluster, "ps-0"), "DELETE")
    until(lambda: vms("seat").get("ps-1") == "RUNNING", "replaced by the controller on its VM")
    assert not commands.in_charge(cluster.directory)
    resumed = patient.event(mark, TrainStarted)
    assert resumed.step > 0  # type: ignore[attr-defined]
    assert patient.since(mark, events.ControllerMoved) == []
    run.reach(resumed.step + 20, PATIENCE)  # type: ignore[attr-defined]

    mark = patient.mark()
    api(place(cluster, "controller-0"), "DELETE")
    patient.event(mark, events.ControllerMoved, vm="")
    # Under notice the old one may have asked for a successor already, which nobody here knew of.
    patient.until(lambda state: state.seat not in ("", "controller-0"), "in the charge of another VM")
    until(lambda: len(on_vm("seat")) == 1, "one controller")
    patient.ends_at_once(patient.cluster.state.seat)
    run.reach(run.state.step + 20, PATIENCE)
    assert patient.since(mark, TrainStarted) == [], "training has not noticed"
    said = elsewhere("r = client.attach('seat').run('run-1')\nr.stop()\nprint(r.wait(150).step)")
    assert int(said) == run.wait(PATIENCE).step
    patient.sees(lambda: run.history()["step"].max() > resumed.step, "metrics since then")  # type: ignore[attr-defined]
    assert cluster.cost().by_vm["controller-0"] > 0
    cluster.delete()
    assert not vms("seat")
