"""The declare panel in a notebook: the user chooses, sees the price, and launches.

After the launch it becomes the cluster's panel. Choices arrive on the kernel's thread for widgets.
Pricing takes some milliseconds and happens there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, overload

from .. import client
from ..client import Cluster, Declaration
from ..errors import TransientError, unknown
from .offer import FIRST, declaration, menu, offer, offer_text
from .show import current_shell, has_front_end, is_jupyterlab, publisher, show_instead, show_live
from .static.panel import offer_html


@overload
def declare(declared: Declaration | str, **options: Any) -> Cluster: ...
@overload
def declare(declared: None = None) -> None: ...
def declare(declared: Declaration | str | None = None, **options: Any) -> Cluster | None:
    """Declare a cluster and return its handle; without an argument show the declare panel.

    Parameters
    ----------
    declared : Declaration or str, optional
        A declaration, or a SPEC such as `"k80x4"`.
    options
        Other fields of Declaration, with a SPEC.

    Returns
    -------
    Cluster or None
        The handle. In a `with` statement it deletes the cluster at the end of the block.

    Raises
    ------
    DeclarationError
        An option is invalid.
    ClusterError
        The cluster cannot be declared.

    Examples
    --------
    >>> with tm.declare("k80x4", max_hours=2) as cluster:
    ...     tm.train(source=code, train_steps=1000).wait()
    """
    if isinstance(declared, str):
        fields = Declaration.__dataclass_fields__
        if other := next((name for name in options if name not in fields), ""):
            fix = "Type help(transient_magics.Declaration)."
            raise unknown("option of a cluster", other, fields, otherwise=fix)
        declared = Declaration(declared, **options)
    if declared is not None:
        return client.declare(declared)
    show_declare()
    return None


def show_declare(hold: Callable[[Cluster], None] = lambda _: None) -> None:
    """Show the declare panel in the running cell.

    `hold` is called with the cluster that is launched from it.
    """
    shell = current_shell()
    first = offer(FIRST)
    text = offer_text(first)
    if not has_front_end(shell):
        print(text)
        return
    publish = publisher(shell, f"transient-{uuid.uuid4().hex[:12]}")
    in_place = is_jupyterlab(shell)
    data: dict[str, Any] = {"text/plain": text, "text/html": offer_html(first)}

    def ask(message: Mapping[str, Any]) -> None:
        choices = message.get("choices")
        if not isinstance(choices, Mapping):
            return
        answer = {**offer(choices), "asked": message.get("asked", 0)}
        panel.choices = dict(choices)
        panel.offer = answer
        # The user agrees to the price of the line that the page shows.
        if (
            message.get("do") == "launch"
            and not answer["error"]
            and answer["line"] == message.get("line")
        ):
            try:
                cluster = client.declare(declaration(choices))
            except TransientError as error:
                panel.offer = {**answer, "error": str(error)}
                return
            hold(cluster)
            show_instead(cluster, publish, in_place=in_place)

    panel: Any = show_live(
        publish,
        data,
        lambda widget: widget.DeclarePanel(ask, menu=menu(), choices=dict(FIRST), offer=first),
        in_place=in_place,
    )
