"""Execution of verbs in a notebook: how it shows an answer, and how it waits.

Handles are bound and recorded, and their panels are shown. Sentences are printed. Any other answer
is the value of the magic, which IPython shows (`answers` and `panels` have its HTML).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from IPython.display import display

from .. import panels, places
from ..cli import verbs
from ..cli.answers import Begun, Deleted, Sentence
from ..cli.arguments import Command
from ..cli.options import Code
from ..client import Cluster, Handle
from ..errors import ClusterError

if TYPE_CHECKING:
    from ..client import Build, Preview


class Notebook(Protocol):
    """The magics of a notebook, as far as this module uses them.

    `clusters` has the clusters that this process declared or attached, by name.
    """

    clusters: ClassVar[dict[str, Cluster]]
    shell: Any

    def keep(self, cluster: Cluster) -> None:
        """Record a cluster."""
        ...


@places.reporting()
def obey(magics: Notebook, command: Command, code: Code | None = None) -> Any:
    """Execute a command and return the value of its magic.

    Parameters
    ----------
    magics
        The magics.
    command
        The command.
    code
        The code of the work to declare; None for other commands.

    Raises
    ------
    TransientError
        The command failed.
    """
    try:
        if code is not None and command.verb != "help":
            return _begin(magics, command, code)
        match command.verb:
            case "help":
                display(command.values["help"])
                return None
            case "declare":
                return _declare(magics, command)
            case "attach":
                return _attach(magics, command)
            case "image build":
                return _build(command)
        answer = verbs.act(command)
        if isinstance(answer, (Sentence, Iterator)):
            return _print(magics, answer)
    except KeyboardInterrupt:
        raise ClusterError(
            "Interrupted", fix="Declared clusters and work continue: see %transient_cluster list."
        ) from None
    _bind(magics, command, answer)
    return answer


def _print(magics: Notebook, answer: Sentence | Iterator[Deleted | Sentence]) -> None:
    if isinstance(answer, Sentence):
        answer = iter([answer])
    for part in answer:
        if isinstance(part, Deleted):
            magics.clusters.pop(part.cluster.name, None)
        print(part, flush=True)


def _declare(magics: Notebook, command: Command) -> Cluster | Preview:
    answer = verbs.act(command)
    if isinstance(answer, Cluster):
        _keep(magics, command, answer)
        panels.show(answer)
        if command.wait:
            _wait(
                answer.wait, answer.name, fix=f"To end it: %transient_cluster delete {answer.name}"
            )
    return answer


def _begin(magics: Notebook, command: Command, code: Code) -> Any:
    """Declare work and show its panel. With `--wait`, print its output (if any) until it ends."""
    begun = verbs.begin(command, code)
    if not isinstance(begun, Begun):
        return begun
    work = begun.work
    _keep(magics, command, work)
    _shell(magics).push(dict(begun.names), interactive=False)
    sentences = " ".join(filter(None, (begun.promised, *begun.notes)))
    if sentences:
        print(sentences, flush=True)
    prints = hasattr(work, "stream")
    if not (command.wait and prints):
        panels.show_handle(work)
    if command.wait:
        wait = work.wait
        if prints:
            wait = partial(_print_output, work)
        stop = f"%transient_stop {work.cluster.name} {work.name} ends it."
        _wait(wait, f"{work.name} on {work.cluster.name}", fix=stop)
    return work


def _print_output(work: Any) -> None:
    for output in work.stream():
        print(output, end="", flush=True)
    work.wait(timeout=5.0)


def _attach(magics: Notebook, command: Command) -> Cluster:
    cluster = verbs.act(command)
    if cluster.followed:
        print(f"Following {cluster.followed}.")
    _keep(magics, command, cluster)
    panels.show(cluster)
    return cluster


def _build(command: Command) -> Build:
    build = verbs.act(command)
    if not command.wait:
        return build
    print(f"Building {build.name}.", flush=True)

    def finish() -> None:
        for step in build.steps():
            print(f"  {step}", flush=True)
        build.wait()

    _wait(finish, f"the build of {build.name}", fix="%transient_image list shows its progress.")
    return build


def _keep(magics: Notebook, command: Command, handle: Cluster | Handle[Any, Any]) -> None:
    if isinstance(handle, Cluster):
        magics.keep(handle)
    else:
        magics.keep(handle.cluster)
    _bind(magics, command, handle)


def _bind(magics: Notebook, command: Command, value: Any) -> None:
    """Bind the value to the variable that `-o` names."""
    if command.output:
        _shell(magics).push({command.output: value}, interactive=False)


def _shell(magics: Notebook) -> Any:
    return magics.shell


def _wait(wait: Callable[[], Any], what: str, *, fix: str) -> None:
    try:
        wait()
    except KeyboardInterrupt:
        raise ClusterError(f"You interrupted only the wait: {what} continues", fix=fix) from None
