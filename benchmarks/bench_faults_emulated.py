"""Random sequences of faults through Google's client and the emulator, each with an emulator process of its own.

In each sequence a small cluster is declared; then, for some seconds, zones sell out, quotas shrink, requests are
refused, fail, get lost or are answered twice as Google's client sends them again, VMs are slow or taken away (some
before they run), credentials expire, and the controller is killed (-9) and revived, also while the cluster is deleted.
When the faults are over the cluster must be the declared one, or be told in one sentence per place why not; and when
it is deleted nothing may be left but what was there before: VMs of others, with names and labels like the cluster's,
which nobody may touch. What the emulator lists is compared with the journal all the while, and the journal with the
promises that simulated sequences keep, too (tests/simulation/observer.py).

Controllers are real processes with the real client, forked from one that has imported it already.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import say, say_never

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.simulation.observer import Observer, Slot, Wanted
from transient_magics import emulator, places
from transient_magics.client import Cluster, Declaration, commands
from transient_magics.client.declaring import specify
from transient_magics.errors import TransientError
from transient_magics.journal import ClusterState, Event, VmState, events, fold, read
from transient_magics.protocol.cluster_commands import Delete
from transient_magics.spec import WORKER, ClusterSpec, price_kind

NAME = "faulty"
PROJECT = "compute/v1/projects/emulated-project"
K80, P100 = "us-west1-b", "us-central1-c"
SPECS = (f"k80x2@{K80}+p100@{P100}", "k80x3", "cpux3", "v100x2+p100")
WEATHER: dict[str, tuple[dict[str, Any], ...]] = {
    "stockout": tuple(
        {"stockout": [f"{place},for={seconds}s,delay={delay}s"]}
        for place, seconds, delay in ((f"{K80}:k80", 4, 0), (P100, 3, 1), ("us-central1-a", 4, 0.3), (K80, 2, 0.5))
    ),
    "quota (403)": ({"quota": ["k80=0", "v100=0"]}, {"quota": ["k80=1", "v100=1"]}),
    "failing API (403, 429, 5xx, dropped)": ({"api_errors": 0.1}, {"api_errors": 0.3}, {"api_errors": 0.6}),
    "slow API": ({"api_latency": "20ms..300ms"}, {"api_latency": "200ms..2s"}),
    "slow operation": ({"boot": "4s"}, {"boot": "9s"}),
    "revocations": ({"revocations": "every=2s"}, {"revocations": "every=5s"}),
    "preempted in creation": ({"creation_preemptions": 0.3}, {"creation_preemptions": 0.8}),
    "expired credentials": ({"credentials": "expired,for=2s"},),
}
FAIR = {
    "stockout": [], "quota": [], "api_errors": 0, "api_latency": None, "boot": None, "revocations": "none",
    "creation_preemptions": 0, "credentials": None,
}  # fmt: skip
KILLED = "controller killed"
DECKS = 4
"""Of so many sequences that follow each other one is dealt each kind of fault; what else they meet is chance."""
_DEALT: dict[str, dict[str, Any]] = {
    "failing API (403, 429, 5xx, dropped)": {"api_errors": 0.6},
    "slow API": {"api_latency": "200ms..2s"},
    "slow operation": {"boot": "4s"},
    "revocations": {"revocations": "every=2s"},
    "preempted in creation": {"creation_preemptions": 1.0},
    "expired credentials": {"credentials": "expired"},
}
"""What is dealt lasts until it has struck; where and of what stockouts and quotas are depends on the cluster."""
_STRIKES_WITHIN = 20.0
_FORK = multiprocessing.get_context("fork")
_PATIENCE, _END_PATIENCE, _STILL = 240.0, 120.0, 2.0
_SWEPT_WITHIN = 30.0
"""Seconds that a VM may run of which the journal says that it is gone."""
_STRANGERS = (
    (f"{NAME}-worker-1", "us-central1-b", {"transient-magics-cluster": NAME, "transient-magics-id": "00000001"}),
    (f"{NAME}-worker-0-old", "us-west1-b", {"transient-magics-cluster": NAME}),
)
_IMAGE = "projects/debian-cloud/global/images/family/debian-12"
_SORTS = (
    "not healed", "leaked", "places doubled", "names used again", "closed zones asked", "asked for nothing",
    "strangers touched", "failed",
)  # fmt: skip


@dataclass
class Outcome:
    """How a sequence ended; `broken` says what was not as it must be."""

    seed: int
    verdict: str = ""
    met: Counter[str] = field(default_factory=Counter)
    struck: list[str] = field(default_factory=list)
    """What it was dealt, as far as the cluster was seen to suffer from it."""
    asked: int = 0
    revoked: int = 0
    refused: int = 0
    seconds: float = 0.0
    healed: float = 0.0
    """Seconds from the last fault until the cluster stayed as it is."""
    broken: list[str] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)


class Sequence:
    """One cluster on one emulator, and what happens to them; all of it follows from the seed but for the timing."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.chance = random.Random(outcome.seed)
        self.cluster = Cluster(NAME)
        self.url = emulator.ensure(linger=600.0, timeout=60.0, options=("--boot", "0.3", "--notice", "1"))
        self.strangers: dict[str, tuple[str, str]] = {}
        self.ids: dict[str, str] = {}
        self.zombies: dict[str, float] = {}
        self.cluster.directory.joinpath("runs").mkdir(parents=True)
        spec = specify(Declaration(self.chance.choice(SPECS), name=NAME))
        (self.cluster.directory / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        self.spec = spec
        self.declared = {("ps", 0), *(("worker", slot) for slot in range(spec.worker_count))}
        self.for_good = {"stockout": [f"{K80}:k80"]} if self.chance.random() < 0.25 else {}
        self.dealt = [*WEATHER, KILLED][outcome.seed % DECKS :: DECKS]
        self._controller: multiprocessing.process.BaseProcess | None = None

    def run(self) -> None:
        """From the declaration until nothing is left."""
        try:
            self.cluster.weather(seed=self.outcome.seed)
            self.revive()
            self.be_joined()
            self.storm()
            self.cluster.weather(**FAIR | self.for_good)
            self.settle()
            self.end()
            self.look_back()
        finally:
            self.kill()
            os.kill(emulator.about(self.url)["pid"], signal.SIGTERM)

    def be_joined(self) -> None:
        """Others make VMs in the project, once the cluster's name is known not to be taken."""
        until = time.monotonic() + 60
        while not self.cluster.state.vms and time.monotonic() < until:
            time.sleep(0.02)
        self.strangers = {name: self.stranger(name, zone, labels) for name, zone, labels in _STRANGERS}

    def stranger(self, name: str, zone: str, labels: dict[str, str]) -> tuple[str, str]:
        """A VM of somebody else; what tells it apart, once it runs."""
        body = {
            "name": name, "labels": labels, "machineType": f"zones/{zone}/machineTypes/n1-standard-1",
            "networkInterfaces": [{"network": "global/networks/default"}],
            "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": _IMAGE}}],
        }  # fmt: skip
        where = f"{self.url}/{PROJECT}/zones/{zone}/instances"
        head = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(where, json.dumps(body).encode(), head), timeout=30).close()
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for vm in self.everything() or ():
                if vm["name"] == name and vm["zone"].endswith(zone) and vm["status"] == "RUNNING":
                    return vm["id"], "RUNNING"
            time.sleep(0.1)
        raise TransientError(f"{name} did not start")

    def storm(self) -> None:
        """Some seconds of faults."""
        for what in self.dealt:
            self.deal(what)
            self.outcome.met[what] += 1
        end = time.monotonic() + self.chance.uniform(3, 15)
        while time.monotonic() < end:
            what = self.chance.choice([*WEATHER, KILLED, KILLED, KILLED, "fair"])
            if what == KILLED:
                self.kill_at_some_point()
                self.revive()
            else:
                change = FAIR if what == "fair" else self.chance.choice(WEATHER[what])
                self.cluster.weather(**change)
            self.outcome.met[what] += 1
            pause = time.monotonic() + self.chance.uniform(0.2, 2.5)
            while time.monotonic() < pause:
                self.compare()
                time.sleep(0.1)

    def deal(self, what: str) -> None:
        """Have the cluster suffer from a fault: a worker is taken, so that another one is asked for meanwhile."""
        if what == KILLED:
            self.kill_at_some_point()
            self.revive()
            self.outcome.struck.append(what)
            return
        lost = self.a_worker()
        if lost is None:
            return
        seq, log = self.cluster.state.seq, self.log_size()
        self.cluster.weather(**_DEALT.get(what) or self.shortage(what, lost))
        if what != "expired credentials":  # whoever asks which VMs there are meets those, and nobody is let in
            self.take(lost)
        until = time.monotonic() + _STRIKES_WITHIN
        while time.monotonic() < until:
            self.compare()
            if self.has_struck(what, seq, log):
                self.outcome.struck.append(what)
                break
            time.sleep(0.1)
        self.cluster.weather(**FAIR)

    def a_worker(self) -> VmState | None:
        """One that runs, once there is one."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for vm in self.cluster.state.living:
                if vm.role == WORKER and vm.running_at and vm.state != "leaving":
                    return vm
            time.sleep(0.1)
        return None

    def shortage(self, what: str, lost: VmState) -> dict[str, Any]:
        """That another one like it cannot be had where it is."""
        kind = "cpus" if lost.accelerator == "cpu" else lost.accelerator
        return {"stockout": [f"{lost.zone},delay=0.3s"]} if what == "stockout" else {"quota": [f"{kind}=0"]}

    def take(self, vm: VmState) -> None:
        """Have it preempted; the request may fail for the weather."""
        place = f"{self.url}/{PROJECT}/zones/{vm.zone}/instances/{NAME}-{vm.name}/simulateMaintenanceEvent"
        for _ in range(20):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(place, data=b"", timeout=5).close()
                return
            time.sleep(0.1)

    def log_size(self) -> int:
        """Bytes of the controller's log."""
        path = self.cluster.directory / "controller.log"
        return path.stat().st_size if path.exists() else 0

    def has_struck(self, what: str, seq: int, log: int) -> bool:
        """Whether the cluster has suffered from it since event `seq`, and byte `log` of its controller's log."""
        since = [event for event in read(self.cluster.directory / "journal.jsonl") if event.seq > seq]
        asked = {each.vm for each in since if isinstance(each, events.VmRequested)}
        match what:
            case "stockout" | "quota (403)":
                return any(isinstance(each, events.VmRefused) and each.cause in what for each in since)
            case "expired credentials":
                return any(isinstance(each, events.ControllerTrouble) and "gcloud auth" in each.what for each in since)
            case "revocations":
                return sum(isinstance(each, events.VmPreemptionNotice | events.VmRevoked) for each in since) > 1
            case "preempted in creation":
                return any(isinstance(each, events.VmRefused) and "preemption" in each.reason for each in since)
            case "failing API (403, 429, 5xx, dropped)":
                with (self.cluster.directory / "controller.log").open("rb") as file:
                    file.seek(log)
                    return b"stamina" in file.read()
            case _:  # a slow API, a slow operation: whatever is asked for then
                return bool(asked & {each.vm for each in since if isinstance(each, events.VmRunning)})

    def settle(self) -> None:
        """Wait until the cluster stays as it is, and see that this is as it must be."""
        deadline, since, before = time.monotonic() + _PATIENCE, time.monotonic(), -1
        fair = time.time()
        while True:
            self.compare()
            state, found = self.cluster.state, self.listed()
            if state.seq != before:
                since, before = time.monotonic(), state.seq
            verdict = self.verdict(state, found, fair)
            if verdict and time.monotonic() - since > _STILL:
                self.outcome.verdict, self.outcome.healed = verdict, time.time() - fair
                return
            if time.monotonic() > deadline:
                vms = ", ".join(f"{vm.name} {vm.state} {vm.reason}" for vm in state.living)
                self.broken(
                    "not healed", f"not settled: {state.phase}; {vms}; listed: {sorted(found or ())}; {state.trouble}"
                )
                return
            time.sleep(0.2)

    def verdict(self, state: ClusterState, found: dict[str, str] | None, fair: float) -> str:
        """`declared` or `refused`; empty while it is neither."""
        living = {(vm.role, vm.slot): vm for vm in state.living}
        if found is None or set(found) != {f"{NAME}-{vm.name}" for vm in state.living}:
            return ""
        if any(vm.state != "ready" for vm in living.values()) or set(found.values()) - {"RUNNING"}:
            return ""
        missing = self.declared - living.keys()
        return "" if not all(_refused(state, place, fair, bool(self.for_good)) for place in missing) else (
            "refused" if missing else "declared"
        )  # fmt: skip

    def end(self) -> None:
        """Delete the cluster, the controller being killed at it now and then."""
        self.revive()
        commands.send(self.cluster.directory, Delete())
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            self.kill_at_some_point()
            self.outcome.met[KILLED] += 1
            self.revive()
        deadline = time.monotonic() + _END_PATIENCE
        while not self.cluster.state.over and time.monotonic() < deadline:
            time.sleep(0.1)
        if not self.cluster.state.over:
            self.broken(
                "leaked", f"not deleted: {[vm.name for vm in self.cluster.state.living]}, {self.cluster.state.trouble}"
            )
        if left := left_behind(self.url) - 2 * len(self.strangers):  # each a VM and its disk
            self.broken("leaked", f"{left} VMs, disks, addresses or rules were left behind")
        there = {(vm["id"], vm["status"]) for vm in self.everything() or ()}
        for name, known in self.strangers.items():
            if known not in there:
                self.broken("strangers touched", f"{name} of somebody else is not as it was")

    def compare(self) -> None:
        """Whatever the emulator has was recorded before it was asked for, and nothing of it exists twice or for long
        after the journal took it for gone."""
        if (found := self.listed()) is None:
            return
        state, now = self.cluster.state, time.monotonic()
        if strangers := set(found) - {f"{NAME}-{vm}" for vm in state.vms}:
            self.broken("asked for nothing", f"{strangers} were never recorded")
        gone = {name for name in found if (vm := state.vms.get(name.removeprefix(f"{NAME}-"))) and not vm.living}
        self.zombies = {name: self.zombies.get(name, now) for name in gone if found[name] == "RUNNING"}
        if late := [name for name, since in self.zombies.items() if now - since > _SWEPT_WITHIN]:
            self.broken("leaked", f"{late} run on though the journal took them for gone")

    def look_back(self) -> None:
        """The journal, event by event: no place was ever filled twice, no name used twice, no event lost."""
        history = read(self.cluster.directory / "journal.jsonl")
        state = ClusterState()
        for event in history:
            state = fold(state, event)
            # One that came after it was given up is known to be of no use, and about to be deleted.
            filled = Counter((vm.role, vm.slot) for vm in state.living if vm.state != "leaving" and not vm.failure)
            if twice := [place for place, count in filled.items() if count > 1]:
                self.broken("places doubled", f"{twice} were filled twice at event {event.seq}")
        observer = observed(self.spec, history)
        for what, sort in observer.broken.items():
            self.broken(sort, what)
        if [event.seq for event in history] != list(range(1, len(history) + 1)):
            self.broken("failed", "events are missing in the journal")
        self.outcome.asked = sum(isinstance(event, events.VmRequested) for event in history)
        self.outcome.revoked = state.revocations
        self.outcome.refused = sum(isinstance(event, events.VmRefused) for event in history)

    def listed(self) -> dict[str, str] | None:
        """Name and status of each VM that the emulator has, but for others' ones; None where it does not tell now."""
        if (found := self.everything()) is None:
            return None
        others = {known for known, _ in self.strangers.values()}
        own = [vm for vm in found if vm["id"] not in others]
        for vm in own:
            if self.ids.setdefault(vm["name"], vm["id"]) != vm["id"]:
                self.broken("names used again", f"{vm['name']} was, or is, another VM")
        return {vm["name"]: vm["status"] for vm in own}

    def everything(self) -> list[dict[str, str]] | None:
        """Each VM that the emulator has; None where it does not tell now."""
        try:
            with urllib.request.urlopen(f"{self.url}/{PROJECT}/aggregated/instances", timeout=5) as answer:
                scopes = json.load(answer)["items"].values()
        except (OSError, ValueError):
            return None
        return [vm for scope in scopes for vm in scope.get("instances", ())]

    def revive(self) -> None:
        """A controller, if there is none."""
        if self._controller:
            return
        self._controller = _FORK.Process(target=_be_a_controller, args=(self.cluster.directory,))
        self._controller.start()
        until = time.monotonic() + 60
        while not commands.in_charge(self.cluster.directory) and time.monotonic() < until:
            time.sleep(0.005)

    def kill_at_some_point(self) -> None:
        """kill -9, at once, after a while, or as soon as the journal has another line or two."""
        path = self.cluster.directory / "journal.jsonl"
        lines = self.chance.choice([0, 0, 1, 2, 3])
        size, until = path.stat().st_size if path.exists() else 0, time.monotonic() + self.chance.uniform(0, 2)
        while time.monotonic() < until and lines:
            now = path.stat().st_size if path.exists() else 0
            lines, size = lines - (now > size), now
            time.sleep(0.001)
        self.kill()

    def kill(self) -> None:
        """kill -9 of the controller; one that has ended by itself must have ended well."""
        if not self._controller:
            return
        self._controller.kill()
        self._controller.join()
        if self._controller.exitcode not in (0, -signal.SIGKILL):
            log = (self.cluster.directory / "controller.log").read_text(encoding="utf-8")
            self.broken("failed", f"the controller failed: {log[-2000:]}")
        self._controller = None

    def broken(self, sort: str, what: str) -> None:
        """Note what is not as it must be, once."""
        if what not in self.outcome.broken:
            self.outcome.broken.append(what)
            self.outcome.found[sort] += 1


def observed(spec: ClusterSpec, history: list[Event]) -> Observer:
    """Whoever looks on, having seen what the journal says was asked and answered, and when."""
    slots = [group for group in spec.groups for _ in range(group.count)]
    zones = {group.accelerator: (group.zone,) if group.zone else spec.zones_for(group.accelerator) for group in slots}
    wanted: dict[Slot, Wanted] = {("ps", 0): Wanted("parameter-server", spec.all_zones, False)}
    wanted |= {
        (WORKER, number): Wanted(group.accelerator, zones[group.accelerator], True)
        for number, group in enumerate(slots)
    }
    observer = Observer(lambda: wanted, spec.fallback_seconds)
    for event in history:
        match event:
            case events.VmRequested():
                model = "standard" if event.provisioning_model == "standard" else "spot"
                kind = price_kind(event.role, event.accelerator)
                observer.asked(event.vm, (event.role, event.slot), kind, event.zone, model, event.at)
            case events.VmRefused():
                observer.refused(event.vm, event.cause, event.at)
            case events.VmRunning():
                observer.ran(event.vm, event.at)
            case events.VmReady():
                observer.answered(event.vm)
            case events.VmBootFailed():
                observer.failed(event.vm, event.at)
            case events.VmPreemptionNotice():
                observer.noticed(event.vm, event.at)
            case events.VmRevoked() | events.VmDeleted():
                observer.gone(event.vm, event.at)
            case _:
                pass
    return observer


def _refused(state: ClusterState, place: tuple[str, int], fair: float, for_good: bool) -> bool:
    """Whether the last word on a place without a VM is one clear refusal: what is short, and where."""
    trail: list[VmState] = [vm for vm in state.vms.values() if (vm.role, vm.slot) == place]
    last = trail[-1] if trail else None
    if last and last.state != "refused":  # it was lost when another one of its kind had been refused for all of them
        kind = (last.role, last.accelerator)
        alike = [vm for vm in state.vms.values() if (vm.role, vm.accelerator) == kind and vm.state == "refused"]
        last = max(alike, key=lambda vm: vm.ended_at, default=None)
    if last is None or last.state != "refused" or last.cause not in ("stockout", "quota"):
        return False
    if last.ended_at > fair + 1 and not (for_good and last.zone == K80):
        return False  # nothing is short any more
    return bool(last.reason) and (last.zone in last.reason or "quota" in last.reason)


def _be_a_controller(directory: Path) -> None:
    """What `python -m transient_magics.controller` does, in this forked process."""
    from transient_magics.controller.__main__ import main

    log = os.open(directory / "controller.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())
    sys.exit(main([directory.name]))


def sequence(seed: int) -> Outcome:
    """One sequence, in a home of its own that is removed if all was well."""
    home = Path(tempfile.mkdtemp(prefix="tm-faults-"))
    os.environ["TRANSIENT_MAGICS_HOME"] = str(home)
    sockets, began = places.sockets(), time.monotonic()
    outcome = Outcome(seed)
    try:
        Sequence(outcome).run()
    except TransientError as error:
        outcome.broken.append(str(error))
        outcome.found["failed"] += 1
    outcome.seconds = time.monotonic() - began
    if outcome.broken:
        outcome.broken.append(f"(its files: {home})")
    else:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)
    return outcome


def left_behind(url: str) -> int:
    """VMs, disks, addresses and rules of ours that the emulator still has."""
    count = 0
    for scope in ("instances", "disks", "addresses"):
        with urllib.request.urlopen(f"{url}/{PROJECT}/aggregated/{scope}") as answer:
            count += sum(len(each.get(scope, [])) for each in json.load(answer)["items"].values())
    with urllib.request.urlopen(f"{url}/{PROJECT}/global/firewalls") as answer:
        return count + sum(rule["name"].startswith("transient-magics") for rule in json.load(answer)["items"])


def main() -> int:
    """Print what the sequences met and how they ended; exit code 1 where one did not end as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="ten")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--at-once", type=int, default=6, metavar="N", help="sequences side by side; most of them wait")
    given = parser.parse_args()
    count = 10 if given.quick else given.sequences
    _import_what_controllers_need()
    began = time.monotonic()
    ended: list[Outcome] = []
    with ProcessPoolExecutor(min(given.at_once, count), _FORK) as workers:
        for each in as_completed([workers.submit(sequence, given.first + number) for number in range(count)]):
            ended.append(each.result())
            for what in ended[-1].broken:
                print(f"sequence {ended[-1].seed}: {what}", flush=True)
    report(ended, time.monotonic() - began)
    return int(any(each.broken for each in ended))


def report(ended: list[Outcome], seconds: float) -> None:
    """The table."""
    for each in sorted(ended, key=lambda each: each.seed)[:DECKS]:
        print(f"sequence {each.seed} suffered from: {', '.join(each.struck) or 'nothing'}")
    print(
        f"{'met by sequences':40} {'sequences':>9} {'times':>6} {'suffered':>9} {'declared':>9} {'refused':>8} "
        f"{'broken':>7}"
    )
    for what in ("", *WEATHER, KILLED):
        here = [each for each in ended if not what or each.met[what]]
        verdicts = Counter("broken" if each.broken else each.verdict for each in here)
        times = sum(each.met[what] for each in here) if what else sum(sum(each.met.values()) for each in here)
        counts = f"{verdicts['declared']:9} {verdicts['refused']:8} {verdicts['broken']:7}"
        suffered = sum((what in each.struck) if what else bool(each.struck) for each in ended)
        print(f"{what or 'all':40} {len(here):9} {times:6} {suffered:9} {counts}")
    good = sum(not each.broken for each in ended)
    say("sequences that ended as they must", good, f"of {len(ended)}", f"{len(ended)}")
    say_never("sequences that broke a promise", len(ended) - good, len(ended))
    for sort in _SORTS:
        say_never(f"  {sort}", sum(bool(each.found[sort]) for each in ended), len(ended))
    say(
        "longest from the last fault to a cluster that stays",
        max(each.healed for each in ended),
        "s",
        f"< {_PATIENCE:.0f}",
    )
    say("VMs asked for in them", sum(each.asked for each in ended), "")
    say("VMs revoked in them", sum(each.revoked for each in ended), "")
    say("VMs refused in them", sum(each.refused for each in ended), "")
    say("took", seconds, "s")


def _import_what_controllers_need() -> None:
    import transient_magics.controller.cluster  # noqa: F401
    from transient_magics.cloud import preload

    preload().join()


if __name__ == "__main__":
    sys.exit(main())
