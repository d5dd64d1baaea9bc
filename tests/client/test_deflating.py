"""Which VMs of a cluster the emulator is asked to shrink, or to give back to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.controller.test_restarting import NAME, asking, state
from transient_magics.client.handles import Cluster
from transient_magics.client.project import deflation
from transient_magics.errors import ClusterError
from transient_magics.journal import events


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
    assert deflation.reclaim(cluster, 1.0, "proportional").keys() == {"worker-0"}
    assert deflation.inflate(cluster, None).keys() == {"ps-0", "worker-0"}
    assert asked == [{"worker-0"}, {"ps-0", "worker-0"}]
    for act in (deflation.deflate, deflation.inflate):
        with pytest.raises(ClusterError, match=r"worker-1 is just becoming n1-standard-2\. Try again when it is ready"):
            act(cluster, NAME)
