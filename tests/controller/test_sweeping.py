"""The VMs that a sweep deletes, without an emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transient_magics.cloud import Vm
from transient_magics.controller.programs import sweep as sweeps
from transient_magics.controller.vms.machines import ID_LABEL, LABEL, MACHINE_LABEL, SEAT_LABEL, owner_labels


class Project:
    """A project that holds VMs and no firewall rule; its own engine."""

    def __init__(self) -> None:
        self.vms: list[Vm] = []
        self.firewall = SimpleNamespace(find=self._find_rules, remove=self._remove_rules)

    async def principal(self) -> str:
        return "user@example.com"

    async def list(self, labels: Mapping[str, str]) -> list[Vm]:
        return [vm for vm in self.vms if labels.items() <= vm.labels.items()]

    async def delete(self, zone: str, name: str, labels: Mapping[str, str]) -> None:
        self.vms = [vm for vm in self.vms if vm.name != name]

    async def _find_rules(self, chosen: Callable[[str], bool]) -> list[dict[str, Any]]:
        return []

    async def _remove_rules(self, rules: list[dict[str, Any]]) -> None:
        assert not rules


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that a machine without any cluster of its own sweeps."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    engine = Project()

    async def reopen() -> None:
        """Connect to nothing."""

    @asynccontextmanager
    async def to_project(_: str | None) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(engine=engine, reopen=reopen)

    monkeypatch.setattr(sweeps, "to_project", to_project)
    return engine


async def test_a_cluster_whose_controllers_vm_no_longer_runs_is_deleted_and_one_with_a_controller_stays(
    project: Project,
) -> None:
    owner = await owner_labels(project)  # type: ignore[arg-type]
    created = datetime.now(UTC) - timedelta(hours=2)
    for cluster, identity, status in (("governed", "1a2b3c4d", "RUNNING"), ("orphaned", "5e6f7a8b", "TERMINATED")):
        labels = {**owner, MACHINE_LABEL: "elsewhere", LABEL: cluster, ID_LABEL: identity}
        for name, vm_status, vm_labels in (
            (f"{cluster}-controller-0", status, {**labels, **SEAT_LABEL}),
            (f"{cluster}-worker-0", "RUNNING", labels),
        ):
            vm = Vm(name, "us-central1-a", name, vm_status, "", "", vm_labels, created, False, created)
            project.vms.append(vm)
    swept = await sweeps.sweep("project", yes=True, all_machines=True)
    assert [(orphan["name"], orphan["why"]) for orphan in swept["orphans"]] == [
        (name, "its cluster orphaned has no folder on this one of your machines, nor a controller on a VM")
        for name in ("orphaned-controller-0", "orphaned-worker-0")
    ]
    assert [vm.name for vm in project.vms] == ["governed-controller-0", "governed-worker-0"]
