"""What all kinds of work have in common: a handle with state, wait, stop and cost, one list, and one error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from tests.homes import own_home
from tests.journal.test_taken_names import DECLARED
from transient_magics import places
from transient_magics.cli import program
from transient_magics.client import commands
from transient_magics.client.declaring import specify
from transient_magics.errors import TrainingError, UnknownWorkError
from transient_magics.journal import Cost, Event, Journal, RunState, bill, events
from transient_magics.panels import view
from transient_magics.panels.actions import find_action
from transient_magics.protocol import layout
from transient_magics.protocol.cluster_commands import Command, Stop
from transient_magics.spec import ClusterSpec
from transient_magics.works.bags.view import sections as bags
from transient_magics.works.dask import handle as connection
from transient_magics.works.dask.events import DaskServing
from transient_magics.works.dask.on_vm.versions import versions
from transient_magics.works.dask.state import DaskState
from transient_magics.works.studies.view import sections as studies

WORK: dict[str, tuple[str, type[tm.Handle]]] = {
    "run-1": ("run", tm.Run),
    "study-1": ("study", tm.Study),
    "job-1": ("job", tm.Job),
    "bag-1": ("bag", tm.Bag),
    "dask-1": ("dask", tm.Dask),
    "stalls-1": ("stalls", tm.Stalls),
}
"""Work of the cluster of these tests: its kind in lists, and the class of its handle."""


def _history(spec: ClusterSpec) -> Iterator[Event]:
    yield events.ClusterDeclared(spec=spec.to_dict())
    for name, (kind, _) in WORK.items():
        if kind == "stalls":
            yield events.WorkDeclared(of="run", work=name, spec={"train_steps": 24, "stalls": 3})
        else:
            yield DECLARED[kind](name)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tm.Cluster]:
    """A cluster whose journal has a piece of work of each kind; no controller is in charge of it."""
    with own_home():
        directory = places.cluster("one")
        directory.mkdir(parents=True)
        spec = specify(tm.Declaration("cpux2", name="one"))
        (directory / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
        with Journal(directory / layout.JOURNAL) as journal:
            journal.extend(_history(spec))
        yield tm.Cluster("one")
        with Journal(directory / layout.JOURNAL) as journal:
            journal.append(events.ClusterDeleted())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """The commands that are sent, instead of being sent."""
    found: list[Command] = []

    def send(directory: Path, command: Command) -> dict[str, object]:
        found.append(command)
        return {}

    monkeypatch.setattr(commands, "send", send)
    return found


def _stop(name: str) -> Stop:
    kind = WORK[name][0]
    return Stop(kind="run" if kind == "stalls" else kind, name=name)


@pytest.mark.parametrize("name", WORK)
def test_every_handle_has_state_wait_await_stop_and_cost(cluster: tm.Cluster, sent: list[Command], name: str) -> None:
    handle = cluster.find(name)
    assert type(handle) is WORK[name][1]
    assert handle.state.name == name
    assert handle.phase == "declared"
    assert not handle.is_over()
    assert handle.directory.parents[1] == cluster.directory
    assert handle.cost() == Cost(subject=name, total=0.0)
    with pytest.raises(TrainingError, match=f"{name} has not ended within 0 s"):
        handle.wait(timeout=0.01)
    waiting = handle.__await__()
    waiting.close()
    handle.stop()
    assert sent == [_stop(name)]
    assert repr(handle).startswith(f"<{type(handle).__name__} {name} on one: ")
    assert f"<b>{name}</b> on one: " in handle._repr_html_()


@pytest.fixture(scope="module")
def shell(cluster: tm.Cluster) -> InteractiveShell:
    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "transient_magics")
    return shell


@pytest.mark.parametrize("name", WORK)
def test_every_kind_is_stopped_from_a_terminal_a_cell_and_a_panel(
    cluster: tm.Cluster, shell: InteractiveShell, sent: list[Command], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert program.main(["stop", "one", name]) == 0
    shell.run_line_magic("transient_stop", f"one {name}")
    button = find_action(cluster, None, {"do": "stop", "name": name})
    assert button is not None
    assert button.notice == f"{name} is being stopped."
    button.do()
    assert sent == [_stop(name)] * 3
    assert capsys.readouterr().out == f"{name} leaves the queue.\n" * 2


def test_unknown_work_is_refused_in_a_terminal_a_cell_and_a_panel(
    cluster: tm.Cluster, shell: InteractiveShell, sent: list[Command], capsys: pytest.CaptureFixture[str]
) -> None:
    assert program.main(["stop", "one", "runn-1"]) == 1
    assert capsys.readouterr().err == "transient: Unknown work 'runn-1' (one). Did you mean run-1?\n"
    with pytest.raises(UnknownWorkError, match="Unknown work 'runn-1'"):
        shell.run_line_magic("transient_stop", "one runn-1")
    for name in ("runn-1", "../jobs/job-1", ""):
        button = find_action(cluster, None, {"do": "stop", "name": name})
        assert button is not None
        with pytest.raises(UnknownWorkError, match=f"Unknown work '{name}'"):
            button.do()
    assert not sent


def test_a_panel_has_a_stop_button_for_each_piece_of_work(cluster: tm.Cluster) -> None:
    state = cluster.state
    shown = view(state, bill(state, 0.0), 0.0)
    lines = [
        *shown["beside"],
        *(line for group in shown["work"] for line in group["lines"]),
        *studies(state, 0.0),
        *bags(state, 0.0),
    ]
    if shown["training"]:
        lines.append(shown["training"])
    assert {line["name"] for line in lines if line["stoppable"]} == {*WORK}


def test_a_notebook_shows_the_state_of_any_work_as_words(cluster: tm.Cluster, shell: InteractiveShell) -> None:
    """As `job.wait()` returns it, at the end of a cell."""
    for name in WORK:
        work = cluster.find(name)
        shown, _ = shell.display_formatter.format(work.state)  # type: ignore[union-attr]
        for text in (shown["text/plain"], shown["text/html"]):
            assert f"{name}: " in text
            assert "declared" in text
            assert "Spec" not in text, "not the fields of a dataclass"


def test_programs_read_work_clusters_and_events_as_json(
    cluster: tm.Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody revives the cluster: it has no controller.
    monkeypatch.setattr("transient_magics.client.revive", lambda clusters: [])

    def printed(*words: str) -> str:
        capsys.readouterr()
        assert program.main([*words, "--json"]) == 0
        return capsys.readouterr().out

    work = json.loads(printed("work", "one"))
    assert work == tm.work(cluster).data
    (listed,) = json.loads(printed("cluster", "list"))
    assert {name: listed[name] for name in ("name", "phase", "workers", "project")} == {
        "name": "one",
        "phase": "provisioning",
        "workers": "cpux2",
        "project": None,
    }
    assert {"declared_at", "vms_ready", "vms_existing", "cost", "hourly"} < {*listed}
    status = json.loads(printed("cluster", "status", "one"))
    assert status["work"] == work
    assert {*listed} | {"reason", "trouble", "ends_at", "revocations", "vms"} < {*status}
    lines = [json.loads(line) for line in printed("cluster", "events", "one").splitlines()]
    assert [(line["seq"], line["kind"]) for line in lines[:2]] == [(1, "cluster.declared"), (2, "work.declared")]


def test_unknown_work_is_the_same_error_for_every_kind(cluster: tm.Cluster) -> None:
    with pytest.raises(UnknownWorkError, match=r"^Unknown work 'runn-1' \(one\)\. Did you mean run-1\?$"):
        cluster.find("runn-1")
    for kind in ("run", "study", "job", "bag"):
        with pytest.raises(UnknownWorkError, match=rf"^Unknown {kind} 'nope' \(one\)\. Known: "):
            getattr(cluster, kind)("nope")
        with pytest.raises(UnknownWorkError, match=rf"^Unknown {kind} 'nope'\. Known: "):
            getattr(tm, kind)("nope")
    with pytest.raises(UnknownWorkError, match=r"^Unknown measurement of stalls 'run-1' \(one\)\. Known: stalls-1\.$"):
        cluster.stalls("run-1")
    with pytest.raises(UnknownWorkError, match=r"^Unknown job '\.\./runs' \(one\)\.$"):
        _ = tm.Job("../runs", cluster).directory


def test_all_work_is_in_one_list(cluster: tm.Cluster) -> None:
    listed = tm.work(cluster)
    assert [(row.name, row.kind, row.phase) for row in listed.rows] == [
        (name, kind, "declared") for name, (kind, _) in WORK.items()
    ]
    assert [handle.name for handle in tm.work()] == [handle.name for handle in cluster.work()] == [*WORK]
    assert listed.data[0] == {
        "kind": "run", "name": "run-1", "cluster": "one", "phase": "declared",
        "since": cluster.state.of(RunState)["run-1"].declared_at, "cost": 0.0,
    }  # fmt: skip
    shown = repr(listed).splitlines()
    assert shown[0].split() == ["KIND", "NAME", "CLUSTER", "PHASE", "SINCE", "COST"]
    assert shown[5].split()[:4] == ["dask", "dask-1", "one", "declared"]
    assert listed._repr_html_().count("<tr>") == 1 + len(WORK)
    assert listed.frame()["since"].dt.tz is not None


def test_work_ends_with_its_cluster() -> None:
    with own_home():
        directory = places.cluster("gone")
        directory.mkdir(parents=True)
        spec = specify(tm.Declaration("cpux2", name="gone"))
        with Journal(directory / layout.JOURNAL) as journal:
            journal.extend([*_history(spec), events.ClusterDeleted()])
        gone = tm.Cluster("gone")
        for handle in gone.work():
            assert handle.is_over()
            assert handle.phase in ("stopped", "failed", "finished")
        with pytest.raises(TrainingError, match="gone was deleted before job-1 began"):
            gone.job("job-1").wait()


class OpenClient:
    """A client whose connection is open."""

    status = "running"

    def __init__(self, cluster: tm.Cluster, dask: DaskState) -> None:
        self.dask = dask.name
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_each_dask_cluster_has_one_client_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transient_magics.works.dask.client.connected", OpenClient)
    monkeypatch.setattr(connection, "trust_shown", [connection.TRUST])
    monkeypatch.setattr(commands, "send", lambda directory, command: {})
    with own_home():
        directory = places.cluster("two")
        directory.mkdir(parents=True)
        with Journal(directory / layout.JOURNAL) as journal:
            journal.append(events.ClusterDeclared(spec=specify(tm.Declaration("cpux2", name="two")).to_dict()))
            for name in ("dask-1", "dask-2"):
                journal.append(DECLARED["dask"](name))
                journal.append(DaskServing(dask=name, port=8786, dashboard=0, versions=versions()))
        both = [dask for dask in tm.Cluster("two").work() if isinstance(dask, tm.Dask)]
        clients: list[Any] = [dask.client for dask in both]
        assert [client.dask for client in clients] == ["dask-1", "dask-2"]
        assert [dask.client for dask in both] == clients
        both[1].stop()
        assert [client.closed for client in clients] == [False, True]
        both[0].stop()


def test_a_folder_under_a_name_that_other_work_has_hides_no_work(sent: list[Command]) -> None:
    with own_home():
        directory = places.cluster("three")
        with_run = directory / layout.RUNS / "job-1"
        with_run.mkdir(parents=True)
        (with_run / layout.RUN).write_text("{}", encoding="utf-8")
        with Journal(directory / layout.JOURNAL) as journal:
            journal.extend(_history(specify(tm.Declaration("cpux2", name="three"))))
        cluster = tm.Cluster("three")
        cluster.find("job-1").stop()
        assert sent == [_stop("job-1")]
        assert [row.name for row in cluster.work().rows] == [*WORK]
