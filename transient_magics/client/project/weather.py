"""The weather of this user's emulator, seen and set from a cluster that lives in it.

What can be set, and what is wrong with a setting, only the emulator knows: texts go to it as they
were typed, and its sentence comes back. All clusters of the user that have no project share one
weather.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...catalog import zones_with
from ...errors import DeclarationError
from ...spec import WORKER
from .availability import replayed
from .emulated import ask, emulator_of

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_PATH = "/emulator/v1/weather"
_BESIDE = ("rate", "since", "anchors", "description", "wanted_back")
"""What an answer tells that is no setting."""


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
        given["availability"] = replayed(str(said), _places(cluster))
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
        if isinstance(error, OSError):
            reason = error.strerror
        else:
            reason = "it is no UTF-8 text"
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
