"""`--availability us-east1-b=FILE:us-east-1f,...`: which trace of which file each zone of the
emulator replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...catalog.traces import GOOGLE_H100_2025, Trace, drawn, read_traces
from ...errors import DeclarationError, unknown

_OPTION = "--availability"


def replayed(text: str, places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
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
            if isinstance(error, OSError):
                reason = error.strerror
            else:
                reason = "it is not UTF-8 text"
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
