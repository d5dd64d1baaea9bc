"""The weather of the emulator, read and set through a cluster on it.

The emulator parses settings and refuses invalid ones. All clusters without a project share one
weather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...catalog import zones_with
from ...catalog.traces import GOOGLE_H100_2025, Trace, drawn, read_traces
from ...errors import DeclarationError, reason_of, unknown
from ...spec import WORKER
from .emulator_api import ask, emulator_of

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_PATH = "/emulator/v1/weather"
_BESIDE = ("rate", "since", "anchors", "description", "wanted_back")
"""Values of an answer that are not settings."""

_OPTION = "--availability"


def replayed_traces(text: str, places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Return the traces of `--availability` for the emulator.

    Parameters
    ----------
    text
        The value, such as `us-east1-b=FILE:us-east1-f,...`. The traces of a part without a zone
        are assigned, in order, to those `places` that no other part names.
    places
        Zones and GPUs.

    Raises
    ------
    DeclarationError
        A file is unreadable, or a trace is unknown.
    """
    assigned: list[dict[str, str]] = []
    parts = [part.strip() for part in text.split(",")]
    named = {part.partition("=")[0].partition(":")[0].lower() for part in parts if "=" in part}
    left = [(zone, gpu) for zone, gpu in places if zone not in named]
    for part in parts:
        place, equals, source = part.rpartition("=")
        file, found = _traces(source)
        if not equals:
            assigned += [_assigned(*left.pop(0), file, trace) for trace in found[: len(left)]]
            continue
        if len(found) > 1:
            names = [trace.name for trace in found]
            fix = f"Name one: {place}={source}:{names[0]}. Its traces: {', '.join(names[:8])}."
            raise DeclarationError(
                f"{file} has {len(found)} traces, but {place} can replay only one",
                where=_OPTION,
                fix=fix,
            )
        zone, _, gpu = place.lower().partition(":")
        assigned.append(_assigned(zone.strip(), gpu.strip(), file, found[0]))
    return assigned


def _traces(source: str) -> tuple[str, list[Trace]]:
    """Return a file's name and its traces, or only the trace named after the colon."""
    file, _, chosen = source.partition(":")
    if file.strip() == GOOGLE_H100_2025:
        name = GOOGLE_H100_2025
        traces = list(drawn())
    else:
        before, ending, chosen = source.partition(".csv")
        chosen = chosen.removeprefix(":")
        path = Path(before + ending).expanduser()
        name = path.name
        try:
            traces = list(read_traces(path.read_text(encoding="utf-8"), name))
        except (OSError, UnicodeDecodeError) as error:
            reason = reason_of(error)
            raise DeclarationError(f"{path} cannot be read: {reason}", where=_OPTION) from None
    chosen = chosen.strip().lower()
    if not chosen:
        return name, traces
    found = [trace for trace in traces if chosen in (trace.name, trace.zone)]
    if not found:
        raise unknown("trace", chosen, [trace.name for trace in traces], at=name, where=_OPTION)
    return name, found


def _assigned(zone: str, gpu: str, file: str, trace: Trace) -> dict[str, str]:
    return {"zone": zone, "gpu": gpu, "name": file, "csv": trace.to_csv()}


@dataclass(frozen=True)
class Weather:
    """The weather of the emulator.

    Attributes
    ----------
    settings : Mapping[str, Any]
        The settings by name of their option.
    rate : float
        The number of emulated seconds per second, for lifetimes, boot times, limits and bills.
    description : tuple of str
        One sentence for each setting that differs from its default.
    """

    settings: Mapping[str, Any]
    rate: float
    description: tuple[str, ...]

    def __str__(self) -> str:
        fair = "Fair weather: no revocations, no refusals, and real time."
        shown = [
            f"{key.replace('_', '-'):20} {_shown(value)}" for key, value in self.settings.items()
        ]
        return "\n".join([*(self.description or [fair]), "", *shown])

    def __repr__(self) -> str:
        return str(self)


def weather(cluster: BaseCluster, settings: Mapping[str, Any]) -> Weather:
    """Change settings and return the weather.

    Parameters
    ----------
    cluster
        A cluster on the emulator.
    settings
        Settings by name of their option; empty to read the weather only.

    Raises
    ------
    DeclarationError
        A setting is unknown or invalid.
    ClusterError
        The cluster is in a project.
    UnreachableError
        The emulator does not answer.
    """
    url = emulator_of(cluster, "there is no emulated weather", "its emulator has weather")
    given = {
        key: _with_file(value) if key == "revocations" else value for key, value in settings.items()
    }
    availability = given.get("availability")
    if isinstance(availability, (str, Path)) and availability != "none":
        given["availability"] = replayed_traces(str(availability), _places(cluster))
    reclaim = given.get("reclaim")
    if reclaim is not None and reclaim != "none":
        given["reclaim"] = {
            "said": str(reclaim),
            "vms": _transient(cluster),
            "cluster": cluster.name,
        }
    answer = ask(url, "PATCH" if given else "GET", _PATH, given)
    current = {key: value for key, value in answer.items() if key not in _BESIDE}
    return Weather(current, answer["rate"], tuple(answer["description"]))


def _with_file(value: Any) -> Any:
    """Return the content of the file if the value is the path of one, else the value."""
    if (
        not isinstance(value, (str, Path))
        or value in ("none", "published")
        or str(value).startswith("every=")
    ):
        return value
    path = Path(value).expanduser()
    if not path.exists() and not path.suffix and isinstance(value, str):
        return value  # a mistyped word rather than a path: the emulator suggests the nearest one
    try:
        return {"name": path.name, "csv": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise DeclarationError(f"{path} cannot be read: {reason}", where="--revocations") from None


def _transient(cluster: BaseCluster) -> list[str]:
    """Return the IDs of the cluster's running transient workers."""
    workers = [
        vm
        for vm in cluster.state.serving
        if vm.role == WORKER and vm.provisioning_model != "standard"
    ]
    return [vm.vm_id for vm in workers if vm.vm_id and vm.state in ("booting", "ready")]


def _places(cluster: BaseCluster) -> list[tuple[str, str]]:
    """Return zones and GPUs for traces: the cluster's own, then other zones with its GPUs."""
    own: list[tuple[str, str]] = []
    spec = cluster.state.spec
    if spec:
        for group in spec.groups:
            zones = [group.zone] if group.zone else spec.zones_for(group.accelerator)
            own += [(zone, group.accelerator) for zone in zones]
    return list(dict.fromkeys([*own, *((zone, gpu) for _, gpu in own for zone in zones_with(gpu))]))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    return str(value)
