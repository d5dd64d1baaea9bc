"""Placement of a training graph's variables, and the sessions that use them.

Variables are distributed over the parameter servers by size (round-robin would put all large ones
on one server). Everything else stays with the process that builds the graph. Sessions use the one
arrangement that survives revocations: no worker is declared in advance, and each one adds only its
own address, under a number that is never used twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .graph_mode import has_gpu, tensorflow


class BySize:
    """A strategy that puts each new variable on the parameter server with the fewest bytes.

    The same order of variables gives the same placement.
    """

    def __init__(self, servers: int) -> None:
        self._bytes = [0] * servers

    def __call__(self, operation: Any) -> int:
        """Return the number of the parameter server for the variable that `operation` creates."""
        chosen = self._bytes.index(min(self._bytes))
        self._bytes[chosen] += _bytes(operation)
        return chosen


@contextlib.contextmanager
def placed(worker_device: str, servers: int, shards: int) -> Iterator[None]:
    """Put variables on the parameter servers inside, and everything else on `worker_device`.

    `servers` is the number of parameter servers, and `shards` the largest number of parts per
    variable.
    """
    tf = tensorflow()

    setter = tf.train.replica_device_setter(
        ps_tasks=servers, worker_device=worker_device, ps_strategy=BySize(servers)
    )
    with tf.device(setter), cut(shards):
        yield


@contextlib.contextmanager
def cut(shards: int) -> Iterator[None]:
    """Split large variables inside, along their first dimension.

    They have up to `shards` parts of at least 1 MiB. Every graph of a run's model must be built
    inside: tf.nn.embedding_lookup finds other rows in a table that is not split.
    """
    if shards < 2:
        yield
        return
    tf = tensorflow()
    parts = tf.min_max_variable_partitioner(max_partitions=shards, axis=0, min_slice_size=1 << 20)
    with tf.variable_scope(tf.get_variable_scope(), partitioner=parts, custom_getter=_whole):
        yield


def _whole(
    getter: Any,
    name: str,
    shape: Any = None,
    dtype: Any = None,
    partitioner: Any = None,
    **given: Any,
) -> Any:
    """Get a variable, not split if its partitioner would make only one part.

    TensorFlow fails to split variables without rows. Tensor2Tensor has some: it divides every
    vocabulary by 16.
    """
    if partitioner and shape is not None:
        full = tensorflow().TensorShape(shape)
        if not full.rank or max(partitioner(shape=full, dtype=dtype)) == 1:
            partitioner = None
    return getter(name, shape=shape, dtype=dtype, partitioner=partitioner, **given)


def place_in_checkpoint(variable: Any) -> tuple[str, Any]:
    """Return the name of a variable's value in a checkpoint, and its slices there.

    The slices are None if the variable is the whole value.
    """
    whole = None
    if hasattr(variable, "_get_save_slice_info"):
        whole = variable._get_save_slice_info()
    if whole is None:
        return variable.op.name, None
    spans = zip(whole.var_offset, whole.var_shape, strict=True)
    return whole.full_name, tuple(slice(start, start + length) for start, length in spans)


def ready_flag(run: str, phase: int = 0) -> Any:
    """Return a variable on ps/0 that exists only while all others have their values.

    The chief creates it last, after it initialised or restored the others, and destroys it before
    it restores. Workers step only while it exists: otherwise they would train on values that the
    chief is replacing. It has the name of the run and the step at which its phase began, so a
    worker of an earlier run or phase does not find it.
    """
    tf = tensorflow()
    name = f"transient_ready_{run}"
    if phase:
        name = f"{name}_{phase}"
    with tf.device("/job:ps/task:0"):
        return tf.Variable(True, trainable=False, collections=[], name=name, use_resource=True)


def worker_device(number: int) -> str:
    """Return the device of the worker with this number."""
    return f"/job:worker/task:{number}"


def worker_config(servers: Sequence[str], number: int, address: str, threads: int) -> Any:
    """Return the session configuration of a worker that was not declared in advance."""
    tf = tensorflow()

    config = plain_config(threads)
    cluster = tf.train.ClusterSpec({"ps": list(servers), "worker": {number: address}})
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    # Otherwise every session would have its own variables, which would stay uninitialised.
    config.experimental.share_session_state_in_clusterspec_propagation = True
    config.device_filters.extend(["/job:ps", worker_device(number)])
    optimise_briefly(config)
    return config


def optimise_briefly(config: Any) -> None:
    """Shorten TensorFlow's optimisation of the graph before the first step, without a GPU.

    By default a dozen optimizers process it twice, which takes 1.1 s for ResNet-32 (of 1.6 s of its
    first step). These four, once, take a third of that, and a step on a CPU is equally fast
    (without any, 6 % slower). On a GPU the others are useful: they change layouts and fuse
    operations.
    """
    if has_gpu():
        return
    rewriting = config.graph_options.rewrite_options
    rewriting.optimizers.extend(["pruning", "constfold", "arithmetic", "dependency"])
    rewriting.meta_optimizer_iterations = rewriting.ONE


def plain_config(threads: int) -> Any:
    """Return the configuration of a session or server.

    `threads` limits its threads on a machine that several roles share. Operations that a model puts
    on a GPU run on the CPU if there is none, as on parameter servers and in evaluations.
    """
    tf = tensorflow()

    return tf.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        allow_soft_placement=True,
    )


def close(session: Any, limit: float = 2.0) -> None:
    """Close a session in a thread, and wait at most `limit` seconds.

    Session.close hangs if a peer is dead.
    """
    closer = threading.Thread(target=_close, args=(session,), daemon=True, name="closing a session")
    closer.start()
    closer.join(limit)


def _close(session: Any) -> None:
    tf = tensorflow()

    # The peer may be gone, which is why the session is closed.
    with contextlib.suppress(tf.errors.OpError):
        session.close()


def transient_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a session whose parameter server went away or came back.

    After one of them, open a new session.
    """
    tf = tensorflow()

    names = [
        "Unavailable",
        "Aborted",
        "Cancelled",
        "DeadlineExceeded",
        "Internal",
        "FailedPrecondition",
        "NotFound",
        "Unknown",
    ]
    return tuple(getattr(tf.errors, f"{name}Error") for name in names)


def may_be_own(error: Exception) -> bool:
    """Return whether one of these errors may have another cause.

    GPUs, cuDNN and a model's own Python code raise some of them.
    """
    tf = tensorflow()
    return isinstance(
        error, (tf.errors.InternalError, tf.errors.NotFoundError, tf.errors.UnknownError)
    )


def _bytes(operation: Any) -> int:
    """Return the size of an operation's variable in bytes."""
    try:
        shape = operation.get_attr("shape")
        count = 1
        for dimension in shape.dim:
            count *= max(dimension.size, 1)
        return count * max(operation.get_attr("dtype").size, 1)
    except (ValueError, AttributeError):
        return 1  # a table or another stateful operation, whose size is unknown
