"""Where operations and variables of a training graph go, and the sessions that reach them:
configured, closed.

Variables are spread over the parameter servers by size (round-robin would put everything big on
one), everything else stays with whoever builds the graph. The sessions follow the one arrangement
that survives revocations: nothing about workers is declared up front; each brings only its own
address, under a number that is never used twice.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from .graph_mode import has_gpu, tensorflow


class BySize:
    """Give each new variable to the parameter server that holds the fewest bytes.

    The same order gives the same places.
    """

    def __init__(self, servers: int) -> None:
        self._bytes = [0] * servers

    def __call__(self, operation: Any) -> int:
        chosen = self._bytes.index(min(self._bytes))
        self._bytes[chosen] += _bytes(operation)
        return chosen


@contextlib.contextmanager
def placed(worker_device: str, servers: int, shards: int) -> Iterator[None]:
    """Inside, variables go to the parameter servers, cut in `shards`, and the rest to
    `worker_device`.
    """
    tf = tensorflow()

    setter = tf.train.replica_device_setter(
        ps_tasks=servers, worker_device=worker_device, ps_strategy=BySize(servers)
    )
    with tf.device(setter), cut(shards):
        yield


@contextlib.contextmanager
def cut(shards: int) -> Iterator[None]:
    """Inside, large variables are cut along their first dimension in up to `shards` parts of at
    least 1 MiB.

    Wherever a run's model is built, whatever for: tf.nn.embedding_lookup finds other rows in a
    table that is whole.
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
    """Get a variable, uncut where one part is all that its partitioner would make.

    TensorFlow fails to cut one without any rows, of which Tensor2Tensor has some: it divides every
    vocabulary by 16.
    """
    if partitioner and shape is not None:
        full = tensorflow().TensorShape(shape)
        if not full.rank or max(partitioner(shape=full, dtype=dtype)) == 1:
            partitioner = None
    return getter(name, shape=shape, dtype=dtype, partitioner=partitioner, **given)


def place_in_checkpoint(variable: Any) -> tuple[str, Any]:
    """The name of a variable in a checkpoint, and the slices of that value which it is; None: all
    of it.
    """
    if hasattr(variable, "_get_save_slice_info"):
        whole = variable._get_save_slice_info()
    else:
        whole = None
    if whole is None:
        return variable.op.name, None
    spans = zip(whole.var_offset, whole.var_shape, strict=True)
    return whole.full_name, tuple(slice(start, start + length) for start, length in spans)


def ready_flag(run: str) -> Any:
    """A variable on ps/0 that exists only while all others hold what they should.

    The chief makes it last, after initialising or restoring, and destroys it before it restores.
    Workers step only while it exists; without it they would train on values that the chief is still
    replacing. It bears the name of the run: a worker that an earlier one left behind finds none.
    """
    tf = tensorflow()
    with tf.device("/job:ps/task:0"):
        return tf.Variable(
            True, trainable=False, collections=[], name=f"transient_ready_{run}", use_resource=True
        )


def worker_device(number: int) -> str:
    """The device of the worker with this number."""
    return f"/job:worker/task:{number}"


def worker_config(servers: Sequence[str], number: int, address: str, threads: int) -> Any:
    """The session configuration of a worker that nobody declared (reference: one arrangement
    survives).
    """
    tf = tensorflow()

    config = plain_config(threads)
    cluster = tf.train.ClusterSpec({"ps": list(servers), "worker": {number: address}})
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    # Without this every session would get variables of its own, empty for ever.
    config.experimental.share_session_state_in_clusterspec_propagation = True
    config.device_filters.extend(["/job:ps", worker_device(number)])
    optimise_briefly(config)
    return config


def optimise_briefly(config: Any) -> None:
    """Let TensorFlow spend less time on its graph before the first step, where there is no GPU.

    By default a dozen optimizers go over it twice, 1.1 s for ResNet-32 (of 1.6 s that its first
    step took). These four once take a third of that, and a step on a CPU takes no longer (with none
    at all 6 % longer). A GPU has use for the others, which change layouts and join operations.
    """
    if has_gpu():
        return
    rewriting = config.graph_options.rewrite_options
    rewriting.optimizers.extend(["pruning", "constfold", "arithmetic", "dependency"])
    rewriting.meta_optimizer_iterations = rewriting.ONE


def plain_config(threads: int) -> Any:
    """Session or server configuration; `threads` limits what TensorFlow takes of a machine that
    several roles share.

    What a model puts on a GPU is on the CPU where there is none, as parameter servers and
    evaluations have it.
    """
    tf = tensorflow()

    return tf.ConfigProto(
        intra_op_parallelism_threads=threads,
        inter_op_parallelism_threads=threads,
        allow_soft_placement=True,
    )


def close(session: Any, limit: float = 2.0) -> None:
    """Close a session without waiting for a dead peer: Session.close hangs then, so it gets a
    thread and a limit.
    """
    closer = threading.Thread(target=_close, args=(session,), daemon=True, name="closing a session")
    closer.start()
    closer.join(limit)


def _close(session: Any) -> None:
    tf = tensorflow()

    with contextlib.suppress(
        tf.errors.OpError
    ):  # the peer is gone; that is why the session is closed
        session.close()


def transient_errors() -> tuple[type[Exception], ...]:
    """What a session raises when a parameter server went away or came back: open a new session."""
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
    """Whether one of these has other reasons, too: a GPU, cuDNN and a model's own Python code raise
    some of them.
    """
    tf = tensorflow()
    return isinstance(
        error, (tf.errors.InternalError, tf.errors.NotFoundError, tf.errors.UnknownError)
    )


def _bytes(operation: Any) -> int:
    try:
        shape = operation.get_attr("shape")
        count = 1
        for dimension in shape.dim:
            count *= max(dimension.size, 1)
        return count * max(operation.get_attr("dtype").size, 1)
    except (ValueError, AttributeError):
        return 1  # a table or another stateful operation: its size is not known
