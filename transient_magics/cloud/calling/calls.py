"""Calls of Google's blocking clients from asyncio: threads, retries, limits and typed errors.

Google's own retries are off; ours (limited, jittered, by stamina) replace them. Operations are
awaited by our own operations client. Those that Google's client awaits automatically always poll
Google's host, even if all other requests go to an emulator.

`ask` sends one request to a Google service for which there is no client, and returns its JSON
answer. Most of these services are client-based: a request needs a project that it is charged to,
and the right to use that project (Service Usage Consumer). The project itself is tried first. If
the credentials may not use it, the quota project of the login is tried, then none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import stamina

from ...errors import CloudError, NotReadyError
from . import failures
from .clients import Clients
from .failures import USER_PROJECT_DENIED

if TYPE_CHECKING:
    from google.cloud import compute_v1


T = TypeVar("T")

# Without Google's own retries, and with a time limit for each call.
PLAIN: dict[str, Any] = {"retry": None, "timeout": 30.0}
_THREADS = 64
_WAITERS = 48  # of the threads, so that short calls never queue behind long waits
# How long a thread stays in one wait, and so how long a shutdown may take.
_WAIT_SECONDS = 15.0


Explain = Callable[[Exception, str], CloudError | None]
"""Function from a library's error and its place to the typed error; None for a defect of ours."""


class Attempts:
    """Blocking requests in `threads` of their own, with retries for `patience` seconds.

    `explain` converts errors.
    """

    def __init__(self, name: str, threads: int, patience: float, explain: Explain) -> None:
        self._patience = patience
        self._explain = explain
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def end(self) -> None:
        """Release the threads; requests in flight end on their own."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def call(
        self, where: str, function: Callable[[], T], *, patience: float | None = None
    ) -> T:
        """Run a blocking request in a thread, with retries after transient errors.

        Raises the typed error of the last attempt.
        """
        attempts = stamina.retry_context(
            failures.is_transient,
            attempts=10,
            timeout=self._patience if patience is None else patience,
            wait_initial=0.2,
            wait_max=15.0,
            wait_jitter=0.5,
        )
        async with self.explaining(where):
            async for attempt in attempts:
                with attempt:
                    return await self.threaded(function)
        raise AssertionError("stamina must end with a result or an error")

    @asynccontextmanager
    async def explaining(self, where: str) -> AsyncGenerator[None]:
        """Convert errors of Google's client, its credentials and the network to typed ones."""
        try:
            yield
        # Google's clients raise errors of three libraries; unknown ones pass unchanged.
        except Exception as error:
            ours = self._explain(error, where)
            if ours is None:
                raise
            raise ours from error

    async def threaded(self, function: Callable[[], T]) -> T:
        """Run a function in a thread, once."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)


class Calls(Attempts):
    """The threads and the clients behind one ComputeEngine."""

    def __init__(self, project: str, endpoint: str | None, patience: float) -> None:
        def explain(error: Exception, where: str) -> CloudError | None:
            return failures.explain(error, where=where, project=project, endpoint=endpoint or "")

        super().__init__("compute", _THREADS, patience, explain)
        self._project = project
        self._endpoint = endpoint
        self._waiters = asyncio.Semaphore(_WAITERS)
        self._clients: Clients | None = None

    @property
    def clients(self) -> Clients:
        """Google's clients; only while open."""
        if self._clients is None:
            raise RuntimeError(
                "ComputeEngine is not open: use `async with ComputeEngine(...) as engine`"
            )
        return self._clients

    @property
    def endpoint(self) -> str | None:
        """The URL of the emulator; None: Google."""
        return self._endpoint

    async def open(self) -> None:
        """Import Google's clients, find credentials, and build the clients.

        If called again, calls that begin afterwards use new credentials.
        """
        async with self.explaining(f"project {self._project}"):
            self._clients = await self.threaded(
                lambda: Clients(self._endpoint, connections=_THREADS)
            )

    def close(self) -> None:
        """Release threads and connections; calls in flight end on their own."""
        self.end()
        self.clients.close()

    async def finished(
        self, zone: str | None, where: str, operation: compute_v1.Operation
    ) -> compute_v1.Operation:
        """Wait until an operation is done, failed or not, and return it.

        Without a zone it is a global operation. Raises GoneError if Compute Engine has deleted it.
        """
        from google.cloud import compute_v1
        from requests.exceptions import Timeout

        if zone:
            operations: Any = self.clients.operations
        else:
            operations = self.clients.global_operations
        whole: dict[str, Any] = {"project": self._project, "operation": operation.name}
        if zone:
            whole["zone"] = zone

        def wait() -> compute_v1.Operation | None:
            try:
                return operations.wait(**whole, retry=None, timeout=_WAIT_SECONDS)
            except Timeout:  # the server may hold a wait for two minutes, but not our thread
                return None

        async def done() -> compute_v1.Operation | None:
            async with self._waiters:
                state = await self.call(where, wait)
            if state is not None and state.status == compute_v1.Operation.Status.DONE:
                return state
            return None

        return await until(done)

    async def settled(self, change: Callable[[], Awaitable[None]]) -> None:
        """Carry out a change, and repeat it if its operation found the resource in use.

        `call` already repeats requests that are refused for that reason. Each attempt needs its own
        request id.
        """
        attempts = stamina.retry_context(
            NotReadyError,
            attempts=6,
            timeout=self._patience,
            wait_initial=0.5,
            wait_max=10.0,
            wait_jitter=0.5,
        )
        async for attempt in attempts:
            with attempt:
                await change()

    def failure(self, operation: compute_v1.Operation, where: str) -> CloudError | None:
        """Return the typed error of a failed operation; None if it succeeded."""
        return failures.explain_operation(operation, where=where, project=self._project)


async def until(check: Callable[[], Awaitable[T | None]]) -> T:
    """Ask at growing intervals until the answer is not None; return it.

    The caller sets the time limit. The API offers no events.
    """
    interval = 0.1
    while (answer := await check()) is None:
        await asyncio.sleep(interval * random.uniform(0.8, 1.2))
        interval = min(interval * 1.5, 2.0)
    return answer


@asynccontextmanager
async def limit(seconds: float, what: str, where: str) -> AsyncGenerator[None]:
    """Raise CloudError (`what` within this many seconds) if the block takes longer."""
    limited = asyncio.timeout(seconds)
    try:
        async with limited:
            yield
    except TimeoutError as error:
        if not limited.expired():
            raise
        raise CloudError(
            f"{what} within {seconds:g} s", where=where, fix="Try again, or in another zone."
        ) from error


RESOURCE_MANAGER = "https://cloudresourcemanager.googleapis.com"
IAM = "https://iam.googleapis.com"
ORGANIZATION_POLICY = "https://orgpolicy.googleapis.com"
STORAGE = "https://storage.googleapis.com"
USER_PROJECT = "x-goog-user-project"
"""The header with the project that a request is charged to."""
_RESOURCE_BASED = (STORAGE,)
_SECONDS = 20.0
_CONSUMER_REASONS = (
    USER_PROJECT_DENIED,
    "SERVICE_DISABLED",
    "CONSUMER_INVALID",
    "BILLING_DISABLED",
)


async def ask(
    calls: Calls,
    project: str,
    host: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    query: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """POST `body` (GET without a body) to a service or to the emulator; return the JSON answer.

    Raises CloudError.
    """
    session = calls.clients.asking
    url = f"{calls.endpoint or host}{path}"
    method = "GET" if body is None else "POST"

    def once(headers: Mapping[str, str]) -> Any:
        return session.request(
            method, url, json=body, params=query, headers=headers, timeout=_SECONDS
        )

    def request() -> dict[str, Any]:
        if host in _RESOURCE_BASED:
            return content_of(once({}))
        return content_of(charged(calls, project, once))

    return await calls.call(host.removeprefix("https://"), request, patience=10.0)


def charged(calls: Calls, project: str, send: Callable[[Mapping[str, str]], Any]) -> Any:
    """Send a request that is charged to the project, or to another if that is refused.

    Returns the first answer that is not such a refusal. If all are, returns the first refusal: its
    remedy is about the requested project.
    """
    if calls.endpoint:
        return send({})
    first = send({USER_PROJECT: project})
    if first.status_code != 403 or USER_PROJECT_DENIED not in first.text:
        return first
    quota_project = calls.clients.quota_project
    attempts: list[dict[str, str]] = [{}]
    if quota_project not in ("", project):
        attempts.insert(0, {USER_PROJECT: quota_project})
    for headers in attempts:
        answer = send(headers)
        if not _refuses_consumer(answer):
            return answer
    return first


def content_of(answer: Any) -> dict[str, Any]:
    """Return the JSON of an answer. Raises an error of google.api_core for a refusal."""
    from google.api_core import exceptions

    if answer.status_code != 200:
        raise exceptions.from_http_response(answer)
    return answer.json()


def _refuses_consumer(answer: Any) -> bool:
    """Return whether a refusal is about the project to charge instead of the request."""
    return answer.status_code == 403 and any(reason in answer.text for reason in _CONSUMER_REASONS)
