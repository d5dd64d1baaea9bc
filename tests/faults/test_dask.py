"""Dask on a real cluster: tasks through a revocation, a kernel of another version, VMs that are free again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from transient_magics import client
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.protocol import layout
from transient_magics.works.dask import handle
from transient_magics.works.dask.events import DaskCrashed, DaskLeft
from transient_magics.works.dask.on_vm import versions
from transient_magics.works.dask.state import DaskState

pytestmark = pytest.mark.nightly


def test_tasks_outlive_a_revocation_and_closing_the_client_gives_the_vms_back(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(value: int) -> int:  # here, so that it is sent itself: VMs have no tests
        time.sleep(0.5)
        return value * value

    cluster = client.declare(client.Declaration("cpux2", name="dk", max_hours=2.0))
    patient = Patient(cluster)
    try:
        with pytest.raises(DeclarationError, match="dk has 2 workers, not 3"):
            cluster.dask(workers=3)
        here = versions.versions()
        with monkeypatch.context() as older:
            older.setattr(versions, "versions", lambda: {**here, "python": "3.9.2"})
            with pytest.raises(DeclarationError, match=r"Python 3\.9") as refused:
                cluster.dask(timeout=PATIENCE)
        assert "Use a kernel with Python 3.11" in str(refused.value)
        patient.until(lambda state: state.of(DaskState)["dask-1"].over and not state.leases, "the VMs free again")

        handle.trust_shown.clear()  # a process shows it once
        dask = cluster.dask(timeout=PATIENCE)
        client_of = dask.client
        assert cluster.dask().client is client_of, "the cell run again"
        with pytest.raises(ClusterError, match="dk has dask-2 with 2 workers already"):
            cluster.dask(workers=1)
        assert "unpickles results of the cluster's VMs in this process" in capsys.readouterr().err
        other = cluster.run("echo has the VMs", name="other")
        client_of.wait_for_workers(2, timeout=PATIENCE)
        futures = client_of.map(slow, range(20))
        first = futures[0].result(timeout=PATIENCE)
        mark = patient.mark()
        cluster.revoke("worker-0")
        assert client_of.gather(futures) == [each * each for each in range(20)]
        assert first == 0
        left = patient.event(mark, DaskLeft, worker="worker-0")
        assert isinstance(left, DaskLeft)
        assert left.seconds < 30
        assert left.lost == 0
        assert not patient.since(0, DaskCrashed)
        patient.sees(lambda: _names(client_of) == {"worker-1", "worker-2"}, "Dask's worker on the replacement")
        assert client_of.submit(slow, 5, workers=["worker-2"], pure=False).result(timeout=PATIENCE) == 25

        folder = cluster.directory / layout.DASKS / "dask-2"
        keys = [folder / name for name in (layout.TLS_KEY, layout.TLS_CA_KEY)]
        assert all(path.stat().st_mode & 0o77 == 0 for path in keys)
        secret = keys[0].read_text(encoding="utf-8").splitlines()[1]
        told = [cluster.directory / layout.JOURNAL, cluster.directory / layout.CONTROLLER_LOG]
        assert not [path for path in told if secret in path.read_text(encoding="utf-8")]
        dask.stop()
        assert client_of.status == "closed"
        other.wait(PATIENCE)
        assert "has the VMs" in str(other.output())
        assert dask.wait(PATIENCE).phase == "finished"
        assert dask.cost().over
        assert not [path for path in keys if path.exists()]
    finally:
        cluster.delete(PATIENCE)


def _names(dask_client: object) -> set[str]:
    return {each["name"] for each in dask_client.scheduler_info(n_workers=-1)["workers"].values()}  # type: ignore[attr-defined]
