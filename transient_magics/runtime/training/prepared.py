"""Mini-batches that other VMs prepare: a pipeline whose dataset is run by tf.data service.

The worker registers its dataset with the dispatcher once for all (the first worker's stays), and takes elements of it
from whichever preparation VM has some. Every file of records goes to one of these at a time: an element comes once or,
where a preparation VM is lost, not at all in that epoch. Names of files are below the run's folder, in which the
processes of a run are started on every VM.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ...errors import DeclarationError
from ..tf.graph_mode import tensorflow
from .trainable import Pipeline

_DATASET = "examples"
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def prepared(pipeline: Pipeline, dispatcher: str, run: str, batch: int) -> Pipeline:
    """The same examples, in mini-batches of `batch` where they come one by one, from the service at `dispatcher`.

    Raises DeclarationError where only the worker's own Python can make them.
    """
    service = _service("--prep")
    return _come(pipeline, batch, dispatcher, {}, processing_mode=service.ShardingPolicy.DYNAMIC, job_name=run)


def shared(pipeline: Pipeline, dispatcher: str, study: str, run: str, batch: int) -> Pipeline:
    """The same from the service of this VM, which prepares each mini-batch once for all runs of the study there.

    The run takes each at most once, whoever else does: what is prepared is kept for a while, and who takes none for
    long holds up nobody, but passes over what is not kept any more. One that begins takes what is kept first.
    Raises DeclarationError as `prepared`.
    """
    service = _service("--share-input")
    return _come(
        replace(pipeline, dataset=pipeline.dataset.repeat()),  # without an end, as the service insists
        batch, dispatcher, {"compression": None}, processing_mode=service.ShardingPolicy.OFF, job_name=study,
        cross_trainer_cache=service.CrossTrainerCache(trainer_id=run),
    )  # fmt: skip


def _service(option: str) -> Any:
    if python := next(_python_operations(tensorflow().get_default_graph()), ""):
        what = f"the problem decodes its records in Python ({python}), which other processes cannot run"
        raise DeclarationError(what, where=option, fix=f"Leave {option} out, or decode with TensorFlow's operations.")
    return importlib.import_module("tensorflow").data.experimental.service


def _come(pipeline: Pipeline, batch: int, dispatcher: str, registered: dict[str, Any], **how: Any) -> Pipeline:
    tf = tensorflow()
    service = importlib.import_module("tensorflow").data.experimental.service
    dataset = pipeline.dataset if pipeline.batched else pipeline.dataset.batch(batch)
    address = f"grpc://{dispatcher}"
    identity = service.register_dataset(address, dataset, dataset_id=_DATASET, **registered)
    spec = tf.data.experimental.get_structure(dataset)
    come = service.from_dataset_id(service=address, dataset_id=identity, element_spec=spec, **how)
    return replace(pipeline, dataset=come, grouped=not pipeline.batched, directory="")


def _python_operations(graph: Any) -> Iterator[str]:
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    for nodes in (definition.node, *functions):
        yield from (node.op for node in nodes if node.op in _PYTHON)
