"""Declarations and agreements of this machine's user, independent of the journal.

A journal that a controller on a VM continued, or that comes out of a bucket, is not trusted: user
code runs beside its writer. The rented VMs, their project, image, account and limits, and the
declarations of runs therefore come only from files of this machine. These are `spec.json` or, after
a handover, `agreed.json` (the result of this machine's own controller and commands), and each run's
`run.json`.
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
"""A file in the folders of clusters that another machine declared.

It describes in a sentence what this machine follows.
"""
_BROUGHT = "brought"
_Spec = TypeVar("_Spec")


def run_folder(directory: Path, run: str) -> Path:
    """Return the folder of a run in its cluster's folder. Raises ClusterError if invalid."""
    try:
        return directory / layout.RUNS / checked_name(run)
    except ValueError as error:
        raise ClusterError(f"Invalid name of a run: {error}") from None


# The cluster


def agree(directory: Path, spec: ClusterSpec) -> None:
    """Record the cluster as defined by this machine's decisions and its user's commands."""
    write_atomically(directory / AGREED, json.dumps(spec.to_dict(), indent=1), durable=False)


def was_governed(directory: Path) -> bool:
    """Return whether a controller was ever in charge of the cluster, according to this machine."""
    return (directory / AGREED).exists()


def agree_to_move(directory: Path, spec: ClusterSpec | None) -> None:
    """Record the destination of a move that the user commanded; None: the move is over."""
    if spec is None:
        (directory / _MOVING).unlink(missing_ok=True)
    else:
        write_atomically(directory / _MOVING, json.dumps(spec.to_dict(), indent=1), durable=False)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of this machine's user: the cluster, its move, and a run with a deadline."""

    spec: ClusterSpec
    moving: ClusterSpec | None = None
    deadline: RunSpec | None = None
    """A run that was declared on this machine, whose deadline decides about workers."""


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
            f"The relocation of {spec.name} cannot be read: {error}", where=str(path)
        ) from error
    if run and not is_brought(directory, run):
        # A run that is not declared here has no valid deadline.
        with suppress(ClusterError):
            declared = declared_run(directory, unknown_run(run)).spec
            deadline = declared if declared.finish_by else None
    return Agreement(spec, moving, deadline)


def note_asked(directory: Path, command: Command) -> None:
    """Record a command of this machine's user that the controller on a VM executes."""
    with (directory / _ASKED).open("ab") as file:
        file.write(command.encoded)


def was_asked(directory: Path, command: Command) -> bool:
    """Return whether this machine's user gave exactly this command."""
    try:
        return command.encoded in (directory / _ASKED).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return False


def agreed(directory: Path, history: Iterable[Event] = ()) -> ClusterSpec:
    """Return the declaration of the cluster according to this machine's files.

    Without `agreed.json` (an earlier version handed the cluster over), `history` before the first
    handover decides. Raises DeclarationError if the declaration cannot be read.
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
    raise DeclarationError("The cluster's declaration does not exist", where=str(directory))


def unreadable(directory: Path) -> str:
    """Return why the cluster's folder cannot be read, in one sentence; empty if it can."""
    try:
        ClusterSpec.from_dict(checks.parsed_object((directory / layout.SPEC).read_bytes()))
        with suppress(FileNotFoundError), (directory / layout.JOURNAL).open("rb"):
            pass
    except (OSError, ValueError, DeclarationError) as error:
        if isinstance(error, DeclarationError):
            why = error.what
        else:
            why = str(error)
        return (
            f"The folder of {directory.name} on this machine cannot be read: {why.rstrip('.')} "
            f"({directory})."
        )
    return ""


def _before_the_first_hand_over(spec: ClusterSpec, history: Iterable[Event]) -> ClusterSpec:
    state = ClusterState()
    for event in history:
        if isinstance(event, events.ControllerMoved) and event.vm:
            return state.spec or spec
        state = fold(state, event)
    return spec


def was_elsewhere(history: Iterable[Event]) -> bool:
    """Return whether another machine was ever in charge.

    The journal since then is not from this machine.
    """
    return any(isinstance(event, events.ControllerMoved) and event.vm for event in history)


def differences(before: ClusterSpec | None, present: ClusterSpec) -> list[str]:
    """Return the fields in which a journal differs from this machine's declaration, in order."""
    if before:
        other = asdict(before)
    else:
        other = {}
    return [name for name, value in asdict(present).items() if other.get(name) != value]


def resized(
    present: ClusterSpec, target: ClusterSpec, state: ClusterState, now: float
) -> ClusterSpec:
    """Return `present` with the workers that this machine's user requests.

    Only the groups of `target` are used, with their prices and zones, which were computed from
    `present`, and its number of preparation VMs if that is larger. Traffic has the price of the
    parameter servers' zone, even if most workers run elsewhere.

    Raises ClusterError if they are too many, or if they would exceed the cost limit before the VMs
    end automatically. The end cannot be moved: Compute Engine changes the time limit of stopped
    VMs, not of running ones (instances.setScheduling).
    """
    if target.worker_count > present.max_workers:
        what = (
            f"{target.worker_count} workers exceed the limit of {present.max_workers} for "
            f"{present.name}"
        )
        raise ClusterError(
            what, fix="To have more, declare another cluster with a larger --max-workers."
        )
    # A declaration of an earlier version has no such price. The end of its VMs follows from its
    # cost until now.
    end_hourly = present.end_hourly or present.most_hourly
    new = replace(
        present,
        groups=target.groups,
        prices=target.prices,
        candidates=target.candidates,
        end_hourly=end_hourly,
        preparation=max(present.preparation, target.preparation),
    )
    servers = (vm.zone for vm in state.serving if vm.role == PARAMETER_SERVER)
    home = next(servers, new.home_zone)
    traffic = {zone: transfer_price(zone, home).dollars_per_gib for zone in new.all_zones}
    # Traffic with zones that the cluster leaves stays on the bill.
    traffic = {
        **present.transfer_prices,
        **traffic,
    }
    new = replace(new, transfer_prices={zone: price for zone, price in traffic.items() if price})
    cost = at_the_end(state, new, now)
    if (
        present.max_cost is not None
        and cost > present.max_cost * (1 + 1e-9)
        and new.most_hourly > present.most_hourly
    ):
        left = render_duration(state.seconds_left(now))
        if new.preparation:
            prepared = f" with {new.preparation} VMs for --prep"
        else:
            prepared = ""
        what = (
            f"{new.spec}{prepared} could cost {render_money(cost)} until the VMs of "
            f"{present.name} end in {left}"
        )
        raise ClusterError(
            f"{what}, more than its limit of {render_money(present.max_cost)}; Compute Engine "
            "cannot change the end of a running VM",
            fix="Use fewer workers. A cluster declared with --max-workers N ends early enough for "
            "N workers.",
        )
    return new


# Its runs, jobs, bags and studies


def declared_below(place: Path, file: str) -> list[str]:
    """Return the names of the folders in `place` that contain `file`, oldest first.

    `file` is written last. Other processes may remove folders during the search.
    """
    found = list[tuple[float, str]]()
    with suppress(FileNotFoundError):
        for path in place.glob(f"*/{file}"):
            with suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path.parent.name))
    return [name for _, name in sorted(found) if is_name(name)]


def waiting(directory: Path, state: ClusterState, kind: str) -> list[str]:
    """Return the names of declared work that no controller has recorded yet, oldest first."""
    declared = state.of_kind(kind)
    found = declared_below(directory / KINDS[kind].folder, KINDS[kind].file)
    return [name for name in found if name not in declared]


def read_declaration(
    directory: Path, kind: str, name: str, spec_of: Callable[[Mapping[str, object]], _Spec]
) -> _Spec:
    """Return the user's declaration of work in the cluster's folder.

    Parameters
    ----------
    directory
        The cluster's folder.
    kind
        The kind of work.
    name
        The name of the work.
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
    """Return the run with the declaration in its `run.json` on this machine.

    A run whose declaration came from a VM has no deadline: only this machine's user may rent on
    demand. Raises ClusterError if there is no declaration.
    """
    # This refuses an invalid name.
    run_folder(directory, run.name)
    spec = read_declaration(
        directory, "run", run.name, lambda values: RunSpec.from_dict({**values, "token": ""})
    )
    if is_brought(directory, run.name):
        spec = replace(spec, finish_by=0.0, gpus=(), zones=(), max_cost=None)
    return replace(run, spec=spec)


def note_brought(directory: Path, run: str) -> None:
    """Record that the code of a run belongs to another machine, before the code arrives."""
    places.private(directory / _BROUGHT)
    (directory / _BROUGHT / checked_name(run)).touch()


def forget_brought(directory: Path, run: str) -> None:
    """Remove the record of `note_brought`, after all files of that run are removed."""
    (directory / _BROUGHT / checked_name(run)).unlink(missing_ok=True)


def is_brought(directory: Path, run: str) -> bool:
    """Return whether the code of the run came from a VM: another machine's user declared it."""
    return (directory / _BROUGHT / run).exists()


def agree_to_code(directory: Path, run: str, *, trust: bool) -> None:
    """Check that this machine's user agrees to run the code of a run from another machine here.

    `trust` records the agreement to the present code. Raises AgreementError without an agreement.
    """
    if not is_brought(directory, run):
        return
    folder = run_folder(directory, run)
    note = directory / _BROUGHT / run
    digest = fingerprint(folder)
    if trust:
        note.write_text(digest, encoding="utf-8")
    elif note.read_text(encoding="utf-8") != digest:
        what = f"The code of {run} came from a VM of {directory.name} and would run on this machine"
        raise AgreementError(
            f"{what}: {folder / layout.CELL}, SHA-256 of all files {digest}",
            fix="Check it; then agree to it with trust=True (on the command line --trust).",
        )


def fingerprint(folder: Path) -> str:
    """Return the SHA-256 of a run's executable files.

    These are its declaration, its cell, its packages and its included files.
    """
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
    """Describe in one sentence what an attaching machine would follow.

    `seat` is the controller's VM.
    """
    if spec.project:
        where = f"project {spec.project}"
    else:
        where = "the emulator"
    limits = f"{spec.max_seconds / 3600:g} h" + (
        f" and ${spec.max_cost:.2f}" if spec.max_cost is not None else ""
    )
    return (
        f"{spec.name} in {where}: {spec.spec}, limits {limits}; its controller runs on "
        f"{seat['name']} "
        f"(id {seat['id']}, {seat['zone']}, owner {seat['owner']})"
    )
