"""A bag as text and as a picture; its plot."""

from __future__ import annotations

import time

from ..client import Bag, text
from ..client.handles.bag import Plot
from ..journal import DeclaredBag, costs
from .snapshot.bags import bag_view
from .twin.bags import bag_html
from .twin.markup import FONT
from .twin.sections import section_html

_WIDE = f"{FONT};max-width:1040px"


def bag_text(bag: Bag) -> str:
    """A bag in a terminal."""
    state = bag.cluster.state
    known = state.of(DeclaredBag).get(bag.name)
    if known is None:
        return repr(bag)
    quality = text.quality_words(known)
    said = f"{bag.name} on {state.name}: {text.bag_words(known)}"
    return "\n".join([said, *([f"{text.tried_words(known)}; {quality}"] if quality else [])])


def bag_panel_html(bag: Bag) -> str:
    """The picture of a bag."""
    state, now = bag.cluster.state, time.time()
    return f"<div style='{_WIDE}'>{bag_html(bag_view(state, bag.state, costs(state, now)[bag.name], now))}</div>"


def bag_plot_html(plot: Plot) -> str:
    """What a surrogate said, a row of pictures for each output."""
    drawn = "".join(f"<div>{section_html(each)}</div>" for each in plot.sections)
    return f"<div style='{_WIDE}'>{drawn}</div>"
