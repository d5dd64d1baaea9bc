"""What all rooms' tests share: a home of their own, an emulator, a package to install, and the order of the tests.

`--quick` (`make quick`) leaves out what starts TensorFlow (marked `training`), a browser (`browser`), or lives through
a cluster's story on emulated VMs (`story`), looks at fewer examples, and fails a test that should have been marked.
`--nightly` (`make nightly`) runs the long cases (`nightly`), too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers
from xdist.scheduler import LoadFileScheduling

from tests import processes
from transient_magics import emulator
from transient_magics.cloud.calling import lean

# Threads of OpenBLAS that wait for each other on small matrices take several times the processor time of one. It reads
# this as NumPy is imported, here and in the programs that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A busy machine is no failure, and the same tests see the same examples: whoever changes a text shall not meet what
# chance has just found in a parser. `pytest --hypothesis-profile=explore` goes looking for that: others every time.
_BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, **_BUSY)
# A quick run sees the first of them.
hypothesis.settings.register_profile("quick", derandomize=True, max_examples=25, **_BUSY)
hypothesis.settings.register_profile("explore", max_examples=1000, **_BUSY)
hypothesis.settings.load_profile("same")

# A grammar of addresses, which jsonschema compiles for more than a second at its import; no schema here asks for it.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# Nothing of what is imported and collected is ever thrown away: no collector goes through it, now or during the tests.
gc.disable()

# As in a controller, and so that modules of tests that name it are collected without it.
lean.prepare()

TESTS = Path(__file__).parent

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Jobs in a shell's background ignore it, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

Emulate = Callable[..., AbstractContextManager[str]]

NOT_QUICK = ("training", "browser", "story")
BROWSER = "tests/browser/"
LONGEST = (
    "faults/test_controller_on_a_vm.py",
    "runtime/test_own_models.py",
    "runtime/test_training.py",
    "faults/test_training_goes_on.py",
    "faults/test_vocabularies.py",
    "faults/test_studies.py",
    "client/test_doctor.py",
    "runtime/test_decoding.py",
    "test_pages.py",
    "faults/test_clusters.py",
    "faults/test_capacity.py",
    "runtime/test_other_runs.py",
    "runtime/test_uneven_training.py",
    "faults/test_sharing.py",
    "runtime/test_synchronous.py",
    "faults/test_deadlines.py",
    "faults/test_bucket.py",
    "client/test_measuring.py",
    "runtime/test_joining.py",
    "faults/test_notebook.py",
    "emulator/test_weather.py",
    "runtime/test_shared_graph.py",
    "faults/test_relocation.py",
    "faults/test_jobs.py",
    "simulation/test_whole_simulation.py",
    "faults/test_two_runs.py",
    "runtime/test_alone.py",
    "faults/test_stalls.py",
    "faults/test_preparation.py",
    "client/test_program.py",
    "runtime/test_models.py",
    "runtime/test_t2t_evaluation.py",
    "faults/test_away_with_jobs.py",
    "runtime/test_agent.py",
    "controller/test_neighbours.py",
    "faults/test_bags.py",
    "faults/test_starting.py",
    "runtime/test_order.py",
    "runtime/test_parity.py",
    "runtime/test_saving_worker.py",
    "runtime/test_dask.py",
    "runtime/test_streaming.py",
    "faults/test_run_kills.py",
    "emulator/test_emulator_process.py",
    "runtime/test_own_cells.py",
    "faults/test_run_bucket.py",
    "client/test_images_emulated.py",
    "faults/test_sequences.py",
    "faults/test_dask.py",
    "browser/test_quickstart.py",
    "browser/test_training_panel.py",
    "browser/test_reopened.py",
    "browser/test_plan.py",
    "browser/test_panel.py",
    "browser/test_bare_panels.py",
    "browser/test_stalls_panel.py",
    "browser/test_bag_panel.py",
    "browser/test_declare.py",
    "browser/test_study_panel.py",
)
"""Files that take long, the longest first: nobody should begin with one when the others are through.

Only the order follows from it. A new long file takes its place here; `pytest --durations=50` tells.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="neither TensorFlow nor a browser nor long stories")
    parser.addoption("--nightly", action="store_true", help="run the long cases (`nightly`), too")


def pytest_configure(config: pytest.Config) -> None:
    profile = config.getoption("--hypothesis-profile")
    if config.getoption("--quick") and not profile:
        hypothesis.settings.load_profile("quick")
    if profile != "explore":
        # Else examples have constants of all modules that are imported, and are others after any change of one; and
        # every process parses them all for that.
        providers._get_local_constants = lambda: providers._local_constants


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders in which nothing is quick are not even imported."""
    return True if config.getoption("--quick") and collection_path in (TESTS / "browser", TESTS / "faults") else None


class _Rooms(LoadFileScheduling):
    """A file is one process's, and so is the room of the browser tests, for which JupyterLab starts only once."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Rooms | None:
    """What `--dist loadfile` distributes."""
    return _Rooms(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is long comes first: the room of the browser tests, then files."""
    unwanted = {name for name in NOT_QUICK if config.getoption("--quick")}
    if not config.getoption("--nightly"):
        unwanted.add("nightly")
    left_out = {item for item in items if any(item.get_closest_marker(name) for name in unwanted)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    ranks = {name: rank for rank, name in enumerate(LONGEST)}

    def order(item: pytest.Item) -> tuple[bool, int]:
        name = item.path.relative_to(TESTS).as_posix()
        return item.get_closest_marker("browser") is None, ranks.get(name, len(ranks))

    items.sort(key=order)


def pytest_collection_finish() -> None:
    gc.freeze()
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
        yield
    left = _left_behind(place)
    shutil.rmtree(place, ignore_errors=True)
    assert not left, f"processes that tests have left behind: {left}"


def _lasting(place: Path) -> dict[int, str]:
    """What bears this place, without those that end with this process (runtime.programs)."""
    found = processes.bearing(place.name)
    return {number: line for number, line in found.items() if "tests.runtime.programs" not in line}


def _left_behind(place: Path) -> list[str]:
    """The command lines of what was started with this place in its environment, and does not end by itself; ends it."""
    deadline = time.monotonic() + 90  # an emulator waits a minute for its first VM
    while (found := _lasting(place)) and time.monotonic() < deadline:
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
        sys.addaudithook(_note_import)
        yield Path(file.name)


_importers: list[str] = []
"""The stack of who imported TensorFlow into this process: a thread may do so long after the test that began it."""


def _note_import(event: str, arguments: tuple[object, ...]) -> None:
    # What importlib imports is told of no sooner than by its own first import of a part of itself.
    if event == "import" and str(arguments[0]).partition(".")[0] == "tensorflow" and not _importers:
        _importers.append("".join(traceback.format_stack(limit=30)))


@pytest.fixture(autouse=True)
def _quick_is_quick(_imports_of_tensorflow: Path | None, request: pytest.FixtureRequest) -> Iterator[None]:
    """No test of a quick run imports TensorFlow, nor does a program that it starts; who follows is not blamed."""
    before = "tensorflow" in sys.modules
    yield
    if _imports_of_tensorflow is None:
        return
    told = _imports_of_tensorflow.read_text()
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
        command = [sys.executable, "-m", "transient_magics.emulator", "--state", str(home / "state"), "--port", "0"]
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
def calm(emulate: Emulate) -> Iterator[str]:
    """The state directory of an emulator, to be `TRANSIENT_MAGICS_EMULATOR` where a test only asks how its weather is.

    Nobody makes VMs in it, nor changes its weather: it is there for all.
    """
    with emulate() as url:
        yield emulator.about(url)["state"]
