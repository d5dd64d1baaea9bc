"""Sessions of workers that died, dropped from TensorFlow's servers on the parameter servers.

A worker that is killed cannot close its session, and every parameter server keeps it for ever, with its part of the
worker's graph: 2 MiB for a small ResNet. TensorFlow drops the sessions of a task when the same task opens one under
another incarnation, which is meant for workers that are started again. Ours come back under numbers that were never
used before, so it is done in their name: a session of that task is opened and closed, by the two calls of TensorFlow's
own protocol that do this. Variables belong to no session and stay; a worker that lives after all opens another session.
"""

from __future__ import annotations

_SERVICE = "/tensorflow.WorkerService"
_SECONDS = 5.0
_OPTIONS = (("grpc.enable_http_proxy", 0),)


def release(server: str, number: int) -> None:
    """Drop every session of the worker with this number from the parameter server at this address.

    Raises ConnectionError if it did not answer in time.
    """
    import grpc

    handle = f"dead-worker-{number}"
    # CreateWorkerSessionRequest: 1 session_handle, 5 master_task, 6 master_incarnation (any that is not the worker's).
    opened = _text(1, handle) + _text(5, f"/job:worker/replica:0/task:{number}") + bytes([6 << 3, 1])
    with grpc.insecure_channel(server, _OPTIONS) as channel:
        try:
            channel.unary_unary(f"{_SERVICE}/CreateWorkerSession")(opened, timeout=_SECONDS)
            channel.unary_unary(f"{_SERVICE}/DeleteWorkerSession")(_text(1, handle), timeout=_SECONDS)
        except grpc.RpcError as error:
            why = error.details() if isinstance(error, grpc.Call) else str(error)
            raise ConnectionError(f"{server} keeps the session of worker number {number}: {why}") from error


def _text(field: int, value: str) -> bytes:
    """A field of a protocol buffer that holds less than 128 bytes of text."""
    data = value.encode()
    assert len(data) < 128, value
    return bytes([field << 3 | 2, len(data)]) + data
