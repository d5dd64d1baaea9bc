"""A new kind of work is one folder and one line: `sleep` gets from the frame what all work has.

The tests copy the package, add `tests/works/sleep` as `transient_magics/works/sleep` and its line to `kinds.py`, and
run programs with that copy.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]
KIND = Path(__file__).parent / "sleep"
LINE = 'Kind("sleep", "sleeps", "sleep.json", ("sleep",), "transient_magics.works.sleep", "Sleeps", saves=True),'
_PLACE = "        # A Dask cluster without its client"
"""The registration stands above this line of `kinds.py`."""
_SECONDS = 300.0

FIRST = """
import json, sys, time
import transient_magics as tm
from transient_magics.errors import TransientError

facts = {}

def refusal(act):
    try:
        act()
    except TransientError as error:
        return f"{type(error).__name__}: {error}"

"""
"""The first lines of each program."""

FACES = (
    FIRST
    + """
from transient_magics import client, places
from transient_magics.cli import options, program
from transient_magics.client.declaring import specify
from transient_magics.journal import Journal, bill, events
from transient_magics.panels import view
from transient_magics.panels.actions import find_action
from transient_magics.protocol import layout

sent = []
client.commands.send = lambda directory, command: sent.append(command.encoded.decode()) or {}
directory = places.cluster("one")
directory.mkdir(parents=True)
spec = specify(tm.Declaration("cpux2", name="one"))
(directory / layout.SPEC).write_text(json.dumps(spec.to_dict()), encoding="utf-8")
with Journal(directory / layout.JOURNAL) as journal:
    journal.append(events.ClusterDeclared(spec=spec.to_dict()))
    sleep = tm.declare_sleep(30, cluster="one", name="nap")
    declared = json.loads((sleep.directory / "sleep.json").read_text())
    journal.append(events.WorkDeclared(of="sleep", work="nap", spec=declared))
facts["sent"] = [*sent]
facts["repr"] = repr(sleep)
facts["taken"] = refusal(lambda: tm.declare_sleep(30, cluster="one", name="nap"))
facts["invalid"] = refusal(lambda: tm.declare_sleep(-1, cluster="one"))
facts["unknown handle"] = refusal(lambda: tm.Cluster("one").find("napp"))
facts["unknown panel"] = refusal(find_action(tm.Cluster("one"), None, {"do": "stop", "name": "napp"}).do)
facts["panel"] = view(tm.Cluster("one").state, bill(tm.Cluster("one").state, 0.0), 0.0)["work"]
print(json.dumps(facts))
"""
)
"""What a kind gets without a controller: declaration, checks of names, refusals, the panel's line."""

STORY = (
    FIRST
    + """
import contextlib, io, os, signal
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from transient_magics import emulator
from transient_magics.cli import program
from transient_magics.client import text
from transient_magics.journal import bill, now
from transient_magics.panels import view
from transient_magics.panels.actions import find_action

SECONDS = 120.0

def until(reached, what):
    state = cluster.follow(reached, SECONDS)
    assert state is not None, f"{what}: {[str(work) for work in tm.work('nap')]}"
    return state

def sleeping(name):
    return lambda state: (work := state.of_kind("sleep").get(name)) is not None and work.vm and not work.over

def ended(sleep):
    state = sleep.wait(SECONDS)
    return [state.phase, {name: getattr(state, name) for name in ("interruptions", "failures", "attempt")}]

def terminal(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert program.main([*arguments]) == 0
    return shown.getvalue()

def kill_process(name):
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            if entry.name.isdecimal() and b"works.sleep.on_vm" in line and line.endswith(f"/{name}\\0".encode()):
                os.kill(int(entry.name), signal.SIGKILL)
                return True
    return False

shell = InteractiveShell()
shell.run_line_magic("load_ext", "transient_magics")
with emulator.hold():
    emulator.ensure(options=("--boot", "0.3", "--notice", "0.5"))
    cluster = tm.declare(tm.Declaration("cpux2", name="nap", purpose="jobs", max_hours=1.0))
    try:
        # Declared in three ways: two begin and two wait.
        first = tm.declare_sleep(600, cluster=cluster, name="first")
        shell.run_line_magic("sleep", "10m --cluster nap --name second")
        facts["declared"] = terminal("sleep", "10m", "--cluster", "nap", "--name", "third")
        tm.declare_sleep(600, cluster=cluster, name="fourth")
        state = until(lambda state: sleeping("first")(state) and sleeping("second")(state), "two sleep")
        facts["words"] = first.words
        facts["phases"] = {work.name: work.phase for work in tm.work("nap")}
        facts["listed"] = terminal("work", "nap")
        facts["panel"] = view(state, bill(state, now()), now())["work"]

        # Each of the four places stops one of them.
        first.stop()
        until(sleeping("third"), "the third one has the VM of the first one")
        shell.run_line_magic("transient_stop", "nap second")
        until(sleeping("fourth"), "the fourth one has the VM of the second one")
        facts["stopped"] = terminal("stop", "nap", "third")
        find_action(cluster, None, {"do": "stop", "name": "fourth"}).do()
        until(lambda state: all(work.over for work in state.works.values()), "all are stopped")
        facts["ends"] = {work.name: [work.phase, work.state.reason] for work in tm.work("nap")}
        facts["cost"] = first.cost().total

        # One finishes, one fails once, and one loses its VM.
        terminal("sleep", "0.5s", "--cluster", "nap", "--wait")
        short = cluster.find("sleep-1")
        facts["waited"] = [short.phase, short.result()]
        failing = tm.declare_sleep(4, cluster=cluster, name="failing", retries=1)
        until(sleeping("failing"), "one that will fail")
        while not kill_process("failing"):
            time.sleep(0.05)
        until(lambda state: state.of_kind("sleep")["failing"].failures, "a failure")
        moved = tm.declare_sleep(3, cluster=cluster, name="moved")
        facts["vm"] = until(sleeping("moved"), "one that will move").of_kind("sleep")["moved"].vm
        cluster.revoke(facts["vm"])
        facts["moved"] = ended(moved)
        facts["elsewhere"] = moved.state.vm != facts["vm"]
        facts["result"] = moved.result()
        facts["failing"] = ended(failing)
        facts["events"] = [text.event_words(event) for event in cluster.events("sleep")]
    finally:
        cluster.delete()
print(json.dumps(facts))
"""
)
"""Sleeps on a real cluster."""

AWAY = (
    FIRST
    + """
from transient_magics import emulator

with emulator.hold():
    emulator.ensure(options=("--boot", "0.3", "--notice", "0.5"))
    declaration = tm.Declaration("cpux1", name="away", purpose="jobs", controller="cluster", max_hours=1.0)
    cluster = tm.declare(declaration)
    try:
        assert cluster.follow(lambda state: state.seat, 200.0), "its controller is on a VM"
        sleep = tm.declare_sleep(0.5, cluster=cluster)
        facts["phase"] = sleep.wait(200.0).phase
        facts["seat"] = cluster.state.seat
        facts["result"] = sleep.result()
    finally:
        cluster.delete()
print(json.dumps(facts))
"""
)
"""A sleep on a cluster whose controller runs on a VM."""


class Copy:
    """The package with the kind `sleep`, and a home of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python with the copy, and return what it printed."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "TRANSIENT_MAGICS_HOME": str(self.home),
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=False,
        )

    def facts(self, program: str) -> dict[str, Any]:
        """Run a program, and return the facts on its last line."""
        ended = self.run("-c", program)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return json.loads(ended.stdout.splitlines()[-1])

    def shown(self, *arguments: str) -> str:
        """Return what `transient` prints."""
        ended = self.run("-m", "transient_magics.cli.program", *arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    """The package with the folder of the kind and its line."""
    root = Path(tempfile.mkdtemp(prefix="tm-"))  # short: the paths of sockets are
    for package in ("transient_magics", "transient_emulator"):
        shutil.copytree(PROJECT / package, root / package)  # with the bytecode, which stays valid
    for beside in ("docs", "benchmarks", "templates", "locks", "widgets"):
        (root / beside).symlink_to(PROJECT / beside)
    shutil.copytree(KIND, root / "transient_magics" / "works" / "sleep")
    kinds = root / "transient_magics" / "kinds.py"
    text = kinds.read_text(encoding="utf-8")
    assert text.count(_PLACE) == 1
    kinds.write_text(text.replace(_PLACE, f"        {LINE}\n{_PLACE}"), encoding="utf-8")
    yield Copy(root)
    shutil.rmtree(root)


def test_the_kind_is_a_folder_of_at_most_twelve_small_files() -> None:
    files = [path for path in KIND.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) <= 12
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in files) <= 150


def test_the_frame_has_no_name_of_the_kind() -> None:
    """Nothing but the line makes the kind known, so no other module can have a special case."""
    named = [
        path
        for path in (PROJECT / "transient_magics").rglob("*.py")
        if "works.sleep" in (text := path.read_text(encoding="utf-8")) or "SleepSpec" in text
    ]
    assert not named


def test_the_kind_is_declared_checked_and_shown_without_a_cluster(copy: Copy) -> None:
    facts = copy.facts(FACES)
    assert [json.loads(line) for line in facts["sent"]] == [{"do": "declare", "kind": "sleep", "name": "nap"}]
    assert facts["repr"] == "<Sleep nap on one: waits for 1 worker>"
    assert facts["taken"] == "NameTakenError: one has a sleep nap already. Choose another --name."
    assert facts["invalid"].startswith("DeclarationError: Invalid --seconds")
    assert facts["unknown handle"] == "UnknownWorkError: Unknown work 'napp' (one). Did you mean nap?"
    assert facts["unknown panel"] == facts["unknown handle"]
    [group] = facts["panel"]
    assert (group["kind"], group["title"]) == ("sleep", "Sleeps of this cluster")
    [line] = group["lines"]
    assert (line["name"], line["words"], line["stoppable"]) == ("nap", "waits for 1 worker", True)


def test_the_kind_has_help_and_a_reference(copy: Copy) -> None:
    shown = copy.shown("sleep", "-h")
    assert "Sleep on a VM of a cluster." in shown
    assert "--retries N" in shown
    pages = copy.run(
        "-c",
        "import runpy; pages = runpy.run_path('docs/generated.py')['pages']()\n"
        "for name in ('sleep', 'options', 'events', 'python'): print(*pages[name], sep='\\n')\n"
        "from transient_magics.cli import program; program.main(['-h'])",
    ).stdout
    assert "sleep TIME [options]" in pages
    assert "# `%%sleep`" in pages
    assert "| [`%%sleep`](sleep.md) | Sleep on a VM of a cluster |" in pages
    assert "```{option} --retries N" in pages
    assert "### `sleep.interrupted`" in pages
    assert ".. autofunction:: transient_magics.declare_sleep" in pages
    assert ".. autoclass:: transient_magics.Sleep" in pages


@pytest.mark.slow
def test_sleeps_on_a_cluster_are_listed_stopped_retried_and_moved(copy: Copy) -> None:
    facts = copy.facts(STORY)
    names = ("first", "second", "third", "fourth")
    assert facts["declared"] == "third is declared on nap.\n"
    assert facts["words"].startswith("sleeps on worker-")
    assert facts["words"].endswith(" for 10 min")
    phases = ("running", "running", "declared", "declared")
    assert facts["phases"] == dict(zip(names, phases, strict=True))
    listed = [line.split()[:4] for line in facts["listed"].splitlines()[1:]]
    assert listed == [["sleep", name, "nap", phase] for name, phase in facts["phases"].items()]
    [group] = facts["panel"]
    assert group["title"] == "Sleeps of this cluster"
    lines = [(line["name"], line["words"], line["stoppable"]) for line in group["lines"]]
    assert lines[0] == ("first", f"{facts['words']}, $0.00 so far", True)
    assert lines[2:] == [(name, "waits for 1 worker", True) for name in ("third", "fourth")]

    assert facts["stopped"] == "third is stopping: its VM is free for other work.\n"
    assert facts["ends"] == {name: ["stopped", "stopped by the user"] for name in names}
    assert facts["cost"] > 0

    assert facts["waited"] == ["finished", "slept 0.5 s in attempt 1\n"]
    assert facts["failing"] == ["finished", {"interruptions": 0, "failures": 1, "attempt": 2}]
    assert facts["moved"] == ["finished", {"interruptions": 1, "failures": 0, "attempt": 2}]
    assert facts["elsewhere"]
    assert facts["result"] == "slept 3.0 s in attempt 2\n"
    vm = facts["vm"]
    told = facts["events"]
    assert f"moved begins on {vm} (attempt 1)" in told
    assert f"moved starts again: {vm} was revoked" in told
    assert "failing failed: its process ended on the VM" in told
    assert "moved woke after 3.0 s" in told


@pytest.mark.slow
def test_a_result_is_copied_from_the_vm_of_the_controller(copy: Copy) -> None:
    facts = copy.facts(AWAY)
    assert facts == {"seat": "controller-0", "phase": "finished", "result": "slept 0.5 s in attempt 1\n"}
