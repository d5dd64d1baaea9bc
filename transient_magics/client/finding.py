"""Finding clusters, runs and studies of this machine, and clusters that another machine declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from .. import emulator, places
from ..errors import ClusterError, DeclarationError
from ..journal import ClusterState
from ..protocol import layout
from ..spec import parse_name
from ..spec.grammar import instead
from . import commands, folders
from .handles import Bag, Cluster, Job, Run, Study
from .programs import ask
from .results.comparison import Comparison, Runs


def cluster(name: str | None = None) -> Cluster:
    """The cluster called `name`, else the one declared last; not one that a study has for itself, if there is another.

    Raises ClusterError where there is none.
    """
    if name is None:
        if living := clusters():
            return next((each for each in reversed(living) if not each.of_study), living[-1])
        raise ClusterError("There is no cluster yet", fix="Declare one: %transient_cluster k80x4")
    name = parse_name(name, "the cluster's name")
    if not (places.cluster(name) / layout.SPEC).exists():
        names = [each.name for each in clusters()]
        fix = instead(name, names) if names else "None is there now. Declare one: %transient_cluster k80x4"
        raise ClusterError(f"There is no cluster {name}", fix=fix)
    return Cluster(name)


def attach(name: str | None = None, project: str | None = None) -> Cluster:
    """Like `cluster`; one that another machine declared (in `project`, else on the emulator) is followed from here on.

    That takes some seconds, and a cluster with `--controller cluster`. Raises ClusterError or CloudError.
    """
    known = name is None or (places.cluster(parse_name(name, "the cluster's name")) / layout.SPEC).exists()
    if name is None or known or not (project or emulator.running()):
        return cluster(name)
    found = Path(ask("attach", "Attaching", name, *([project] if project else []))["folder"])
    commands.start_controller(found)
    return cluster(name)


def clusters(all: bool = False) -> list[Cluster]:
    """Clusters of this machine that are not deleted (`all`: those too), in the order of their declaration.

    Those of which neither declaration nor journal can be read are passed over (`unreadable`).
    """
    found = [Cluster(folder.name) for folder in folders.readable()]
    return found if all else [each for each in found if not each.state.over]


def run(name: str | None = None, cluster: Cluster | str | None = None) -> Run:
    """The run called `name` (of `cluster`, else of whichever has it last), or the latest. Raises ClusterError."""
    if cluster is not None:
        return _cluster(cluster).run(name)
    return _holder("run", name, lambda state: state.runs, _apart_from_trials).run(name)


def study(name: str | None = None, cluster: Cluster | str | None = None) -> Study:
    """The study called `name` (of `cluster`, else of whichever has it last), or the latest. Raises ClusterError."""
    if cluster is not None:
        return _cluster(cluster).study(name)
    return _holder("study", name, lambda state: state.studies).study(name).parts[0]


def job(name: str | None = None, cluster: Cluster | str | None = None) -> Job:
    """The job called `name` (of `cluster`, else of whichever has it last), or the latest. Raises ClusterError."""
    if cluster is not None:
        return _cluster(cluster).job(name)
    return _holder("job", name, lambda state: state.jobs).job(name)


def bag(name: str | None = None, cluster: Cluster | str | None = None) -> Bag:
    """The bag called `name` (of `cluster`, else of whichever has it last), or the latest. Raises ClusterError."""
    if cluster is not None:
        return _cluster(cluster).bag(name)
    return _holder("bag", name, lambda state: state.bags).bag(name)


def runs(cluster: Cluster | str | None = None) -> Runs:
    """All runs (of `cluster`, else of every one), oldest first: a list that shows itself as a table."""
    chosen = [_cluster(cluster)] if cluster is not None else clusters(all=True)
    return Runs(Run(name, each) for each in chosen for name in each.state.runs)


def compare(*runs: Run) -> Comparison:
    """Put runs beside each other: a table and, in a notebook, their losses and evaluations over the steps.

    Raises DeclarationError where there are none, or something that is no run.
    """
    found = [each for given in runs for each in (given if isinstance(given, list | tuple) else [given])]
    if not found or not all(isinstance(each, Run) for each in found):
        raise DeclarationError("compare takes runs", fix='For example: tm.compare(tm.run("run-1"), tm.run("run-2"))')
    return Comparison(found)


def _holder(
    kind: str,
    name: str | None,
    known: Callable[[ClusterState], Mapping[str, object]],
    told: Callable[[ClusterState], Iterable[str]] | None = None,
) -> Cluster:
    """Of clusters, deleted ones too, the last that has `name`, else any of that kind.

    Raises ClusterError where there is none; it tells those of `told`, else all `known`.
    """
    names = list[str]()
    for each in reversed(clusters(all=True)):
        state = each.state
        if (name in known(state)) if name else known(state):
            return each
        names = [*(told or known)(state), *names]
    if name is None:
        raise ClusterError(f"There is no {kind} yet")
    raise ClusterError(f"There is no {kind} {name}", fix=instead(name, names))


def _apart_from_trials(state: ClusterState) -> list[str]:
    return [name for name, run in state.runs.items() if not run.spec.study]


def _cluster(given: Cluster | str) -> Cluster:
    return given if isinstance(given, Cluster) else cluster(given)
