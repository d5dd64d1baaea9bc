"""Panels: how clusters and work look, as pure functions of state with a static picture and a text.

`show` puts a live panel into the running cell; the follower updates it. `declare` shows the panel
that declares a cluster. The front end is in `widgets/`.
"""

from .comparison import comparison_html, runs_html
from .declare import declare, show_declare
from .lifetimes import lifetimes_html
from .plan import plan_html, search_html, show_search
from .show import bundle, has_front_end, show, show_handle, status
from .snapshot.view import view
from .static.panel import html

__all__ = [
    "bundle",
    "comparison_html",
    "declare",
    "has_front_end",
    "html",
    "lifetimes_html",
    "plan_html",
    "runs_html",
    "search_html",
    "show",
    "show_declare",
    "show_handle",
    "show_search",
    "status",
    "view",
]
