"""What all rooms' tests share: a home of their own, an emulator, a package to install, and the order of the tests.

`--quick` (`make quick`) skips tests that start TensorFlow (marked `training`) or a browser (`browser`) and tests that
take a second or more (`slow`). It runs fewer examples, and it fails a test that starts TensorFlow without its mark.
`--nightly` (`make nightly`) runs the long cases (`nightly`), too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests import controllers, processes, zygotes
from tests.quick.sitecustomize import is_looked_up
from transient_magics import emulator
from transient_magics.cloud.calling import clients

# Threads of OpenBLAS that wait for each other on small matrices take several times the processor time of one. It reads
# this as NumPy is imported, here and in the programs that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A busy machine is no failure, and the same tests see the same examples: whoever changes a text shall not meet what
# chance has just found in a parser. `pytest --hypothesis-profile=explore` goes looking for that: others every time.
_BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **_BUSY)
# A quick run sees the first of them.
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=10, **_BUSY)
hypothesis.settings.register_profile("explore", max_examples=1000, **_BUSY)
hypothesis.settings.load_profile("same")

# The Makefile makes Python warn of text in the locale's encoding. Programs that tests start do not warn, because the
# warnings of other packages would be part of their output; tests/test_encoding.py reads the code of all programs.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("PYTHONWARNDEFAULTENCODING", None)

# A grammar of addresses, which jsonschema compiles for more than a second at its import; no schema here asks for it.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Nothing of what is imported and collected is ever thrown away: no collector goes through it, now or during the tests.
gc.disable()

# As in a controller, and so that modules of tests that name it are collected without it.
clients.prepare()

TESTS = Path(__file__).parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Jobs in a shell's background ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

Emulate = Callable[..., AbstractContextManager[str]]

NOT_QUICK = ("training", "browser", "slow")
_NOTHING_QUICK = re.compile(rf"^pytestmark = .*\bmark\.(?:nightly|{'|'.join(NOT_QUICK)})\b", re.MULTILINE)
"""A line that marks all tests of a file."""
BROWSER = "tests/browser/"
DURATIONS = TESTS / "durations.json"
"""Seconds of each test file that takes long, as `--store-durations` measured them in a whole run."""
LONG_SECONDS = 3.0
TRAINING_LANES = ("gw0", "gw1")
"""The processes that run files which start TensorFlow: two trainings at a time keep two cores busy, more get in each
other's way. The other processes run what waits for VMs, notices and pages."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="skip TensorFlow, browsers and slow tests")
    parser.addoption("--store-durations", action="store_true", help="write tests/durations.json")
    parser.addoption("--nightly", action="store_true", help="run the long cases (`nightly`), too")


def pytest_configure(config: pytest.Config) -> None:
    profile = config.getoption("--hypothesis-profile")
    if config.getoption("--quick") and not profile:
        hypothesis.settings.load_profile("quick")
    if not config.getoption("--quick") and not hasattr(config, "workerinput"):
        config.add_cleanup(zygotes.Shared().end)
    if profile != "explore":
        # Else examples have constants of all modules that are imported, and are others after any change of one; and
        # every process parses them all for that.
        providers._get_local_constants = lambda: providers._local_constants


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In a quick run, leave out folders and files in which nothing is quick: they are not even imported."""
    if not config.getoption("--quick"):
        return None
    if collection_path.suffix == ".py" and _NOTHING_QUICK.search(collection_path.read_text(encoding="utf-8")):
        return True
    return True if collection_path in (TESTS / "browser", TESTS / "faults") else None


class _Lanes(LoadFileScheduling):
    """Gives each process whole files: trainings to two of them, the longest files first.

    All browser tests go to one process, because JupyterLab starts once for them.
    """

    trains: frozenset[str] = frozenset()
    """The files that start TensorFlow. The controller process collects nothing: each process sends what it found."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Move the first file of the process's own kind to the front, then assign it."""
        own_kind = node.gateway.id in TRAINING_LANES
        for scope in self.workqueue:
            if (scope in self.trains) == own_kind:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Lanes | None:
    """Return what `--dist loadfile` distributes."""
    if config.getoption("dist") != "loadfile":
        return None
    lanes = _Lanes(config, log)
    lanes.trains = frozenset(_starting_tensorflow())
    return lanes


def _starting_tensorflow() -> Iterator[str]:
    """Yield the files, relative to the project, whose tests are marked `training`."""
    for path in TESTS.rglob("test_*.py"):
        if "mark.training" in path.read_text(encoding="utf-8"):
            yield path.relative_to(TESTS.parent).as_posix()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was not asked for, and put what takes long first: the browser tests, then files."""
    unwanted = {name for name in NOT_QUICK if config.getoption("--quick")}
    if not config.getoption("--nightly"):
        unwanted.add("nightly")
    left_out = {item for item in items if any(item.get_closest_marker(name) for name in unwanted)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    durations = json.loads(DURATIONS.read_text(encoding="utf-8"))

    def order(item: pytest.Item) -> tuple[bool, float]:
        name = item.path.relative_to(TESTS).as_posix()
        return item.get_closest_marker("browser") is None, -durations.get(name, 0.0)

    items.sort(key=order)


_seconds = Counter[str]()
"""Seconds by file, where they are measured."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = report.nodeid.partition("::")[0].removeprefix(f"{TESTS.name}/")
    _seconds[path] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--store-durations") and not hasattr(session.config, "workerinput"):
        long = {path: round(seconds, 1) for path, seconds in sorted(_seconds.items()) if seconds >= LONG_SECONDS}
        DURATIONS.write_text(json.dumps(long, indent=1) + "\n", encoding="utf-8")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # most tests create fewer objects, and run without a collection
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A home of the tests' own, where what this user has learnt and declared is not seen, and a place for sockets.

    Tests that need an empty one set another; of all homes the sockets lie below this place (places.sockets), and so
    does what anybody makes in the directory of temporary files: nothing is left of it.
    """
    tmp_path_factory.getbasetemp()  # not below it: what a test leaves there is looked at when it has failed
    place = Path(tempfile.mkdtemp(prefix="tm-"))  # short: the paths of sockets are
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        patch.setenv("TMPDIR", str(place))
        patch.setenv("TRANSIENT_MAGICS_HOME", str(place / "home"))
        patch.setenv("XDG_RUNTIME_DIR", str(place))
        patch.delenv("TRANSIENT_MAGICS_EMULATOR", raising=False)
        with controllers.forked():
            yield
    left = _left_behind(place)
    shutil.rmtree(place, ignore_errors=True)
    assert not left, f"processes that tests have left behind: {left}"


def _left_behind(place: Path) -> list[str]:
    """The command lines of what was started with this place in its environment, and does not end by itself; ends it."""
    deadline = time.monotonic() + 90  # an emulator waits ten seconds for another VM
    while (found := processes.bearing(place.name)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for number in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    return list(found.values())


@pytest.fixture(scope="session")
def _imports_of_tensorflow(pytestconfig: pytest.Config) -> Iterator[Path | None]:
    """The file in which every Python program that a test starts says when it imports TensorFlow, in a quick run."""
    if not pytestconfig.getoption("--quick"):
        yield None
        return
    with tempfile.NamedTemporaryFile(prefix="tm-") as file, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSIENT_TESTS_IMPORTS", file.name)
        patch.setenv("PYTHONPATH", str(TESTS / "quick"), prepend=os.pathsep)
        sys.meta_path.insert(0, _Noting)  # type: ignore[arg-type]
        yield Path(file.name)
        sys.meta_path.remove(_Noting)  # type: ignore[arg-type]


_importers: list[str] = []
"""The stack of who imported TensorFlow into this process: a thread may do so long after the test that began it."""


class _Noting:
    """A finder of modules that finds none, and notes who imports TensorFlow.

    An audit hook would be called a hundred times as often.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "tensorflow" and not _importers and not is_looked_up():
            _importers.append("".join(traceback.format_stack(limit=30)))


@pytest.fixture(autouse=True)
def _quick_is_quick(_imports_of_tensorflow: Path | None, request: pytest.FixtureRequest) -> Iterator[None]:
    """No test of a quick run imports TensorFlow, nor does a program that it starts; who follows is not blamed."""
    before = "tensorflow" in sys.modules
    yield
    if _imports_of_tensorflow is None:
        return
    told = _imports_of_tensorflow.read_text(encoding="utf-8")
    os.truncate(_imports_of_tensorflow, 0)
    assert not told, f"TensorFlow is imported by a test that is not marked `training`: {told}"
    assert before or "tensorflow" not in sys.modules, (
        f"TensorFlow is imported into the process of the tests: {_importers}"
    )


@pytest.fixture(scope="session")
def tiny_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package `tiny_package`, whose module says where it lies."""
    path = tmp_path_factory.mktemp("wheels") / "tiny_package-1.0-py3-none-any.whl"
    about = "tiny_package-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_package.py", "PLACE = __file__\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "".join(f"{name},,\n" for name in (*wheel.namelist(), f"{about}/RECORD")))
    return path


@pytest.fixture(scope="session")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulate:
    """Runs `transient emulator` with these options in a home of its own, for as long as it is needed; gives its URL."""

    @contextlib.contextmanager
    def running(*options: str) -> Iterator[str]:
        home = tmp_path_factory.mktemp("home")
        command = [sys.executable, "-m", "transient_emulator", "--state", str(home / "state"), "--port", "0"]
        environment = {**os.environ, "TRANSIENT_MAGICS_HOME": str(home)}
        with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=environment, cwd=Path.cwd()) as program:
            assert program.stdout is not None
            try:
                said = program.stdout.readline().decode().split()
                assert said[:1] == ["ready"]
                yield said[1]
            finally:
                program.terminate()

    return running


@pytest.fixture(scope="session")
def url(emulate: Emulate) -> Iterator[str]:
    """The URL of an emulator that tests share.

    They make no VMs in it and restore its weather, and the tests of a file use buckets that no other file names.
    """
    with emulate() as url:
        yield url


@pytest.fixture(scope="session")
def calm(url: str) -> str:
    """The state directory of the shared emulator: `TRANSIENT_MAGICS_EMULATOR` for tests that only read its weather."""
    return emulator.about(url)["state"]
