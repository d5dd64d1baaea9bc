"""Which VMs of a cluster the emulator is asked to shrink, or to give back to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controller.test_restarting import NAME, asking, state, vm_events
from transient_magics.cli import arguments, verbs
from transient_magics.client.cluster_handle import Cluster
from transient_magics.client.project import deflation
from transient_magics.errors import ClusterError
from transient_magics.journal import Event, events
from transient_magics.protocol.cluster_commands import ChangeMachine


def test_a_vm_that_is_just_becoming_another_machine_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator refuses all of what names one that does not run, by a number that nobody knows."""
    known = state(asking(), events.VmStopped(vm=NAME, reason="r"))
    known = replace(known, vms={name: replace(vm, vm_id=name) for name, vm in known.vms.items()})
    cluster = cast(Cluster, SimpleNamespace(name="one", state=known))
    asked: list[set[str]] = []

    def ask(url: str, verb: str, path: str, given: dict[str, Any]) -> dict[str, Any]:
        asked.append(set(given["vms"]))
        return {"shares": {each: [0.5, 1.0] for each in given["vms"]}}

    monkeypatch.setattr(deflation, "emulator_of", lambda *_: "")
    monkeypatch.setattr(deflation, "ask", ask)
    assert [str(change) for change in deflation.deflate(cluster, reclaim=1.0)] == ["worker-0 has 50% of its CPU."]
    assert {change.vm for change in deflation.deflate(cluster, restore=True)} == {"ps-0", "worker-0"}
    assert asked == [{"worker-0"}, {"ps-0", "worker-0"}]
    for how in ({"cpu": 0.5}, {"restore": True}):
        with pytest.raises(ClusterError, match=r"is being restarted as n1-standard-2\. Try again when it is ready"):
            list(deflation.deflate(cluster, worker=NAME, **how))


def smaller(name: str) -> list[Event]:
    """What makes another machine of it."""
    return [
        asking(vm=name),
        events.VmStopped(vm=name, reason="r"),
        events.VmMachineChanged(vm=name, machine_type="n1-standard-2", machine_before="n1-standard-8"),
        events.VmStarted(vm=name, address="10.0.0.2"),
        events.VmReady(vm=name),
    ]


def test_a_worker_that_is_refused_keeps_none_of_the_others_from_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def send(directory: Path, command: ChangeMachine) -> None:
        if command.vm != NAME:
            raise ClusterError(f"{command.vm} works for job-1, which would be interrupted", fix="Wait.")

    each = ("worker-0", NAME, "worker-2")
    known = state(*vm_events(slot=2, name="worker-2"), *[event for name in each for event in smaller(name)])
    cluster = SimpleNamespace(name="one", directory=Path(), state=known)
    monkeypatch.setattr(deflation, "emulator_of", lambda *_: "")
    monkeypatch.setattr(deflation, "ask", lambda *_: {"shares": {}})
    monkeypatch.setattr(deflation.commands, "send", send)
    monkeypatch.setattr(verbs.client, "cluster", lambda _: cluster)
    said: list[str] = []
    with pytest.raises(ClusterError, match=r"^worker-0 works for job-1.*Wait\. worker-2 works for job-1.*Wait\.$"):
        said.extend(map(str, verbs.act(arguments.parse("deflate", ["one", "--restore"]))))
    assert said == [
        "ps-0 has all of its CPU and network.",
        "worker-1 is being restarted as n1-standard-8.",
    ]
