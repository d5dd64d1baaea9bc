"""Write a worker's graph into a file, for workers that join later.

`python -m ...programs.shared_graph` is started by the chief once a run has trained for a while, as
a process with the lowest priority, which takes no time from others. If it gets no time at all,
another one tries with a low priority. Workers copy the file before the records (data_files.py).

There is one file for VMs with a GPU and one for VMs without, because models may differ. A worker
without a fitting file builds its graph itself. So does a worker with a GPU whose model checks for
one while it is built, because there is none here.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import NoReturn

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol.run import FitDeclaration
from ..folder import RunFolder
from ..phases import Phases

_NICE = 10


def main() -> None:
    """Write the whole file, or exit with 1 and a traceback."""
    parser = argparse.ArgumentParser(description="Write a worker's graph into a file.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--servers", type=int, required=True, help="number of the run's parameter servers"
    )
    parser.add_argument("--gpu", action="store_true", help="for workers with a GPU")
    parser.add_argument("--idle", action="store_true", help="use only cores that are idle")
    given = parser.parse_args()
    if given.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(_NICE)
    from ..tf.graph_mode import GPU
    from ..training.graph.file import written
    from ..training.loading import load_model

    os.environ[GPU] = str(int(given.gpu))
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    folder = RunFolder(given.run)
    spec = Phases(folder).completed(FitDeclaration())
    folder = folder.of_phase(spec.phase_begin)
    if given.gpu and not spec.model:
        _refuse_gpu_checks()
    content = written(load_model(folder, spec, folder.data_directory(spec)), spec, given.servers)
    folder.graphs.mkdir(exist_ok=True, mode=0o700)
    write_atomically(folder.graph_file(given.gpu, given.servers), content, durable=False)


def _refuse_gpu_checks() -> None:
    """Raise TrainingError when the model checks for a GPU while it is built.

    Keras's recurrent layers use cuDNN's kernels if they find one, and others here.
    """
    from ..tf.graph_mode import everything

    def refuse(*_: object) -> NoReturn:
        raise TrainingError(
            "the graph is not shared, because the model checks for a GPU and this VM has none; "
            "each worker builds its own"
        )

    everything()
    importlib.import_module("tensorflow").config.list_logical_devices = refuse


if __name__ == "__main__":
    main()
