"""A real kernel: cells return at once, mistakes are one line, interrupting and killing harm no cluster."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

from tests.faults.conftest import CELL, PATIENCE, Patient, processes
from transient_magics import client
from transient_magics.errors import TrainingError

TRAIN = "%%train --model resnet --hparams-set resnet_digits --problem image_digits --train-steps 50 "


class Notebook:
    """A kernel, and what its cells say."""

    def __init__(self) -> None:
        self.manager: KernelManager
        self.client: BlockingKernelClient
        self.manager, self.client = start_new_kernel(startup_timeout=PATIENCE, kernel_name="python3")

    def run(self, code: str, displayed: Callable[[], object] = lambda: None) -> tuple[str, str]:
        """(`ok` or `error`, all that the cell showed as text). Calls `displayed` when it first shows something."""
        said: list[str] = []
        shown = itertools.count()

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                said.append(content["text"])
            elif message["msg_type"] == "error":
                said.extend(content["traceback"])
            elif message["msg_type"] in ("execute_result", "display_data"):
                said.append(content["data"].get("text/plain", ""))
                if next(shown) == 0:
                    displayed()

        reply = self.client.execute_interactive(code, timeout=PATIENCE, output_hook=hook)
        return reply["content"]["status"], "\n".join(said)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextlib.contextmanager
def opened() -> Iterator[Notebook]:
    """A kernel of its own, with the magics."""
    notebook = Notebook()
    try:
        assert notebook.run("%load_ext transient_magics")[0] == "ok"
        yield notebook
    finally:
        notebook.close()


@pytest.fixture(scope="module")
def notebook(home: Path) -> Iterator[Notebook]:
    """The kernel of all cells that harm no kernel."""
    with opened() as notebook:
        yield notebook


@pytest.fixture(scope="module")
def bench(home: Path) -> Iterator[client.Cluster]:
    """A cluster on which runs are declared that cannot work."""
    cluster = client.declare(client.Declaration("cpu", name="bench"))
    cluster.wait(PATIENCE)
    yield cluster
    cluster.delete()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%transient_cluster k8x4", ["column 1", "Did you mean k80?"]),
        ("%transient_cluster k80x4 --max-huors 3", ["--max-hours"]),
        ("%transient_cluster k80x4 --zone mars-1", ["mars-1"]),
        ("%transient_cluster k80x4 --project a-project", ["withdrew", "t4"]),
        ("%transient_cluster delete nowhere", ["Unknown cluster 'nowhere'"]),
        ("%transient_cluster k80x2 --name bench", ["already", "attach bench"]),
        (TRAIN + "--cluster bench\nimport numpy as np\nx = (1,\ny = 2", ["cell line"]),
        (TRAIN + "--cluster bench\nimport os\nprint(home_made)", ["home_made", "line 3"]),
        (TRAIN + "--cluster bench --include nowhere.py\nimport os", ["nowhere.py"]),
    ],
)
def test_a_mistake_is_one_line_without_traceback_and_launches_nothing(
    bench: client.Cluster, notebook: Notebook, code: str, words: list[str]
) -> None:
    before = {cluster.name for cluster in client.clusters()}, len(client.runs(bench))
    notebook.run("home_made = 3")
    status, said = notebook.run(code)
    assert status == "error", said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 2, said
    for word in words:
        assert word in said
    assert before == ({cluster.name for cluster in client.clusters()}, len(client.runs(bench)))


ARRAYS = "import numpy\ndef input_fn(mode): return numpy.zeros((4, 2)), numpy.zeros(4)\n"


DIGITS = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits"}


@pytest.mark.training
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "body", "words"),
    [
        ({**DIGITS, "model": "resnett"}, CELL, ["resnett", "resnet"]),
        ({**DIGITS, "problem": "image_digit"}, CELL, ["image_digit", "image_digits"]),
        ({**DIGITS, "hparams_set": "resnet_digit"}, CELL, ["resnet_digit", "resnet_digits"]),
        (DIGITS, CELL + "\nraise ValueError('not so')\n", ["cell line", "not so"]),
        ({}, f"{ARRAYS}model = 3\n", ["not a Keras model"]),
    ],
)
def test_what_cannot_work_fails_in_one_sentence_before_any_worker_starts(
    bench: client.Cluster, options: dict[str, Any], body: str, words: list[str]
) -> None:
    run = client.train(source=body, cluster=bench, train_steps=10, **options)
    with pytest.raises(TrainingError) as raised:
        run.wait(PATIENCE)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value).strip()
    assert not run.cluster.events("worker.joined")


@pytest.fixture
def slow(bench: client.Cluster) -> Iterator[None]:
    """VMs take longer to boot than anybody waits here; a deletion may have to wait for that."""
    bench.weather(boot="20s")
    yield
    bench.weather(boot="2s")


@pytest.mark.usefixtures("slow")
def test_interrupting_a_waiting_cell_is_one_line_and_the_cluster_goes_on(notebook: Notebook) -> None:
    interrupt = threading.Timer(1.0, notebook.manager.interrupt_kernel)  # it waits by then
    status, said = notebook.run("%transient_cluster cpux2 --name patience --wait", interrupt.start)
    interrupt.join()
    assert status == "error"
    assert "patience continues" in said
    assert "Traceback" not in said
    cluster = client.cluster("patience")
    Patient(cluster).sees(lambda: client.commands.in_charge(cluster.directory), "a controller")
    assert cluster.state.phase == "provisioning"
    cluster.delete()


def test_a_killed_kernel_leaves_the_cluster_alone_and_another_one_attaches(notebook: Notebook) -> None:
    with opened() as first:
        status, said = first.run("%transient_cluster cpu --name survivor\n1 + 1")
        assert (status, "2" in said) == ("ok", True)
        client.cluster("survivor").wait(PATIENCE)
        number = Patient(client.cluster("survivor")).controller()
        (pid,) = {int(line) for line in first.run("import os; print(os.getpid())")[1].split()}
        os.kill(pid, signal.SIGKILL)
        time.sleep(1)
    assert number in processes("transient_magics.controller", "survivor")
    status, said = notebook.run("%transient_cluster attach survivor")
    assert status == "ok"
    assert "survivor" in said
    _, said = notebook.run("%transient_cluster delete survivor")
    assert "no VM is left" in said


@pytest.mark.usefixtures("slow")
def test_cells_return_at_once_and_the_kernel_stays_light(notebook: Notebook) -> None:
    began = time.monotonic()
    status, _ = notebook.run("%transient_cluster cpu --name quick -o quick")
    assert status == "ok"
    assert time.monotonic() - began < 60, "it has waited for VMs, or for something else"
    _, said = notebook.run(
        "import sys; [name for name in ('google.cloud', 'tensorflow', 'asyncssh') if name in sys.modules]"
    )
    assert said.strip() == "[]"
    _, said = notebook.run("quick.state.phase")
    assert "unknown" in said or "provisioning" in said
    notebook.run("quick.delete()")
