"""Run a notebook headless, as the quickstart: progress as it happens, a summary at the end, and out/quickstart.html.

`python notebooks/demo.py [NOTEBOOK]`. Everything that the run keeps goes into a folder of its own below out/, and no VM
is left when it ends, however it ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from transient_magics import client
from transient_magics.client import text
from transient_magics.errors import TransientError
from transient_magics.journal import ClusterState, Event, RunState, bill, events
from transient_magics.protocol.vm_events import TrainProgress

HERE = Path(__file__).resolve().parent


def main() -> int:
    """Exit code 0 when every cell ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", nargs="?", type=Path, default=HERE / "quickstart.ipynb")
    notebook = parser.parse_args().notebook
    out = HERE.parent / "out"
    out.mkdir(exist_ok=True)
    home = tempfile.mkdtemp(prefix="tm-demo-")  # a short path: sockets lie below it
    os.environ["TRANSIENT_MAGICS_HOME"] = home
    beside = [str(notebook.resolve().parent), os.environ.get("PYTHONPATH", "")]  # what notebooks import
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, beside))
    began = time.monotonic()
    try:
        return _run(notebook, out, began)
    finally:
        for cluster in client.clusters():
            cluster.delete()
        kept = out / f"{notebook.stem}-files"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(Path(home) / "clusters", kept, ignore=shutil.ignore_patterns("key"), dirs_exist_ok=True)
        shutil.rmtree(home, ignore_errors=True)


def _run(path: Path, out: Path, began: float) -> int:
    notebook = nbformat.read(path, as_version=4)
    _say(began, f"{path.name}: {len(notebook.cells)} cells, headless")
    watching: set[str] = set()

    def watch(**_: object) -> None:
        for cluster in client.clusters():
            if cluster.name not in watching:
                watching.add(cluster.name)
                client.follower().subscribe(cluster.name, lambda state, new: _tell(began, state, new))

    runner = NotebookClient(
        notebook, timeout=5400, kernel_name="python3", resources={"metadata": {"path": str(out)}},
        on_cell_executed=watch, extra_arguments=["--log-level=ERROR"],
    )  # fmt: skip
    failed = ""
    try:
        runner.execute()
    except CellExecutionError as error:
        failed = str(error).strip().splitlines()[-1]
    report = out / f"{path.stem}.html"
    html, _ = HTMLExporter().from_notebook_node(notebook)
    report.write_text(html, encoding="utf-8")
    nbformat.write(notebook, out / path.name)
    if failed:
        print(f"\nThe notebook failed: {failed}\nReport: {report}", file=sys.stderr)
        return 1
    for cluster in client.clusters(all=True):
        _summarise(cluster.state)
    _say(began, f"report: {report.relative_to(HERE.parent)}")
    return 0


def _tell(began: float, state: ClusterState, new: list[Event]) -> None:
    for event in new:
        if isinstance(event, TrainProgress):
            run = state.of(RunState)[event.run]
            loss = "" if event.loss is None else f"  loss {event.loss:.3f}"
            _say(
                began,
                f"step {event.step:5d} of {run.train_steps}  {event.steps_per_second:5.1f} steps/s{loss}  "
                f"{event.active} workers  ${bill(state, time.time()).total:.4f}",
            )
        else:
            _say(began, text.event_words(event))


def _summarise(state: ClusterState) -> None:
    account = bill(state, time.time())
    print(f"\n{state.name}: {len(state.vms)} VMs, {state.revocations} revoked")
    for run in state.of(RunState).values():
        measured = ", ".join(
            f"{name} {value:.3f}" for name, value in run.metrics.items() if name in ("accuracy", "loss")
        )
        print(f"{run.name}: {run.step} steps in {run.ended_at - run.started_at:.0f} s; held-out digits: {measured}")
    print(
        f"cost ${account.total:.4f} at {account.source}; on demand ${account.on_demand:.4f}; saved {account.saved:.0%}"
    )
    print("It ran on the emulator: nothing was billed, and no VM is left.\n")


def _say(began: float, line: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TransientError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; every VM was deleted.")
