"""The functions of the verbs, shared by cells and terminals.

A function takes the values of a Command and returns a value with a text form; notebooks also have
HTML or a panel of it. A verb with several answers returns an iterator. Nothing here prints, or
waits for VMs and runs: `program` and `magics` choose how to show an answer, and how to wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import client
from ..client import focus, text
from ..client.following.cluster import watch
from ..client.following.restarts import present
from ..client.lookup import find_work
from ..client.planning.bottlenecks import foreseen
from ..client.planning.forecasts import forecast_line
from ..journal import Bill, Event, encode
from ..protocol.cluster_commands import GiveUp
from . import options
from .answers import Begun, Deleted, EventLine, Listing, Sentence, Snapshot
from .arguments import Command
from .options import Code

if TYPE_CHECKING:
    from ..client import Build, Cluster, Preview, Weather, WorkList
    from ..client.project.deflation import Deflated


def act(command: Command) -> Any:
    """Execute a command and return its answer; `begin` declares work.

    Raises
    ------
    TransientError
        The command failed.
    """
    values = dict(command.values)
    if command.dry_run:
        values["dry_run"] = True
    answer = ACTS[command.verb](**values)
    if command.json:
        return _as_json(answer)
    return answer


def _as_json(answer: Any) -> Sentence | Iterator[Sentence]:
    """Return an answer as JSON: one line per event, or one value."""
    if isinstance(answer, Iterator):
        return (
            Sentence(encode(line.event).decode().rstrip())
            for line in answer
            if isinstance(line, EventLine)
        )
    return Sentence(json.dumps(answer.data, indent=1))


def declare(*, dry_run: bool = False, **values: Any) -> Cluster | Preview:
    """Declare a cluster, or preview it."""
    declaration = client.Declaration(**values)
    if dry_run:
        return foreseen(client.preview(declaration))
    return client.declare(declaration)


def begin(command: Command, code: Code) -> Any:
    """Check code and declare work with it.

    Parameters
    ----------
    command
        A command whose verb is in `options.work_commands`.
    code
        The code of the work.

    Returns
    -------
    Begun or object
        The declared work, or the preview of `--dry-run`.
    """
    before = {cluster.identity: cluster.state.seq for cluster in client.clusters()}
    found = options.work_commands()[command.verb]
    how = {}
    if found.dry_run:
        how["dry_run"] = command.dry_run
    answer = found.declare(dict(command.values), code, **how)
    if not isinstance(answer, client.Handle):
        return answer
    notes: Sequence[str] = ()
    if found.notes:
        notes = found.notes(command.values, code)
    names: Mapping[str, object] = {}
    if found.names:
        names = found.names(answer, code)
    return Begun(answer, before.get(answer.cluster.identity, 0), tuple(notes), names)


def _export(run: str, cluster: str | None = None, **how: Any) -> Path:
    return find_work("run", run, cluster).export(**how)


def _tensorboard(run: str, cluster: str | None = None, **how: Any) -> Path:
    return find_work("run", run, cluster).tensorboard(**how)


def _list(all: bool = False) -> Listing:
    found = client.clusters(all=all)
    return Listing(found, client.unreadable(), client.revive(found))


def _status(name: str | None = None) -> Snapshot:
    cluster = client.cluster(name)
    state = present(cluster)
    unattended = " ".join(client.revive([cluster]))
    forecast = ""
    run = focus.run(state)
    if run and not run.over:
        forecast = forecast_line(cluster.run(run.name))
    return Snapshot(cluster, state, forecast, unattended)


def _cost(name: str | None = None) -> Bill:
    return client.cluster(name).cost()


def _resize(
    name: str, spec: str = "", ps: int | None = None, give_up: GiveUp | None = None
) -> Sentence:
    client.cluster(name).resize(spec, ps=ps, give_up=give_up)
    return Sentence(f"{name} will have {spec or text.count(ps or 0, 'parameter server')}.")


def _relocate(name: str, zone: str = "", gpus: str = "", yes: bool = False) -> Sentence:
    return Sentence(client.cluster(name).relocate(zone, gpus=gpus, yes=yes))


def _revoke(name: str, worker: str, seconds: float = 0.0) -> Sentence:
    client.cluster(name).revoke(worker, seconds)
    return Sentence(f"Revoking {worker} of {name}: it stops 30 seconds after its notice.")


def _move(name: str, run: str, before: str | None = None) -> Sentence:
    cluster = client.cluster(name)
    cluster.run(run).move(before)
    queue = ", ".join(work.name for work in cluster.state.queue)
    return Sentence(f"Next on {name}: {queue or run}.")


def _agree(name: str, run: str = "") -> Sentence:
    if not run:
        return Sentence(f"{name} releases {', '.join(client.cluster(name).agree())}.")
    client.cluster(name).run(run).agree()
    return Sentence(f"{run} gets the proposed workers.")


def _stop(cluster: str, name: str) -> Sentence:
    work = client.cluster(cluster).find(name)
    if work.is_over():
        return Sentence(f"{name} has already ended.")
    phase = work.phase
    work.stop()
    if phase == "declared":
        return Sentence(f"{name} leaves the queue.")
    return Sentence(f"{name} is stopping: {work.at_stop}.")


def _work(name: str | None = None) -> WorkList:
    return client.work(name)


def _logs(name: str, worker: str, lines: int = 200) -> Sentence:
    logged = client.cluster(name).logs(worker, lines)
    return Sentence(logged.rstrip("\n") or f"{worker} has logged nothing yet.")


def _events(
    name: str | None = None, kind: str | None = None, follow: bool = False
) -> Iterator[Sentence]:
    cluster = client.cluster(name)
    before = cluster.events(kind)
    yield from map(Sentence, client.revive([cluster]))
    found: Iterable[Event] = before
    if follow:
        found = watch(cluster, kind)
    event = None
    for event in found:
        yield EventLine(event)
    if event is None:
        yield Sentence("No events.")


def _delete(**which: Any) -> Iterator[Deleted | Sentence]:
    cluster = None
    for cluster in client.delete_clusters(**which):
        yield Deleted(cluster)
    if cluster is None:
        yield Sentence(text.NOTHING_TO_DELETE)


def _weather(name: str | None = None, **settings: Any) -> Weather:
    return client.cluster(name).weather(**settings)


def _deflate(name: str, **values: Any) -> Iterator[Deflated]:
    from ..client.project.deflation import deflate

    return deflate(client.cluster(name), **values)


def _build(**values: Any) -> Build:
    return client.build_image(**values)


def _delete_image(**values: Any) -> Sentence:
    return Sentence(client.delete_image(**values))


ACTS: Mapping[str, Callable[..., Any]] = {
    "declare": declare,
    "plan": lambda **values: client.plan(**values),
    "export": _export,
    "tensorboard": _tensorboard,
    "list": _list,
    "status": _status,
    "cost": _cost,
    "attach": lambda **values: client.attach(**values),
    "resize": _resize,
    "relocate": _relocate,
    "revoke": _revoke,
    "move": _move,
    "agree": _agree,
    "stop": _stop,
    "work": _work,
    "logs": _logs,
    "events": _events,
    "delete": _delete,
    "sweep": lambda **values: client.sweep(**values),
    "catalog": lambda **values: client.catalog(**values),
    "weather": _weather,
    "deflate": _deflate,
    "doctor": lambda **values: client.doctor(**values),
    "measure": lambda **values: client.measure(**values),
    "lifetimes": lambda **values: client.lifetimes(**values),
    "image build": _build,
    "image list": lambda **values: client.images(**values),
    "image delete": _delete_image,
}
