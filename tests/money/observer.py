"""What existed at a Compute Engine endpoint, seen from outside: its lists of instances, disks and operations, polled.

Nothing of the project is asked. Times are those that the API tells; where it tells none (a preempted VM that is deleted
leaves no operation that says when), the end is when a list first lacked it. The emulator's own clock, where it runs
faster, is taken from its weather (`/emulator/v1/weather`).

Bytes that VMs send are in none of these lists: a record has no traffic.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from .reckoning import Disk, Run, Vm

Clock = Callable[[float], float]
_ENDS = ("compute.instances.preempted", "stop", "delete", "compute.instances.automaticRestart")


@dataclass
class _Seen:
    """One instance, by its id: what it was at last, its starts, when a status was first seen, when it was missed."""

    resource: dict[str, Any]
    starts: list[float] = field(default_factory=list)
    stopping: dict[float, float] = field(default_factory=dict)  # by start
    terminated: dict[float, float] = field(default_factory=dict)
    gone: float | None = None


class Observer:
    """Polls until it is closed; `vms()` is the record. A list that cannot be had now is asked for again."""

    def __init__(self, url: str, project: str = "emulated-project", every: float = 0.1) -> None:
        self._base = f"{url}/compute/v1/projects/{project}/aggregated"
        self._weather = f"{url}/emulator/v1/weather"
        self._every = every
        self._instances: dict[str, _Seen] = {}
        self._disks: dict[str, tuple[dict[str, Any], float | None]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._anchors: list[list[float]] = [[0.0, 0.0, 1.0]]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="observer", daemon=True)
        self.looked = 0

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError):
                self.look()
            self._over.wait(self._every)

    def look(self) -> None:
        """Ask once. An instance that is preempted at once leaves the list while operations are read: they come last."""
        now, every = time.time(), dict(self._listed("instances"))
        for number, resource in every.items():
            seen = self._instances.setdefault(number, _Seen(resource))
            seen.resource = resource
            if "lastStartTimestamp" not in resource:
                continue
            start = _moment(resource["lastStartTimestamp"])
            if start not in seen.starts:
                seen.starts.append(start)
            if resource["status"] in ("STOPPING", "TERMINATED"):
                seen.stopping.setdefault(start, now)
            if resource["status"] == "TERMINATED":
                stopped = resource.get("lastStopTimestamp")
                seen.terminated.setdefault(start, _moment(stopped) if stopped else now)
        for number, seen in self._instances.items():
            if number not in every and seen.gone is None:
                seen.gone = now
        now, disks = time.time(), dict(self._listed("disks"))
        for number in {*self._disks, *disks}:
            last, gone = self._disks.get(number, ({}, None))
            self._disks[number] = (disks.get(number, last), None if number in disks else gone or now)
        self._operations |= dict(self._listed("operations"))
        with urllib.request.urlopen(self._weather) as answer:
            self._anchors = json.load(answer)["anchors"]
        self.looked += 1

    def _listed(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        page = ""
        while True:
            with urllib.request.urlopen(f"{self._base}/{kind}?maxResults=500&pageToken={page}") as answer:
                content = json.load(answer)
            for scope in content["items"].values():
                for each in scope.get(kind, []):
                    yield each["id"], each
            page = content.get("nextPageToken", "")
            if not page:
                return

    def clock(self, moment: float) -> float:
        """A moment (seconds since 1970) on the clock by which VMs are billed there."""
        here, there, rate = [anchor for anchor in self._anchors if anchor[0] <= moment][-1]
        return there + (moment - here) * rate

    def vms(self, clock: Clock | None = None) -> list[Vm]:
        """All that was ever seen, by the clock (default: as the emulator's clock runs)."""
        on = clock or self.clock
        return [self._vm(number, seen, on) for number, seen in self._instances.items()]

    def _vm(self, number: str, seen: _Seen, on: Clock) -> Vm:
        resource = seen.resource
        names = {disk["source"].partition("/projects/")[2] for disk in resource.get("disks", [])}
        disks = [
            Disk(
                _last(each["type"]),
                float(each["sizeGb"]),
                on(_moment(each["creationTimestamp"])),
                None if gone is None else on(gone),
            )
            for each, gone in self._disks.values()
            if each["selfLink"].partition("/projects/")[2] in names
            # A disk of the same name may be a later VM's.
            and abs(_moment(each["creationTimestamp"]) - _moment(resource["creationTimestamp"])) < 60
        ]
        accelerators = [(_last(each["acceleratorType"]), each["acceleratorCount"]) for each in _cards(resource)]
        return Vm(
            name=resource["name"],
            zone=_last(resource["zone"]),
            machine_type=_last(resource["machineType"]),
            spot=resource.get("scheduling", {}).get("preemptible", False),
            accelerators=tuple(accelerators),
            runs=tuple(self._run(number, seen, start, on) for start in seen.starts),
            disks=tuple(disks),
            external_address=any(each.get("accessConfigs") for each in resource.get("networkInterfaces", [])),
        )

    def _run(self, number: str, seen: _Seen, start: float, on: Clock) -> Run:
        """From a start to what ended it: the first operation after it that does, else the status as it was seen."""
        later = [moment for moment in seen.starts if moment > start]
        ends = sorted(
            (_moment(each["insertTime"]), each)
            for each in self._operations.values()
            if each.get("targetId") == number and each["operationType"] in _ENDS
            # An order that was refused ends nothing.
            and not each.get("error") and start <= _moment(each["insertTime"]) < min(later, default=float("inf"))
        )  # fmt: skip
        gone = None if later else seen.gone
        terminated = seen.terminated.get(start, gone)
        stopping = min([moment for moment in (seen.stopping.get(start), terminated) if moment], default=None)
        preempted = False
        if ends:
            asked, first = ends[0]
            stopping = asked if stopping is None else min(stopping, asked)
            preempted = first["operationType"] == "compute.instances.preempted"
            if first["operationType"] == "delete" and terminated and "endTime" in first:
                terminated = min(terminated, _moment(first["endTime"]))
        ends_at = (None if moment is None else on(moment) for moment in (stopping, terminated))
        return Run(on(start), *ends_at, preempted)


def _cards(resource: dict[str, Any]) -> list[dict[str, Any]]:
    return resource.get("guestAccelerators", [])


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _last(url: str) -> str:
    return url.rpartition("/")[2]
