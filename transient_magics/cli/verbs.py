"""What each verb does, once for cells and terminals.

The values of a Command go in, and a value that shows itself comes out: as text by `str`, in a
notebook also as HTML or a panel. What comes bit by bit is an iterator of such values. Nothing here
prints or waits for VMs and runs: how to show an answer, and how to wait, is for the face that asked
(`program`, `magics`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import client
from ..client import focus, text
from ..client.following.cluster import watch
from ..client.following.restarts import present
from ..client.lookup import find_work
from ..client.planning.bottlenecks import foreseen
from ..client.planning.forecasts import forecast_line
from ..journal import Bill, encode
from ..protocol.cluster_commands import GiveUp
from . import options
from .answers import Begun, Deleted, EventLine, Listing, Sentence, Snapshot
from .arguments import Command
from .options import Code

if TYPE_CHECKING:
    from ..client import Build, Cluster, Preview, Weather, WorkList
    from ..client.project.deflation import Deflated


def act(command: Command) -> Any:
    """Do what `command` says, and answer. Raises TransientError.

    Work is declared by `begin`, which takes its code.
    """
    values = dict(command.values)
    answer = ACTS[command.verb](**values, **({"dry_run": True} if command.dry_run else {}))
    if command.json:
        return _as_json(answer)
    return answer


def _as_json(answer: Any) -> Sentence | Iterator[Sentence]:
    """Return an answer as JSON: events a line each, all else as one value."""
    if isinstance(answer, Iterator):
        return (
            Sentence(encode(line.event).decode().rstrip())
            for line in answer
            if isinstance(line, EventLine)
        )
    return Sentence(json.dumps(answer.data, indent=1))


def declare(*, dry_run: bool = False, **values: Any) -> Cluster | Preview:
    """Declare a cluster, or show what would be created."""
    declaration = client.Declaration(**values)
    if dry_run:
        return foreseen(client.preview(declaration))
    return client.declare(declaration)


def begin(command: Command, code: Code) -> Any:
    """Check code and declare work with it: return it as Begun, or what `--dry-run` shows.

    `command`: its verb is one of `options.work_commands`.
    """
    before = {cluster.identity: cluster.state.seq for cluster in client.clusters()}
    found = options.work_commands()[command.verb]
    if found.dry_run:
        how = {"dry_run": command.dry_run}
    else:
        how = {}
    answer = found.declare(dict(command.values), code, **how)
    if not isinstance(answer, client.Handle):
        return answer
    return Begun(answer, before.get(answer.cluster.identity, 0))


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
    run = focus.run(state)
    if run and not run.over:
        forecast = forecast_line(cluster.run(run.name))
    else:
        forecast = ""
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
    return Sentence(f"{worker} of {name} will be taken back 30 seconds after its notice.")


def _move(name: str, run: str, before: str | None = None) -> Sentence:
    cluster = client.cluster(name)
    cluster.run(run).move(before)
    return Sentence(
        f"Next on {name}: {', '.join(each.name for each in cluster.state.queue) or run}."
    )


def _agree(name: str, run: str = "") -> Sentence:
    if not run:
        return Sentence(f"{name} gives up {', '.join(client.cluster(name).agree())}.")
    client.cluster(name).run(run).agree()
    return Sentence(f"{run} gets the workers that were proposed.")


def _stop(cluster: str, name: str) -> Sentence:
    work = client.cluster(cluster).find(name)
    if work.is_over():
        return Sentence(f"{name} is over already.")
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
    event = None
    for event in watch(cluster, kind) if follow else before:
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
