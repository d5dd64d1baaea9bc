"""Write a worker's graph into a file, for workers that join later: `python -m
...programs.shared_graph`.

The chief starts it once a run has trained for a while, as a process of its own and of the lowest
priority, at which it takes no time from anybody; where nobody leaves it any, another tries at a low
one. Workers copy the file before the records (data_files.py). There is one for machines with a GPU
and one for those without: models differ in them. A worker that finds none, or none that fits,
builds its graph itself: with a GPU also that of a model that looks for one as it is built, because
there is none here.
"""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path
from typing import NoReturn

from ...errors import TrainingError
from ...files import write_atomically
from ..folder import RunFolder

_NICE = 10


def main() -> None:
    """Write the file whole or not at all; exit with 1, and a traceback, where that cannot be."""
    parser = argparse.ArgumentParser(description="Write a worker's graph into a file.")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument(
        "--servers", type=int, required=True, help="how many parameter servers the run has"
    )
    parser.add_argument("--gpu", action="store_true", help="for workers with a GPU")
    parser.add_argument(
        "--idle", action="store_true", help="take only the time that nobody else wants"
    )
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
    spec = folder.spec()
    if given.gpu and not spec.model:
        _refuse_to_look()
    content = written(load_model(folder, spec, folder.data_directory(spec)), spec, given.servers)
    folder.graphs.mkdir(exist_ok=True, mode=0o700)
    write_atomically(folder.graph_file(given.gpu, given.servers), content, durable=False)


def _refuse_to_look() -> None:
    """Have TrainingError raised where a model looks for a GPU: Keras's recurrent layers take
    cuDNN's kernels where they see one, and others in the graph that is built here.
    """
    from ..tf.graph_mode import everything

    def refuse(*_: object) -> NoReturn:
        raise TrainingError(
            "the model looks for a GPU, and here is none: workers build its graph themselves"
        )

    everything()
    importlib.import_module("tensorflow").config.list_logical_devices = refuse


if __name__ == "__main__":
    main()
