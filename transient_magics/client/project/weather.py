"""The weather of this user's emulator: read and set through a cluster that lives in it."""

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
"""What an answer tells that is no setting."""

_OPTION = "--availability"


def replayed_traces(text: str, places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """What the emulator is told. Of a part without a zone, the file's traces are dealt out in their
    order to the `places` (zone and GPU) that no other part names, as far as these go. Raises
    DeclarationError.
    """
    told: list[dict[str, str]] = []
    parts = [part.strip() for part in text.split(",")]
    named = {part.partition("=")[0].partition(":")[0].lower() for part in parts if "=" in part}
    left = [(zone, gpu) for zone, gpu in places if zone not in named]
    for part in parts:
        place, equals, source = part.rpartition("=")
        file, found = _traces(source)
        if not equals:
            told += [_told(*left.pop(0), file, trace) for trace in found[: len(left)]]
            continue
        if len(found) > 1:
            names = [trace.name for trace in found]
            fix = f"Write {place}={source}:{names[0]}; there are {', '.join(names[:8])}."
            raise DeclarationError(f"{file} has {len(found)} traces", where=_OPTION, fix=fix)
        zone, _, gpu = place.lower().partition(":")
        told.append(_told(zone.strip(), gpu.strip(), file, found[0]))
    return told


def _traces(source: str) -> tuple[str, list[Trace]]:
    """The file's name, and its traces, or those that the part after the name means."""
    file, _, wanted = source.partition(":")
    if file.strip() == GOOGLE_H100_2025:
        name = GOOGLE_H100_2025
        traces = list(drawn())
    else:
        before, ending, wanted = source.partition(".csv")
        wanted = wanted.removeprefix(":")
        path = Path(before + ending).expanduser()
        name = path.name
        try:
            traces = list(read_traces(path.read_text(encoding="utf-8"), name))
        except (OSError, UnicodeDecodeError) as error:
            reason = reason_of(error)
            raise DeclarationError(f"{path} cannot be read: {reason}", where=_OPTION) from None
    wanted = wanted.strip().lower()
    if not wanted:
        return name, traces
    found = [trace for trace in traces if wanted in (trace.name, trace.zone)]
    if not found:
        raise unknown("trace", wanted, [trace.name for trace in traces], at=name, where=_OPTION)
    return name, found


def _told(zone: str, gpu: str, file: str, trace: Trace) -> dict[str, str]:
    return {"zone": zone, "gpu": gpu, "name": file, "csv": trace.to_csv()}


@dataclass(frozen=True)
class Weather:
    """What is set, by the names of the options, and what that means.

    `rate` is how many emulated seconds pass in one (for lifetimes, boot times, limits, bills);
    `description` has one sentence for each thing that differs from fair weather.
    """

    settings: Mapping[str, Any]
    rate: float
    description: tuple[str, ...]

    def __str__(self) -> str:
        fair = "Fair weather: nothing is revoked or refused, and time passes as ever."
        shown = [
            f"{key.replace('_', '-'):20} {_shown(value)}" for key, value in self.settings.items()
        ]
        return "\n".join([*(self.description or [fair]), "", *shown])

    def __repr__(self) -> str:
        return str(self)


def weather(cluster: BaseCluster, settings: Mapping[str, Any]) -> Weather:
    """Set what is given, and tell what the weather is then. Raises DeclarationError, ClusterError,
    UnreachableError.
    """
    url = emulator_of(cluster, "the weather is Google's", "the weather of its emulator can be set")
    given = {
        key: _with_file(value) if key == "revocations" else value for key, value in settings.items()
    }
    if isinstance(said := given.get("availability"), (str, Path)) and said != "none":
        given["availability"] = replayed_traces(str(said), _places(cluster))
    if (said := given.get("reclaim")) is not None and said != "none":
        given["reclaim"] = {"said": str(said), "vms": _transient(cluster), "cluster": cluster.name}
    answer = ask(url, "PATCH" if given else "GET", _PATH, given)
    told = {key: value for key, value in answer.items() if key not in _BESIDE}
    return Weather(told, answer["rate"], tuple(answer["description"]))


def _with_file(value: Any) -> Any:
    """The text of the file that is named, where one is."""
    if (
        not isinstance(value, (str, Path))
        or value in ("none", "published")
        or str(value).startswith("every=")
    ):
        return value
    path = Path(value).expanduser()
    if not path.exists() and not path.suffix and isinstance(value, str):
        return value  # a slip of a word rather than of a path: the emulator knows the nearest one
    try:
        return {"name": path.name, "csv": path.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise DeclarationError(f"{path} cannot be read: {reason}", where="--revocations") from None


def _transient(cluster: BaseCluster) -> list[str]:
    """The ids of its transient workers that run."""
    workers = [
        vm
        for vm in cluster.state.serving
        if vm.role == WORKER and vm.provisioning_model != "standard"
    ]
    return [vm.vm_id for vm in workers if vm.vm_id and vm.state in ("booting", "ready")]


def _places(cluster: BaseCluster) -> list[tuple[str, str]]:
    """Zones and GPUs for traces that name none: the cluster's own, then the others that have its
    GPUs.
    """
    spec = cluster.state.spec
    if spec:
        own = [
            (zone, group.accelerator)
            for group in (spec.groups if spec else ())
            for zone in ([group.zone] if group.zone else spec.zones_for(group.accelerator))
        ]
    else:
        own = []
    return list(dict.fromkeys([*own, *((zone, gpu) for _, gpu in own for zone in zones_with(gpu))]))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    return str(value)
