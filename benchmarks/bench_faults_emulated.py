"""Random sequences of faults through Google's client and the emulator, each with an emulator process of its own.

In each sequence a small cluster is declared; then, for some seconds, zones sell out, quotas shrink, requests are
refused, fail, get lost or are answered twice as Google's client sends them again, VMs are slow or taken away (some
before they run), credentials expire, and the controller is killed (-9) and revived, also while the cluster is deleted.
When the faults are over the cluster must be the declared one, or be told in one sentence per place why not; and when
it is deleted nothing may be left. What the emulator lists is compared with the journal all the while.

Controllers are real processes with the real client, forked from one that has imported it already.
"""

from __future__ import annotations

import argparse
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

from _common import say
from bench_chaos import PROJECT, left_behind

from transient_magics import emulator, places
from transient_magics.client import Cluster, Declaration, commands
from transient_magics.client.clusters import specify
from transient_magics.errors import TransientError
from transient_magics.journal import ClusterState, VmState, events, fold, read

NAME = "faulty"
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
_FORK = multiprocessing.get_context("fork")
_PATIENCE, _END_PATIENCE, _STILL = 240.0, 120.0, 2.0


@dataclass
class Outcome:
    """How a sequence ended; `broken` says what was not as it must be."""

    seed: int
    verdict: str = ""
    met: Counter[str] = field(default_factory=Counter)
    asked: int = 0
    revoked: int = 0
    refused: int = 0
    seconds: float = 0.0
    broken: list[str] = field(default_factory=list)


class Sequence:
    """One cluster on one emulator, and what happens to them; all of it follows from the seed but for the timing."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.chance = random.Random(outcome.seed)
        self.cluster = Cluster(NAME)
        self.url = emulator.ensure(linger=600.0, timeout=60.0, options=("--boot", "0.3", "--notice", "1"))
        self.cluster.directory.joinpath("runs").mkdir(parents=True)
        spec = specify(Declaration(self.chance.choice(SPECS), name=NAME))
        (self.cluster.directory / "spec.json").write_text(json.dumps(spec.to_dict()))
        self.declared = {("ps", 0), *(("worker", slot) for slot in range(spec.worker_count))}
        self.for_good = {"stockout": [f"{K80}:k80"]} if self.chance.random() < 0.25 else {}
        self._controller: multiprocessing.process.BaseProcess | None = None

    def run(self) -> None:
        """From the declaration until nothing is left."""
        try:
            self.cluster.weather(seed=self.outcome.seed)
            self.revive()
            self.storm()
            self.cluster.weather(**FAIR | self.for_good)
            self.settle()
            self.end()
            self.look_back()
        finally:
            self.kill()
            os.kill(emulator.about(self.url)["pid"], signal.SIGTERM)

    def storm(self) -> None:
        """Some seconds of faults."""
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
                self.outcome.verdict = verdict
                return
            if time.monotonic() > deadline:
                vms = ", ".join(f"{vm.name} {vm.state} {vm.reason}" for vm in state.living)
                self.broken(f"not settled: {state.phase}; {vms}; listed: {sorted(found or ())}; {state.trouble}")
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
        commands.send(self.cluster.directory, {"do": "delete"})
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            self.kill_at_some_point()
            self.outcome.met[KILLED] += 1
            self.revive()
        deadline = time.monotonic() + _END_PATIENCE
        while not self.cluster.state.over and time.monotonic() < deadline:
            time.sleep(0.1)
        if not self.cluster.state.over:
            self.broken(f"not deleted: {[vm.name for vm in self.cluster.state.living]}, {self.cluster.state.trouble}")
        if left := left_behind(self.url):
            self.broken(f"{left} VMs, disks, addresses or rules were left behind")

    def compare(self) -> None:
        """Whatever the emulator has was recorded before it was asked for, and nothing of it exists twice."""
        if (found := self.listed()) is None:
            return
        known = {f"{NAME}-{vm}" for vm in self.cluster.state.vms}
        if strangers := set(found) - known:
            self.broken(f"{strangers} were never recorded")

    def look_back(self) -> None:
        """The journal, event by event: no place was ever filled twice, no name used twice, no event lost."""
        history = read(self.cluster.directory / "journal.jsonl")
        state = ClusterState()
        for event in history:
            state = fold(state, event)
            filled = Counter((vm.role, vm.slot) for vm in state.living if vm.state != "leaving")
            if twice := [place for place, count in filled.items() if count > 1]:
                self.broken(f"{twice} were filled twice at event {event.seq}")
        wanted = [event.vm for event in history if isinstance(event, events.VmRequested)]
        if len(wanted) != len(set(wanted)):
            self.broken("a name was used twice")
        if [event.seq for event in history] != list(range(1, len(history) + 1)):
            self.broken("events are missing in the journal")
        self.outcome.asked = len(wanted)
        self.outcome.revoked = state.revocations
        self.outcome.refused = sum(isinstance(event, events.VmRefused) for event in history)

    def listed(self) -> dict[str, str] | None:
        """Name and status of each VM that the emulator has; None where it does not tell now."""
        try:
            with urllib.request.urlopen(f"{self.url}/{PROJECT}/aggregated/instances", timeout=5) as answer:
                scopes = json.load(answer)["items"].values()
        except (OSError, ValueError):
            return None
        vms = [vm for scope in scopes for vm in scope.get("instances", ())]
        if len({vm["name"] for vm in vms}) != len(vms):
            self.broken(f"a VM exists twice: {sorted(vm['selfLink'] for vm in vms)}")
        return {vm["name"]: vm["status"] for vm in vms}

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
            self.broken(f"the controller failed: {(self.cluster.directory / 'controller.log').read_text()[-2000:]}")
        self._controller = None

    def broken(self, what: str) -> None:
        """Note what is not as it must be, once."""
        if what not in self.outcome.broken:
            self.outcome.broken.append(what)


def _refused(state: ClusterState, place: tuple[str, int], fair: float, for_good: bool) -> bool:
    """Whether the last word on a place without a VM is one clear refusal: what is short, and where."""
    trail: list[VmState] = [vm for vm in state.vms.values() if (vm.role, vm.slot) == place]
    last = trail[-1] if trail else None
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
    outcome.seconds = time.monotonic() - began
    if outcome.broken:
        outcome.broken.append(f"(its files: {home})")
    else:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(sockets, ignore_errors=True)
    return outcome


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
    print(f"{'met by sequences':40} {'sequences':>9} {'times':>6} {'declared':>9} {'refused':>8} {'broken':>7}")
    for what in ("", *WEATHER, KILLED):
        here = [each for each in ended if not what or each.met[what]]
        verdicts = Counter("broken" if each.broken else each.verdict for each in here)
        times = sum(each.met[what] for each in here) if what else sum(sum(each.met.values()) for each in here)
        counts = f"{verdicts['declared']:9} {verdicts['refused']:8} {verdicts['broken']:7}"
        print(f"{what or 'all':40} {len(here):9} {times:6} {counts}")
    good = sum(not each.broken for each in ended)
    say("sequences that ended as they must", good, f"of {len(ended)}", f"{len(ended)}")
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
