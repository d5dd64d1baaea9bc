"""The `transient` program: the magics' sub-commands and options in a terminal.

Exit codes: 0 done, 1 the tool's or the cloud's failure (one line on stderr), 2 a mistake in what was typed, 130 an
interrupt. An interrupt ends the waiting only: clusters and runs go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..client import cell, text
from ..errors import CellError, DeclarationError, TransientError
from ..journal import ClusterState, bill
from . import arguments
from .arguments import Command

if TYPE_CHECKING:
    from ..client.handles import Cluster

_USAGE = """usage: transient cluster SPEC [options]      declare a cluster, as k80x4
       transient cluster SUB-COMMAND ...     {verbs}
       transient train FILE.py [options]     train the Tensor2Tensor code of a file on a cluster
       transient plan [SPEC] [options]       what a cluster would take and cost for a run; without SPEC, the best ones
       transient export RUN FOLDER           write the model of a run's last checkpoint as a SavedModel
       transient tensorboard RUN [FOLDER]    write a run's metrics and events for TensorBoard
       transient weather NAME [options]      what the emulated zones do: revocations, stockouts, faster time, ...
       transient lifetimes [options]         how long transient VMs live: your own, published ones, or a file's
       transient image SUB-COMMAND ...       build, list or delete images that VMs boot from ready to train
       transient emulator [options]          run the emulator of Compute Engine alone
       transient doctor [options]            is all here that training needs? --spend 1: does it work?
       transient catalog [GPU]               GPUs, machines, zones and prices

`-h` behind any of them lists its options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except (DeclarationError, CellError) as error:
        return _complain(error, 2)
    except TransientError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print(
            "\nInterrupted. Clusters, runs and builds go on: `transient cluster list`, `transient image list`.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, as in `transient cluster events | head`
        sys.stderr.close()
        return 0


def _run(words: list[str]) -> int:
    first, rest = (words[0], words[1:]) if words else ("-h", [])
    if first in ("-h", "--help"):
        print(_USAGE.format(verbs=", ".join(arguments.verbs())))
        return 0
    if first == "--version":
        from ..version import VERSION

        print(f"transient {VERSION}")
        return 0
    if first == "emulator":
        from ..emulator.__main__ import run

        return run(rest)
    if first not in arguments.verbs("transient"):
        import difflib

        close = difflib.get_close_matches(first, arguments.verbs("transient"), n=1)
        raise DeclarationError(
            f"transient has no sub-command '{first}'",
            fix=f"Did you mean {close[0]}?" if close else "See transient -h.",
        )
    command = arguments.parse(first, rest, called=f"transient {first}", file=first == "train")
    return _VERBS[command.verb](command) or 0


def _complain(error: TransientError, code: int) -> int:
    print(f"transient: {error}", file=sys.stderr)
    return code


def _help(command: Command) -> None:
    print(command.values["text"])


def _declare(command: Command) -> None:
    from ..client import Declaration, declare, preview

    _refuse_output(command)
    declaration = Declaration(**command.values)
    if command.dry_run:
        print(preview(declaration))
        return
    cluster = declare(declaration)
    print(f"{cluster.name} is declared. It goes on by itself: `transient cluster status {cluster.name}`.")
    if command.wait:
        _show_until(cluster, lambda state: state.phase in ("ready", "deleting", "deleted"))
        cluster.wait(timeout=5.0)


def _train(command: Command) -> None:
    from ..client import cluster, train

    _refuse_output(command)
    values = dict(command.values)
    path = Path(values.pop("source"))
    try:
        source = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise DeclarationError(f"{path} cannot be read: {reason}") from None
    values["include"] = cell.included(values.get("include", ()))
    own_model, folder = not values.get("model"), path.resolve().parent
    cell.check(source, line_offset=0, include=values["include"], folder=folder, own_model=own_model)
    chosen = cluster(values.pop("cluster", None))
    before = chosen.state.seq
    run = train(source=source, line_offset=0, cluster=chosen, **values)
    print(f"{run.name} is declared on {run.cluster.name}.")
    if command.wait:
        _show_until(chosen, lambda state: state.over or run.state.over, before)
        result = run.wait(timeout=5.0)
        print(f"{run.name}: {text.run_words(run.state)}. It cost {text.money(result.cost)}.")
        print(f"Its results are in {run.directory}.")


def _plan(command: Command) -> None:
    from ..client import plan

    _refuse_output(command)
    print(plan(**command.values))


def _export(command: Command) -> None:
    from ..client import run

    values = dict(command.values)
    print(run(values.pop("run"), values.pop("cluster", None)).export(**values))


def _tensorboard(command: Command) -> None:
    from ..client import run

    values = dict(command.values)
    print(run(values.pop("run"), values.pop("cluster", None)).tensorboard(**values))


def _show_until(cluster: Cluster, until: Callable[[ClusterState], bool], after: int | None = 0) -> None:
    """Print a line per event until the state is as wanted."""
    from ..client.following.watch import watch

    for event in watch(cluster, after=after, until=until):
        if event.kind == "train.progress" or event.kind not in text.QUIET:
            print(text.event_line(event), flush=True)


def _list(command: Command) -> None:
    from ..client import clusters, unreadable

    now = time.time()
    states = [(each.name, each.state) for each in clusters(all=command.values.get("all", False))]
    print("\n".join([text.listing([(name, state, bill(state, now)) for name, state in states]), *unreadable()]))


def _status(command: Command) -> None:
    from ..client import cluster
    from ..client.planning.forecasts import forecast_line

    chosen, now = cluster(command.values.get("name")), time.time()
    state = chosen.state
    foretold = forecast_line(chosen.run(state.active_run.name)) if state.active_run else ""
    print(text.status(state, bill(state, now), now, foretold))


def _attach(command: Command) -> None:
    from ..client import attach

    found = attach(command.values.get("name"), command.values.get("project"))
    if found.followed:
        print(f"Following {found.followed}.")
    _status(command)
    _show_until(found, lambda state: state.over, None)


def _resize(command: Command) -> None:
    from ..client import cluster

    cluster(command.values["name"]).resize(command.values["spec"])
    print(f"{command.values['name']} will have {command.values['spec']}.")


def _revoke(command: Command) -> None:
    from ..client import cluster

    values = command.values
    cluster(values["name"]).revoke(values["worker"], values.get("seconds", 0.0))
    print(f"{values['worker']} of {values['name']} will be taken back: 30 seconds from its notice on.")


def _logs(command: Command) -> None:
    from ..client import cluster

    values = command.values
    logged = cluster(values["name"]).logs(values["worker"], values.get("lines", 200))
    print(logged.rstrip("\n") or f"{values['worker']} has logged nothing yet.")


def _events(command: Command) -> None:
    from ..client import cluster
    from ..client.following.watch import watch

    chosen, kind = cluster(command.values.get("name")), command.values.get("kind")
    for event in watch(chosen, kind) if command.values.get("follow") else chosen.events(kind):
        print(text.event_line(event, dated=True), flush=True)


def _delete(command: Command) -> None:
    from ..client import deleted

    each = None
    for each in deleted(**command.values):
        print(text.deleted_words(each.state, each.cost()))
    if each is None:
        print(text.NOTHING_TO_DELETE)


def _sweep(command: Command) -> None:
    from ..client import sweep

    print(sweep(**command.values))


def _weather(command: Command) -> None:
    from ..client import cluster

    values = dict(command.values)
    print(cluster(values.pop("name", None)).weather(**values))


def _lifetimes(command: Command) -> None:
    from ..client import lifetimes

    print(lifetimes(**command.values))


def _image_build(command: Command) -> None:
    from ..client import build_image

    build = build_image(**command.values)
    print(f"{build.name} is being built. It goes on by itself: `transient image list`.", flush=True)
    if command.wait:
        for step in build.steps():
            print(f"  {step}", flush=True)
        build.wait()
        print(build)


def _image_list(command: Command) -> None:
    from ..client import images

    print(images(**command.values))


def _image_delete(command: Command) -> None:
    from ..client import delete_image

    print(delete_image(**command.values))


def _catalog(command: Command) -> None:
    from ..client import catalog

    print(catalog(**command.values))


def _doctor(command: Command) -> int:
    from ..client import doctor

    def agree(question: str) -> bool:
        return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in ("y", "yes")

    found = doctor(**command.values, say=lambda words: print(words, flush=True), agree=agree)
    print(found.end)
    return 0 if found.well else 1


def _refuse_output(command: Command) -> None:
    if command.output:
        raise DeclarationError("-o binds a handle in a notebook; a terminal has none", fix="Leave it out.")


_VERBS: dict[str, Callable[[Command], int | None]] = {
    "help": _help,
    "declare": _declare,
    "train": _train,
    "plan": _plan,
    "export": _export,
    "tensorboard": _tensorboard,
    "list": _list,
    "status": _status,
    "attach": _attach,
    "resize": _resize,
    "revoke": _revoke,
    "logs": _logs,
    "events": _events,
    "delete": _delete,
    "sweep": _sweep,
    "catalog": _catalog,
    "doctor": _doctor,
    "weather": _weather,
    "lifetimes": _lifetimes,
    "image build": _image_build,
    "image list": _image_list,
    "image delete": _image_delete,
}


if __name__ == "__main__":
    sys.exit(main())
