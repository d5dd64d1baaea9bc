"""What each verb does, once for cells and terminals.

The values of a Command go in, and a value that shows itself comes out: as text by `str`, in a notebook also as HTML or
a panel. What comes bit by bit is an iterator of such values. Nothing here prints or waits for
VMs and runs: how to show an answer, and how to wait, is for the face that asked (`program`, `magics`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import client
from ..client import cell, foreground, text
from ..client.declaring.including import included
from ..client.following.reviving import present
from ..client.following.watch import watch
from ..client.planning.forecasts import forecast_line
from ..client.planning.servers import foreseen
from ..journal import Bill
from ..protocol.cluster_commands import GiveUp
from ..protocol.study import parse_space
from .answers import Begun, Deleted, Launched, Listing, Measured, Opened, Sentence, Snapshot, Started
from .arguments import Command

if TYPE_CHECKING:
    from ..client import Build, Cluster, Preview, StudyPreview, Weather
    from ..client.project.deflation import Deflated


def act(command: Command) -> Any:
    """Do what `command` says, and answer. Raises TransientError.

    `train`, `study`, `job` and `bag` need their code.
    """
    values = dict(command.values)
    return ACTS[command.verb](**values, **({"dry_run": True} if command.dry_run else {}))


def declare(*, dry_run: bool = False, **values: Any) -> Cluster | Preview:
    """Declare a cluster, or show what would be created."""
    declaration = client.Declaration(**values)
    return foreseen(client.preview(declaration)) if dry_run else client.declare(declaration)


def train(
    command: Command,
    source: str,
    *,
    line_offset: int = 0,
    notebook: Collection[str] = (),
    folder: Path | None = None,
) -> Launched:
    """Check the code in `source` and declare a run of it.

    Of a cell: `notebook`, names that only the notebook knows, and `line_offset`, how many of its lines stand above
    the code. Of a file: the `folder` in which it lies.
    """
    values = dict(command.values)
    values["include"] = included(values.get("include", ()))
    _check(source, values, (), line_offset, notebook, folder)
    chosen = client.cluster(values.pop("cluster", None))
    since = chosen.state.seq
    return Launched(client.train(source=source, line_offset=line_offset, cluster=chosen, **values), since)


def study(
    command: Command,
    source: str,
    *,
    line_offset: int = 0,
    notebook: Collection[str] = (),
    folder: Path | None = None,
) -> Begun | StudyPreview:
    """The same of a study, all of whose runs train that code; or show what it would train where."""
    values = dict(command.values)
    values["include"] = included(values.get("include", ()))
    tried = [each.name for each in parse_space(values["over"])] if values.get("over") else []
    _check(source, values, tried, line_offset, notebook, folder)
    before = {each.identity: each.state.seq for each in client.clusters()}
    answer = client.declare_study(source=source, line_offset=line_offset, dry_run=command.dry_run, **values)
    return Begun(answer, before.get(answer.cluster.identity, 0)) if isinstance(answer, client.Study) else answer


def job(command: Command, source: str = "", *, line_offset: int = 0) -> Started:
    """Declare a job: of its command, or of the code in `source`, above which a cell has so many lines."""
    values = dict(command.values)
    values["include"] = included(values.get("include", ()))
    command_words = values.get("command", "").split()
    if not command_words:
        cell.check_syntax(source, line_offset)
    for path in map(Path, values["include"]):
        if path.suffix == ".py" and path.name in command_words:
            cell.check_syntax(path.read_text(encoding="utf-8", errors="replace"), file=path.name)
    chosen = client.cluster(values.pop("cluster", None))
    return Started(client.declare_job(values.pop("command", ""), source=source, cluster=chosen, **values))


def bag(
    command: Command, source: str, *, line_offset: int = 0, notebook: Collection[str] = (), folder: Path | None = None
) -> Opened:
    """Declare a bag of the function in `source`."""
    values = dict(command.values)
    values["include"] = included(values.get("include", ()), folder)
    chosen = client.cluster(values.pop("cluster", None))
    since = chosen.state.seq
    found = client.declare_bag(source=source, line_offset=line_offset, notebook=notebook, cluster=chosen, **values)
    return Opened(found, since)


def stalls(command: Command, source: str = "", *, line_offset: int = 0, notebook: Collection[str] = ()) -> Measured:
    """Declare a measure of stalls: of a run, of a model of Tensor2Tensor, or of what the code in `source` defines."""
    values = dict(command.values)
    if source:
        values["include"] = included(values.get("include", ()))
        _check(source, values, (), line_offset, notebook, None)
    found = client.declare_stalls(source=source, line_offset=line_offset or 1, **values)
    return Measured(found, found.cluster.state.seq)


def _check(
    source: str, values: Mapping[str, Any], tried: Collection[str], line_offset: int, notebook: Collection[str],
    folder: Path | None,
) -> None:  # fmt: skip
    """`tried`: the names of parameters that a study tries values of."""
    params = dict.fromkeys(values.get("params", ()), "--param") | dict.fromkeys(tried, "--over")
    cell.check(
        source, notebook, line_offset=line_offset, include=values["include"], folder=folder,
        own_model=not values.get("model"), params=params,
    )  # fmt: skip


def _export(run: str, cluster: str | None = None, **how: Any) -> Path:
    return client.run(run, cluster).export(**how)


def _tensorboard(run: str, cluster: str | None = None, **how: Any) -> Path:
    return client.run(run, cluster).tensorboard(**how)


def _list(all: bool = False) -> Listing:
    found = client.clusters(all=all)
    return Listing(found, client.unreadable(), client.revive(found))


def _status(name: str | None = None) -> Snapshot:
    cluster = client.cluster(name)
    state = present(cluster)
    unattended = " ".join(client.revive([cluster]))
    run = foreground.run(state)
    forecast = forecast_line(cluster.run(run.name)) if run and not run.over else ""
    return Snapshot(state, forecast, unattended)


def _cost(name: str | None = None) -> Bill:
    return client.cluster(name).cost()


def _resize(name: str, spec: str = "", ps: int | None = None, give_up: GiveUp | None = None) -> Sentence:
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
    return Sentence(f"Next on {name}: {', '.join(each.name for each in cluster.state.queue) or run}.")


def _agree(name: str, run: str = "") -> Sentence:
    if not run:
        return Sentence(f"{name} gives up {', '.join(client.cluster(name).agree())}.")
    client.cluster(name).run(run).agree()
    return Sentence(f"{run} gets the workers that were proposed.")


def _stop(name: str, run: str) -> Sentence:
    if run in client.cluster(name).state.studies:
        client.cluster(name).study(run).stop()
        return Sentence(f"{run} asks for no further trial, and those that train end with a last checkpoint.")
    if run in client.cluster(name).state.jobs:
        client.cluster(name).job(run).stop()
        return Sentence(f"{run} ends as soon as what it keeps is here.")
    if run in client.cluster(name).state.bags:
        client.cluster(name).bag(run).stop()
        return Sentence(f"{run} begins no further job.")
    chosen = client.cluster(name).run(run)
    before = chosen.cluster.state
    chosen.stop()
    if chosen.name in [each.name for each in before.queue]:
        return Sentence(f"{run} does not wait any more.")
    over = before.runs[run].over
    return Sentence(f"{run} was over already." if over else f"{run} ends as soon as its last checkpoint is here.")


def _logs(name: str, worker: str, lines: int = 200) -> Sentence:
    logged = client.cluster(name).logs(worker, lines)
    return Sentence(logged.rstrip("\n") or f"{worker} has logged nothing yet.")


def _events(name: str | None = None, kind: str | None = None, follow: bool = False) -> Iterator[Sentence]:
    cluster = client.cluster(name)
    before = cluster.events(kind)
    yield from map(Sentence, client.revive([cluster]))
    event = None
    for event in watch(cluster, kind) if follow else before:
        yield Sentence(text.event_line(event, dated=True))
    if event is None:
        yield Sentence("No events.")


def _delete(**which: Any) -> Iterator[Deleted | Sentence]:
    cluster = None
    for cluster in client.deleted(**which):
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
