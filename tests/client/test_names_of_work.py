"""Names of new work, claimed by many at once; none is given twice, and a killed declaration holds none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from transient_magics import client
from transient_magics.client.declaring import claims
from transient_magics.errors import ClusterError, NameTakenError
from transient_magics.journal import Journal, events
from transient_magics.kinds import KINDS
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import Declare
from transient_magics.works.jobs.spec import JobSpec

NAMES = [*KINDS]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> client.Cluster:
    """A declared cluster without a controller."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    found = client.Cluster("lab")
    found.directory.mkdir(parents=True)
    spec = client.specify(client.Declaration("cpux4", name="lab"))
    (found.directory / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    monkeypatch.setattr("transient_magics.client.commands.send", lambda directory, message: {})
    return found


def declared(cluster: client.Cluster, kind: str, name: str | None = None, stem: str = "work") -> str:
    return claims.declare(
        cluster,
        kind,
        name,
        stem=stem,
        record=lambda chosen: {"name": chosen},
        fill=lambda folder: (folder / layout.CELL).touch(),
    )


@pytest.mark.parametrize(("there", "new"), list(product(KINDS, KINDS)))
def test_a_name_that_any_work_has_is_refused_and_passed_over(cluster: client.Cluster, there: str, new: str) -> None:
    assert declared(cluster, there, "night") == "night"
    with pytest.raises(NameTakenError, match=rf"^lab has a {KINDS[there]} night already\. Choose another --name\.$"):
        declared(cluster, new, "night")
    assert declared(cluster, there, None) == "work-1"
    assert declared(cluster, new, None) == "work-2"
    folder = cluster.directory / KINDS[new].folder / "work-2"
    assert json.loads((folder / KINDS[new].file).read_text(encoding="utf-8"))["name"] == "work-2"
    assert not list(cluster.directory.glob("*/.*")), "nothing is left of what was refused"


def test_what_only_the_journal_has_is_taken_too(cluster: client.Cluster) -> None:
    with Journal(cluster.directory / layout.JOURNAL) as journal:
        spec = json.loads((cluster.directory / layout.SPEC).read_text(encoding="utf-8"))
        journal.append(events.ClusterDeclared(spec=spec))
        journal.append(events.WorkDeclared(of="job", work="work-1", spec=JobSpec("work-1", "make").to_dict()))
    with pytest.raises(NameTakenError, match="lab has a job work-1 already"):
        declared(cluster, "bag", "work-1")
    assert declared(cluster, "run") == "work-2"


def test_every_public_way_to_declare_work_claims_its_name(
    cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A bag asks an emulator for its weather, which would be started for that.
    monkeypatch.setattr("transient_magics.client.planning.forecasts.weather_of", lambda cluster: "none")
    cell = "def job(x, seed): return {'y': x}"
    ways: dict[str, Callable[[str | None], object]] = {
        "job": lambda name: client.declare_job("make all", cluster=cluster, name=name),
        "bag": lambda name: client.declare_bag(source=cell, over="x=0:1", jobs=2, cluster=cluster, name=name),
        "run": lambda name: client.train(source="", train_steps=9, cluster=cluster, name=name),
        "study": lambda name: client.declare_study(
            source="", train_steps=9, over="lr=0.1,0.2", objective="accuracy", cluster=cluster, name=name
        ),
        "stalls": lambda name: client.declare_stalls(source="1", cluster=cluster, name=name),
    }
    for number, (kind, declare) in enumerate(ways.items()):
        taken = f"taken-{number}" + "x"
        declared(cluster, "dask", taken)
        declared(cluster, "dask", f"{kind}-1")
        with pytest.raises(NameTakenError, match=f"lab has a Dask cluster {taken} already"):
            declare(taken)
        assert getattr(declare(None), "name") == f"{kind}-2"  # noqa: B009
    with pytest.raises(NameTakenError, match="a study study-2, which reserves the name study-2-0 for its trials"):
        ways["job"]("study-2-0")
    with pytest.raises(NameTakenError, match="a bag bag-2, which reserves the name bag-2-d1 for its Dask clusters"):
        ways["run"]("bag-2-d1")


def test_work_that_the_controller_refuses_for_its_name_leaves_nothing(
    cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(directory: Path, command: Declare) -> None:
        raise NameTakenError("lab has a run night already")

    monkeypatch.setattr("transient_magics.client.commands.send", send)
    with pytest.raises(NameTakenError):
        client.declare_job("make all", cluster=cluster, name="night")
    assert not list((cluster.directory / layout.JOBS).iterdir())


def test_threads_that_declare_at_once_have_names_of_their_own(cluster: client.Cluster) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda number: declared(cluster, NAMES[number % len(NAMES)]), range(40)))
    assert sorted(names) == sorted(f"work-{number}" for number in range(1, 41))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: _name_or_error(cluster, NAMES[number % len(NAMES)]), range(16)))
    assert results.count("chosen") == 1, "a name that several users choose is given to one of them"
    assert {"already" in result for result in results if result != "chosen"} == {True}


def _name_or_error(cluster: client.Cluster, kind: str) -> str:
    try:
        return declared(cluster, kind, "chosen")
    except ClusterError as error:
        return str(error)


_PROGRAM = """
from tests.client.test_names_of_work import NAMES, declared
from transient_magics.client import Cluster
print(*(declared(Cluster("lab"), kind) for kind in NAMES * 3))
"""


@pytest.mark.slow
def test_processes_that_declare_at_once_have_names_of_their_own(cluster: client.Cluster) -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True, encoding="utf-8")
        for _ in range(3)
    ]
    names = [name for other in others for name in other.communicate()[0].split()]
    assert [other.returncode for other in others] == [0, 0, 0]
    assert sorted(names) == sorted(f"work-{number}" for number in range(1, 46))


_KILLED = """
import os, signal, sys
from pathlib import Path
from transient_magics import files
assert files.lock(Path(sys.argv[1]) / "names.lock") is not None
(Path(sys.argv[1]) / "jobs" / ".work-1.1").mkdir(parents=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_declaration_that_is_killed_holds_no_name(cluster: client.Cluster) -> None:
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(cluster.directory)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert declared(cluster, "job") == "work-1"


def test_a_declaration_that_stands_still_is_not_waited_for_without_end(
    cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "_LOCK_SECONDS", 0.05)
    lock = claims.files.lock(cluster.directory / claims.LOCK)
    assert lock is not None
    with pytest.raises(ClusterError, match="Another declaration on lab has not finished within 0 s"):
        declared(cluster, "job")
    os.close(lock)
    assert declared(cluster, "job") == "work-1"


def test_a_folder_that_cannot_be_filled_leaves_nothing(cluster: client.Cluster) -> None:
    def fill(folder: Path) -> None:
        (folder / layout.CELL).touch()
        raise PermissionError(13, "Permission denied")

    with pytest.raises(ClusterError, match="The folder of a job cannot be created: Permission denied"):
        claims.declare(cluster, "job", None, stem="job", record=lambda name: {}, fill=fill)
    assert not list((cluster.directory / layout.JOBS).iterdir())
