"""Static pictures of bags: their points, their surrogates and their plans, as HTML and SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...client import text
from ...client.text import number
from ...panels.snapshot.axes import Axis, ticks
from ...panels.static.charts import Box, frame
from ...panels.static.markup import COLOURS, FAINT, attribute, escape, row, table
from ...protocol.run import Value
from ...protocol.space import Dimension
from .words import section_words

if TYPE_CHECKING:
    from .surrogate.section import Section

MOST_ROWS = 8
WIDTH = 380
HEIGHT = 250
_STRIP = 20
_TONES = {
    "done": "good",
    "running": "busy",
    "waiting": "quiet",
    "lost": "warn",
    "failed": "bad",
    "skipped": "quiet",
}
_FILLED = ("done", "running")
_BEHIND = ("skipped", "waiting", "done", "lost", "failed", "running")
_OVER = ("done", "skipped")
"""States of most points."""
_MANY = 600

NINETY = 1.6448536269514722
"""Standard deviations to each side that hold 90%."""
LEVELS = 24
"""Colours of a surface."""
_VALUES = (
    "#440154",
    "#482878",
    "#3e4989",
    "#31688e",
    "#26828e",
    "#1f9e89",
    "#35b779",
    "#6ece58",
    "#b5de2b",
    "#fde725",
)
_ERRORS = ("#000004", "#280b53", "#65156e", "#9f2a63", "#d44842", "#f57d15", "#fac127", "#fcffa4")
"""Colour scales from low to high (viridis and inferno).

Their lightness increases evenly, so values are distinguishable without colours.
"""
_WIDTH = 440
_HEIGHT = 260
_CURVE = Box(56, 14, _WIDTH - 70, _HEIGHT - 54)
_SURFACE = Box(56, 22, 268, 200)
_BAR = Box(340, 22, 12, 200)
_MOST_ROWS = 12
_MOST_COLUMNS = 6
_Rows = Sequence[Sequence[float | None]]


def bag_html(bag: Mapping[str, Any]) -> str:
    """Return the static rendering of a bag's snapshot (contract.Bag)."""
    return f"<div style='margin:6px 0'>{_head(bag)}{_points(bag)}{_vms(bag)}{_surrogate(bag)}</div>"


def _head(bag: Mapping[str, Any]) -> str:
    if bag["planned"]:
        share = bag["results"] / bag["planned"]
    else:
        share = 0.0
    tone = {"running": "busy", "declared": "busy", "finished": "good", "failed": "bad"}.get(
        bag["phase"], "quiet"
    )
    bar = (
        "<div style='height:6px;border-radius:3px;background:rgba(128,128,128,.25)'><div "
        f"style='height:6px;border-radius:3px;width:{share:.1%};background:{COLOURS['good']}'></div></div>"
    )
    if bag["per_result"] is not None:
        facts = [f"{text.money(bag['per_result'])} per result"]
    else:
        facts = []
    facts += [f"this bag {bag['cost_words']}"] if bag["cost_words"] else []
    facts += (
        [f"{'all results' if bag['stoppable'] else 'ended'} {bag['ends']}"] if bag["ends"] else []
    )
    legend = "".join(
        f"<span style='white-space:nowrap;margin-right:14px'>{_sample(state)} {many:,} "
        f"{state}</span>"
        for state, many in bag["counts"]
    )
    return (
        f"<div><span style='color:{COLOURS[tone]}'>●</span> <b>{escape(bag['name'])}</b>: "
        f"{escape(bag['words'])} "
        f"<span style='{FAINT}'>{escape(bag['about'])}</span>{bar}</div><div>{legend}</div>"
        f"<div style='{FAINT}'>{escape(' · '.join(facts))}</div>"
    )


def _points(bag: Mapping[str, Any]) -> str:
    """Return a picture of the points by two parameters, or by one and the first output.

    Points without that output are drawn below.
    """
    points = bag["points"]
    axes = [_axis(axis) for axis in bag["axes"]]
    if not points or len(axes) < 2:  # nothing to draw, or nothing to draw it over
        return ""
    parameters = sum(not axis["output"] for axis in bag["axes"])
    across, up = axes[:2]
    output = parameters < 2
    strip = _STRIP if output else 0
    box = Box(52, 18, WIDTH - 62, HEIGHT - 54 - strip)
    bottom = box.top + box.height + strip
    small = 2.0 if len(points) > _MANY else 3.0
    drawn = dict.fromkeys(_BEHIND, "")
    for state, _, values, outputs, _ in points:
        if output:
            if outputs:
                value = outputs[0]
            else:
                value = None
        else:
            value = values[1]
        if value is None:
            y = bottom - strip / 2
        else:
            y = box.y(up.place(value))
        drawn[state] += _form(
            state, box.x(across.place(values[0])), y, small if state in _OVER else 3.2
        )
    whole = Box(box.left, box.top, box.width, box.height + strip)
    share = box.height / whole.height
    named = [(1 - share + at * share, words) for at, words in up.named]
    named += [(strip / whole.height / 2, "none")] if strip else []
    lines = frame(whole, across.named, named, across.name, up.name)
    counts = ", ".join(f"{many} {state}" for state, many in bag["counts"])
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        "style='display:block;max-width:100%;height:auto' role='img' font-size='11' "
        f"fill='currentColor' aria-label='points of {attribute(bag['name'])}: {counts}'>"
        f"{lines}{''.join(_drawn(state, path) for state, path in drawn.items() if path)}</svg>"
    )


def _axis(sent: Mapping[str, Any]) -> Axis:
    return Axis(sent["name"], sent["kind"], sent["low"], sent["high"], tuple(sent["choices"]))


def _form(state: str, x: float, y: float, r: float) -> str:
    """Return the picture that widgets/bag.js draws."""
    at = f"M{x:.1f} {y:.1f}m"
    match state:
        case "running":
            return f"{at}{-1.2 * r:g} {r:g}h{2.4 * r:g}l{-1.2 * r:g} {-2.2 * r:g}z"
        case "lost":
            d = 1.2 * r
            return f"{at}0 {-d:g}l{d:g} {d:g}l{-d:g} {d:g}l{-d:g} {-d:g}z"
        case "failed":
            return f"{at}{-r:g} {-r:g}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
        case "skipped":
            return f"{at}{-r:g} 0h{2 * r:g}"
    if state == "done":
        d = r
    else:
        d = 0.85 * r
    return f"{at}{-d:g} 0a{d:g} {d:g} 0 1 0 {2 * d:g} 0a{d:g} {d:g} 0 1 0 {-2 * d:g} 0z"


def _drawn(state: str, path: str, *, titled: bool = True) -> str:
    colour = COLOURS[_TONES[state]]
    hollow = f"fill='none' stroke='{colour}' stroke-width='1.3'"
    if state in _FILLED:
        style = f"fill='{colour}' fill-opacity='.75'"
    else:
        style = hollow
    if titled:
        title = f"<title>{state}</title>"
    else:
        title = ""
    return f"<path d='{path}' {style}>{title}</path>"


def _sample(state: str) -> str:
    return (
        "<svg width='12' height='11' "
        f"aria-hidden='true'>{_drawn(state, _form(state, 6, 6, 3.4), titled=False)}</svg>"
    )


def _vms(bag: Mapping[str, Any]) -> str:
    vms: Sequence[Mapping[str, Any]] = bag["vms"][:MOST_ROWS]
    if not vms:
        return ""
    cells = [
        [
            vm["name"],
            vm["age"],
            "none" if vm["job"] is None else str(vm["job"]),
            ", ".join(filter(None, (vm["at"], vm["words"]))),
        ]
        for vm in vms
    ]
    more = len(bag["vms"]) + bag["more"] - len(vms)
    if more:
        left = f"<div style='{FAINT}'>and {text.count(more, 'more VM')}</div>"
    else:
        left = ""
    head = row(("VM", "Age", "Job", "Where, and since when"), "th")
    return table([head, *(row(map(escape, cell)) for cell in cells)]) + left


def _surrogate(bag: Mapping[str, Any]) -> str:
    if bag["tried_words"]:
        summary = f"<div style='{FAINT}'>Surrogate: {escape(bag['tried_words'])}.</div>"
    else:
        summary = ""
    if not bag["tried"]:
        return summary
    head = row(("Output", "90% intervals held", "Median residual", "Largest sd", "Until", ""), "th")
    return summary + table([head, *(row(_tried(output)) for output in bag["tried"])])


def _tried(found: Mapping[str, Any]) -> list[str]:
    coverage = found["coverage"]
    residual = found["residual"]
    return [
        escape(found["output"]),
        "-" if coverage is None else f"{coverage:.0%}",
        "-" if residual is None else f"{text.number(residual)} sd",
        text.number(found["largest"]),
        text.number(found["until"]),
        "✓ good enough" if found["good"] else "not yet",
    ]


def surrogate_html(section: Section) -> str:
    """Return the pictures of one output with a table of its values."""
    if section.fixed:
        at = f" <span style='{FAINT}'>at {escape(text.params_words(section.fixed))}</span>"
    else:
        at = ""
    if len(section.over) == 1:
        drawn = _curve(section)
    else:
        drawn = _surfaces(section)
    blank = any(value is None for mean in section.means for value in mean)
    if blank:
        note = f"<div style='{FAINT};font-size:12px'>Blank: outside of the results.</div>"
    else:
        note = ""
    return (
        "<div "
        f"style='margin-top:6px'><b>{escape(section.output)}</b>{at}</div>{drawn}{note}{_table(section)}"
    )


def axis_of(dimension: Dimension, places: Sequence[Value]) -> Axis:
    """Return the axis of the places; the places are choices if they are all possible values."""
    discrete = dimension.kind == "choice" or all(isinstance(value, int) for value in places)
    if discrete:
        return Axis(dimension.name, "choice", choices=tuple(places))
    return Axis.of(dimension)


def _curve(section: Section) -> str:
    (dimension,), (places,), (means,), (sds,) = (
        section.over,
        section.places,
        section.means,
        section.sds,
    )
    across = axis_of(dimension, places)
    curve_points = [
        (across.place(place), mean, NINETY * sd)
        for place, mean, sd in zip(places, means, sds, strict=True)
        if mean is not None and sd is not None
    ]
    results = [(across.place(at[0]), value, error or 0.0) for at, value, error in section.results]
    ends = [
        end
        for _, value, error in (*curve_points, *results)
        for end in (value - error, value + error)
    ]
    if not ends:
        return f"<div style='{FAINT}'>Nothing of it lies between the results.</div>"
    up = Axis.over(section.output, ends)
    box = _CURVE

    def point(at: float, value: float) -> str:
        return f"{box.x(at):.1f} {box.y(up.place(value)):.1f}"

    upper, lower = (
        [point(at, value + side * sd) for at, value, sd in curve_points] for side in (1, -1)
    )
    blue = COLOURS["busy"]
    dark = COLOURS["good"]
    if curve_points:
        band = f"<path d='M{'L'.join([*upper, *reversed(lower)])}z' fill='{blue}' opacity='.22'/>"
    else:
        band = ""
    line = "L".join(point(at, value) for at, value, _ in curve_points)
    if curve_points:
        curve = f"<path d='M{line}' fill='none' stroke='{blue}' stroke-width='1.8'/>"
    else:
        curve = ""
    bars = "".join(
        f"M{point(at, value - error)}L{point(at, value + error)}"
        for at, value, error in results
        if error
    )
    dots = "".join(
        f"<circle cx='{box.x(at):.1f}' cy='{box.y(up.place(value)):.1f}' r='2.6'/>"
        for at, value, _ in results
    )
    if bars:
        marked = f"<path d='{bars}' stroke='{dark}' stroke-width='1.2'/>"
    else:
        marked = ""
    legend = [
        _curve_sample(f"<path d='M1 5H21' stroke='{blue}' stroke-width='1.8'/>", "surrogate"),
        _curve_sample(f"<path d='M1 1h20v8h-20z' fill='{blue}' opacity='.22'/>", "± 1.645 sd"),
    ]
    if results:
        mark = f"<circle cx='11' cy='5' r='2.6' fill='{dark}'/>" + (
            f"<path d='M11 0v10' stroke='{dark}'/>" if bars else ""
        )
        legend.append(_curve_sample(mark, "results, ± their errors" if bars else "results"))
    body = (
        f"{frame(box, across.named, up.named, across.name)}{band}{curve}{marked}<g "
        f"fill='{dark}'>{dots}</g>"
    )
    return (
        _svg(body, section_words(section)) + f"<div style='font-size:12px'>{' '.join(legend)}</div>"
    )


def _surfaces(section: Section) -> str:
    words = section_words(section)
    values = _surface(section, section.means, _VALUES, section.output, words, from_zero=False)
    errors = _surface(
        section,
        section.sds,
        _ERRORS,
        "its standard deviation",
        f"{section.output}, its error",
        from_zero=True,
    )
    return f"{values}{errors}"


def _surface(
    section: Section,
    rows: _Rows,
    colours: Sequence[str],
    title: str,
    words: str,
    *,
    from_zero: bool,
) -> str:
    values = [value for cells in rows for value in cells if value is not None]
    if not values:
        if not from_zero:
            return f"<div style='{FAINT}'>Nothing of it lies between the results.</div>"
        return ""
    if from_zero:
        low = 0.0
    else:
        low = min(values)
    high = max(values)
    if not high > low:
        low = low - (abs(low) or 1.0) / 2
        high = high + (abs(high) or 1.0) / 2
    across, up = (
        axis_of(dimension, places)
        for dimension, places in zip(section.over, section.places, strict=True)
    )
    results = ((across.place(at[0]), up.place(at[1])) for at, _, _ in section.results)
    dots = "".join(
        f"<circle cx='{_SURFACE.x(x):.1f}' cy='{_SURFACE.y(y):.1f}' r='2'/>" for x, y in results
    )
    body = [
        _cells(
            rows, lambda value: min(int((value - low) / (high - low) * LEVELS), LEVELS - 1), colours
        ),
        f"<g fill='none' stroke='#000' stroke-width='1.8' opacity='.6'>{dots}</g>" if dots else "",
        f"<g fill='none' stroke='#fff' stroke-width='.9'>{dots}</g>" if dots else "",
        frame(_SURFACE, across.named, up.named, across.name, up.name, lines=False),
        _bar(low, high, colours),
        f"<text x='{_BAR.left + _BAR.width:g}' y='{_BAR.top - 8:g}' "
        f"text-anchor='end'>{escape(title)}</text>",
    ]
    return _svg("".join(body), words)


def _cells(rows: _Rows, level: Callable[[float], int], colours: Sequence[str]) -> str:
    """Return the cells of each colour as one path.

    Adjacent cells of a row are one piece of the path, widened by half a pixel to avoid visible
    gaps.
    """
    paths: dict[int, list[str]] = {}
    width = _SURFACE.width / len(rows[0])
    height = _SURFACE.height / len(rows)
    for number_, cells in enumerate(rows):
        top = _SURFACE.top + _SURFACE.height - (number_ + 1) * height
        levels = [None if value is None else level(value) for value in cells]
        begin = 0
        for place in range(1, len(levels) + 1):
            if place < len(levels) and levels[place] == levels[begin]:
                continue
            if (colour := levels[begin]) is not None:
                x = _SURFACE.left + begin * width
                wide = (place - begin) * width + (0.5 if place < len(levels) else 0)
                tall = height + (0.5 if number_ else 0)
                paths.setdefault(colour, []).append(
                    f"M{x:.1f} {top:.1f}h{wide:.1f}v{tall:.1f}h{-wide:.1f}z"
                )
            begin = place
    return "".join(
        f"<path d='{''.join(found)}' fill='{shade(colours, colour / (LEVELS - 1))}'/>"
        for colour, found in sorted(paths.items())
    )


def _bar(low: float, high: float, colours: Sequence[str]) -> str:
    height = _BAR.height / LEVELS
    steps = "".join(
        f"<path d='M{_BAR.left:g} "
        f"{_BAR.top + _BAR.height - (level + 1) * height:.1f}h{_BAR.width:g}v{height + 0.5:.1f}"
        f"h{-_BAR.width:g}z' fill='{shade(colours, level / (LEVELS - 1))}'/>"
        for level in reversed(range(LEVELS))
    )
    right = _BAR.left + _BAR.width
    names = "".join(
        f"<path d='M{right:g} {(y := _BAR.y((value - low) / (high - low))):.1f}h4' "
        f"stroke='currentColor' opacity='.5'/><text x='{right + 7:g}' y='{y + 4:.1f}' "
        f"opacity='.7'>{value:.4g}</text>"
        for value in ticks(low, high)
    )
    return steps + names


def shade(colours: Sequence[str], share: float) -> str:
    """Return the colour at a share from 0 to 1 of a scale of `colours`."""
    place = min(max(share, 0.0), 1.0) * (len(colours) - 1)
    before = min(int(place), len(colours) - 2)
    pairs = zip(
        *(bytes.fromhex(colour[1:]) for colour in colours[before : before + 2]), strict=True
    )
    return "#" + "".join(
        f"{round(one + (place - before) * (other - one)):02x}" for one, other in pairs
    )


def _svg(body: str, words: str) -> str:
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' width='{_WIDTH}' "
        "style='max-width:100%;height:auto;margin-right:12px' role='img' font-size='11' "
        f"fill='currentColor' aria-label='{attribute(words)}'>{body}</svg>"
    )


def _curve_sample(drawn: str, name: str) -> str:
    sample = f"<svg width='22' height='10' aria-hidden='true'>{drawn}</svg>"
    return f"<span style='white-space:nowrap;margin-right:10px'>{sample} {escape(name)}</span>"


def _table(section: Section) -> str:
    """Return a table of some values with their standard deviations."""
    names = [dimension.name for dimension in section.over]
    if len(section.over) == 1:
        shown = _some(len(section.places[0]), _MOST_ROWS)
        lines = [[section.places[0][place], _cell(section, 0, place)] for place in shown]
        head = [*names, section.output]
    else:
        columns, shown = (
            _some(len(places), most)
            for places, most in zip(section.places, (_MOST_COLUMNS, _MOST_ROWS), strict=True)
        )
        lines = [
            [section.places[1][line], *(_cell(section, line, place) for place in columns)]
            for line in shown[::-1]
        ]
        head = [
            f"{names[1]} \\ {names[0]}",
            *(text.value_words(section.places[0][place]) for place in columns),
        ]
    cells = [
        row([escape(text.value_words(first)), *map(escape, map(str, rest))])
        for first, *rest in lines
    ]
    drawn = table([row(map(escape, head), "th"), *cells], "font-size:12px")
    return f"<details><summary style='{FAINT};font-size:12px'>values</summary>{drawn}</details>"


def _cell(section: Section, line: int, place: int) -> str:
    mean = section.means[line][place]
    sd = section.sds[line][place]
    if mean is None or sd is None:
        return ""
    return f"{number(mean)} ± {number(sd)}"


def _some(count: int, most: int) -> list[int]:
    """Return at most `most` numbers below `count`, evenly from the first to the last."""
    if count <= most:
        return list(range(count))
    return [round(step * (count - 1) / (most - 1)) for step in range(most)]
