"""What this machine's user declared, and what of another machine's he agreed to, whatever a journal
says of it.

A journal that a controller on a VM went on writing, or that comes out of a bucket, is a stranger's
word there: user code runs beside it. So what is rented, in which project, with which image and
account and within which limits, and what a run is, follows from files of this machine alone:
`spec.json` or, since the cluster was handed over, `agreed.json` (what this machine's own controller
and commands made of it), and each run's `run.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from .. import places
from ..catalog import transfer_price
from ..errors import AgreementError, ClusterError, DeclarationError
from ..files import write_atomically
from ..kinds import KINDS
from ..protocol import checks, layout
from ..protocol.checks import checked_name, is_name
from ..protocol.cluster_commands import Command
from ..spec import PARAMETER_SERVER, ClusterSpec, RunSpec, render_duration, render_money
from . import events
from .cost import at_the_end
from .events import Event
from .folding import fold
from .state import ClusterState, RunState, unknown_run

AGREED = "agreed.json"
_MOVING = "moving.json"
_ASKED = "asked.jsonl"
ATTACHED = "attached"
"""A file in the folders of clusters that another machine declared: what this machine follows, in a
sentence.
"""
_BROUGHT = "brought"
_Spec = TypeVar("_Spec")


def run_folder(directory: Path, run: str) -> Path:
    """The folder of a run in the folder of its cluster. Raises ClusterError where `run` is no name."""
    try:
        return directory / layout.RUNS / checked_name(run)
    except ValueError as error:
        raise ClusterError(f"There is no such run: {error}") from None


# The cluster


def agree(directory: Path, spec: ClusterSpec) -> None:
    """Note what the cluster is by this machine's own decisions and its user's commands."""
    write_atomically(directory / AGREED, json.dumps(spec.to_dict(), indent=1), durable=False)


def was_governed(directory: Path) -> bool:
    """Return whether a controller has ever been in charge of the cluster, whatever its journal
    says.
    """
    return (directory / AGREED).exists()


def agree_to_move(directory: Path, spec: ClusterSpec | None) -> None:
    """Note where the cluster moves to, by a command of this machine's user; None: the move is over."""
    if spec is None:
        (directory / _MOVING).unlink(missing_ok=True)
    else:
        write_atomically(directory / _MOVING, json.dumps(spec.to_dict(), indent=1), durable=False)


@dataclass(frozen=True, slots=True)
class Agreement:
    """What this machine's user agreed to rent: the cluster, where it moves to, and a run with a
    deadline.
    """

    spec: ClusterSpec
    moving: ClusterSpec | None = None
    deadline: RunSpec | None = None
    """A run that was declared on this machine, and whose deadline decides which workers the cluster
    has.
    """


def agreement(directory: Path, run: str = "") -> Agreement:
    """Return the agreement from the files in the cluster's folder.

    Parameters
    ----------
    directory
        The cluster's folder.
    run
        The run whose deadline decides about workers, if there is one.

    Raises
    ------
    DeclarationError
        The declaration cannot be read.
    """
    spec = agreed(directory)
    moving = None
    deadline = None
    path = directory / _MOVING
    try:
        if path.exists():
            moving = ClusterSpec.from_dict(checks.parsed_object(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise DeclarationError(
            f"The move of {spec.name} cannot be read: {error}", where=str(path)
        ) from error
    if run and not is_brought(directory, run):
        with suppress(ClusterError):  # a run without a declaration here has no deadline that counts
            declared = declared_run(directory, unknown_run(run)).spec
            deadline = declared if declared.finish_by else None
    return Agreement(spec, moving, deadline)


def note_asked(directory: Path, command: Command) -> None:
    """Note a command of this machine's user that the controller on a VM carries out."""
    with (directory / _ASKED).open("ab") as file:
        file.write(command.encoded)


def was_asked(directory: Path, command: Command) -> bool:
    """Return whether this machine's user gave this very command."""
    try:
        return command.encoded in (directory / _ASKED).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return False


def agreed(directory: Path, history: Iterable[Event] = ()) -> ClusterSpec:
    """What the cluster is as far as this machine knows by itself.

    Without a note (an earlier version handed the cluster over) by what `history` says before the
    first hand-over. Raises DeclarationError where the declaration cannot be read.
    """
    try:
        for name in (AGREED, layout.SPEC):
            if (path := directory / name).exists():
                spec = ClusterSpec.from_dict(checks.parsed_object(path.read_bytes()))
                own = name == AGREED or (directory / ATTACHED).exists()
                if own:
                    return spec
                return _before_the_first_hand_over(spec, history)
    except (OSError, ValueError) as error:
        raise DeclarationError(
            f"The cluster's declaration cannot be read: {error}", where=str(directory)
        ) from error
    raise DeclarationError("The cluster's declaration is gone", where=str(directory))


def unreadable(directory: Path) -> str:
    """Why nobody can say what the cluster in this folder is, in one sentence, or nothing."""
    try:
        ClusterSpec.from_dict(checks.parsed_object((directory / layout.SPEC).read_bytes()))
        with suppress(FileNotFoundError), (directory / layout.JOURNAL).open("rb"):
            pass
    except (OSError, ValueError, DeclarationError) as error:
        if isinstance(error, DeclarationError):
            why = error.what
        else:
            why = str(error)
        return f"The folder of {directory.name} on this machine cannot be read: {why.rstrip('.')} ({directory})."
    return ""


def _before_the_first_hand_over(spec: ClusterSpec, history: Iterable[Event]) -> ClusterSpec:
    state = ClusterState()
    for event in history:
        if isinstance(event, events.ControllerMoved) and event.vm:
            return state.spec or spec
        state = fold(state, event)
    return spec


def was_elsewhere(history: Iterable[Event]) -> bool:
    """Whether another machine was ever in charge: then what the journal says since is not this
    machine's.
    """
    return any(isinstance(event, events.ControllerMoved) and event.vm for event in history)


def differences(told: ClusterSpec | None, known: ClusterSpec) -> list[str]:
    """What a journal says of a cluster otherwise than this machine knows it: the fields, in order."""
    if told:
        other = asdict(told)
    else:
        other = {}
    return [name for name, value in asdict(known).items() if other.get(name) != value]


def resized(
    known: ClusterSpec, wanted: ClusterSpec, state: ClusterState, now: float
) -> ClusterSpec:
    """`known` with the workers that this machine's user asks for.

    Raises ClusterError where they are too many, or the money would not last for them until the VMs
    end by themselves: Compute Engine changes the time limit of VMs that are stopped, not of those
    that run (instances.setScheduling). Of what is `wanted` only the groups are taken, with their
    prices and zones, which were computed from `known`, and how many VMs may prepare mini-batches,
    where those are more. Traffic has the price of the zone in which the parameter servers are,
    wherever most workers are from now on.
    """
    if wanted.worker_count > known.max_workers:
        what = f"{wanted.worker_count} workers are more than the {known.max_workers} that {known.name} may have"
        raise ClusterError(what, fix="Declare the cluster with --max-workers.")
    # What was declared before there was such a price has VMs with the end that follows from what it
    # cost until now.
    end_hourly = known.end_hourly or known.most_hourly
    new = replace(
        known,
        groups=wanted.groups,
        prices=wanted.prices,
        candidates=wanted.candidates,
        end_hourly=end_hourly,
        preparation=max(known.preparation, wanted.preparation),
    )
    servers = (vm.zone for vm in state.serving if vm.role == PARAMETER_SERVER)
    home = next(servers, new.home_zone)
    traffic = {zone: transfer_price(zone, home).dollars_per_gib for zone in new.all_zones}
    traffic = {
        **known.transfer_prices,
        **traffic,
    }  # what was exchanged with zones that are left stays on the bill
    new = replace(new, transfer_prices={zone: price for zone, price in traffic.items() if price})
    cost = at_the_end(state, new, now)
    if (
        known.max_cost is not None
        and cost > known.max_cost * (1 + 1e-9)
        and new.most_hourly > known.most_hourly
    ):
        left = render_duration(state.seconds_left(now))
        if new.preparation:
            prepared = f" with {new.preparation} VMs for --prep"
        else:
            prepared = ""
        what = f"{new.spec}{prepared} could come to {render_money(cost)} until the VMs of {known.name} end in {left}"
        raise ClusterError(
            f"{what}, its limit is {render_money(known.max_cost)}, and Compute Engine moves no end of a VM that runs",
            fix="Take fewer workers. A cluster that is declared with --max-workers N ends as early as N workers need.",
        )
    return new


# Its runs, jobs, bags and studies


def declared_below(place: Path, file: str) -> list[str]:
    """The names of the folders in `place` that hold `file`, which is written last, oldest first.

    Whoever removes some of them, or all, may do so meanwhile.
    """
    found = list[tuple[float, str]]()
    with suppress(FileNotFoundError):
        for path in place.glob(f"*/{file}"):
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path.parent.name))
    return [name for _, name in sorted(found) if is_name(name)]


def waiting(directory: Path, state: ClusterState, kind: str) -> list[str]:
    """Return the names of declared work of a kind that no controller has recorded yet, oldest
    first.
    """
    known = state.of_kind(kind)
    found = declared_below(directory / KINDS[kind].folder, KINDS[kind].file)
    return [name for name in found if name not in known]


def read_declaration(
    directory: Path, kind: str, name: str, spec_of: Callable[[Mapping[str, object]], _Spec]
) -> _Spec:
    """Return what this machine's user declared of work in the cluster's folder.

    Parameters
    ----------
    spec_of
        Returns the declaration with these values, `name` among them. Raises ValueError.

    Raises
    ------
    ClusterError
        The declaration cannot be read.
    """
    path = directory / KINDS[kind].folder / name / KINDS[kind].file
    try:
        return spec_of({**checks.parsed_object(path.read_bytes()), "name": name})
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"The declaration of {name} cannot be read: {error}", where=str(path)
        ) from error


def declared_run(directory: Path, run: RunState) -> RunState:
    """The run with what its `run.json` on this machine says of it. Raises ClusterError where there
    is none.

    One whose declaration came from a VM has no deadline: on demand only this machine's user rents.
    """
    run_folder(directory, run.name)  # refuses an invalid name
    spec = read_declaration(
        directory, "run", run.name, lambda values: RunSpec.from_dict({**values, "token": ""})
    )
    if is_brought(directory, run.name):
        spec = replace(spec, finish_by=0.0, gpus=(), zones=(), max_cost=None)
    return replace(run, spec=spec)


def note_brought(directory: Path, run: str) -> None:
    """Note that the code of a run is another machine's, before it comes."""
    places.private(directory / _BROUGHT)
    (directory / _BROUGHT / checked_name(run)).touch()


def forget_brought(directory: Path, run: str) -> None:
    """Remove the note of `note_brought`, once nothing of the run from there is left in its place."""
    (directory / _BROUGHT / checked_name(run)).unlink(missing_ok=True)


def is_brought(directory: Path, run: str) -> bool:
    """Whether the code of the run came from a VM: another machine's user declared it."""
    return (directory / _BROUGHT / run).exists()


def agree_to_code(directory: Path, run: str, *, trust: bool) -> None:
    """See that this machine's user agrees to run the code of a run here, if it is not his own from
    here.

    With `trust` he does, to the code as it is now. Raises AgreementError where he has not.
    """
    if not is_brought(directory, run):
        return
    folder = run_folder(directory, run)
    note = directory / _BROUGHT / run
    digest = fingerprint(folder)
    if trust:
        note.write_text(digest, encoding="utf-8")
    elif note.read_text(encoding="utf-8") != digest:
        what = (
            f"The code of {run} came from a VM of {directory.name}, and would run on this machine"
        )
        raise AgreementError(
            f"{what}: {folder / layout.CELL}, SHA-256 of all of it {digest}",
            fix="Look at it; trust=True (on the command line --trust) agrees to it as it is.",
        )


def fingerprint(folder: Path) -> str:
    """SHA-256 of all of a run that can run: its declaration, cell, packages and what it includes."""
    found = [folder / layout.RUN, folder / layout.CELL]
    found += [
        path
        for name in (layout.INCLUDE, layout.PIP, layout.WHEELS)
        for path in (folder / name).rglob("*")
    ]
    digest = hashlib.sha256()
    for path in sorted(path for path in found if path.is_file()):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def shown(spec: ClusterSpec, seat: Mapping[str, object]) -> str:
    """What a machine that attaches would follow, in one sentence. `seat`: the controller's VM."""
    if spec.project:
        where = f"project {spec.project}"
    else:
        where = "the emulator"
    limits = f"{spec.max_seconds / 3600:g} h" + (
        f" and ${spec.max_cost:.2f}" if spec.max_cost is not None else ""
    )
    return (
        f"{spec.name} in {where}: {spec.spec}, limits {limits}; its controller runs on {seat['name']} "
        f"(id {seat['id']}, {seat['zone']}, owner {seat['owner']})"
    )
