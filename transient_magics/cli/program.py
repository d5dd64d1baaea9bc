"""The `transient` program: the magics' sub-commands and options in a terminal.

Exit codes: 0 done, 1 a failure of the tool or the cloud (one line on stderr), 2 a mistake in the
command line, 130 an interrupt. `--dry-run` and the doctor exit with 1 if a line says NOT GOOD. An
interrupt ends only the waiting: clusters and runs continue.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import places
from ..client import text
from ..client.following.cluster import watch
from ..errors import CellError, DeclarationError, TransientError, reason_of, unknown
from ..protocol.checks import all_plain
from . import arguments, options, verbs
from .answers import Begun
from .arguments import Command
from .options import Code

if TYPE_CHECKING:
    from ..client import Cluster
    from ..journal import ClusterState

_BESIDE = ("help", "version")
"""Commands that are not in the table of options."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    if argv is None:
        argv = sys.argv[1:]
    words = list(argv)
    _print_any_character()
    try:
        with places.reporting():
            return _run(words)
    except (DeclarationError, CellError) as error:
        return _complain(error, 2)
    except TransientError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print(
            "\nInterrupted. Clusters, runs and builds continue: see `transient cluster list` and "
            "`transient image list`.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        # The reader of the output has ended, as in `transient cluster events | head`.
        sys.stderr.close()
        return 0


def _print_any_character() -> None:
    """Print a question mark for each character that the terminal cannot encode."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # tests put other streams there
        sys.stdout.reconfigure(errors="replace")


def _run(words: list[str]) -> int:
    first, *rest = words or ["help"]
    if first in ("-h", "--help", "help"):
        if rest == ["emulator"]:
            return _run(["emulator", "-h"])
        print(arguments.explain(rest))
        return 0
    if first in ("--version", "version"):
        from ..version import VERSION

        print(f"transient {VERSION}")
        return 0
    if first == "emulator":
        from .. import emulator

        return emulator.main(rest)
    verb = options.aliases().get(first, first)
    if verb not in arguments.verbs("transient"):
        commands = [*arguments.verbs("transient"), *_BESIDE, *options.aliases()]
        raise unknown("command", first, commands, otherwise="See transient -h.")
    command = arguments.parse(
        verb, rest, called=f"transient {first}", file=verb in options.from_files()
    )
    return _obey(command)


def _complain(error: TransientError, code: int) -> int:
    print(f"transient: {error}", file=sys.stderr)
    return code


def _obey(command: Command) -> int:
    if command.verb == "help":
        print(command.values["help"])
        return 0
    if command.output:
        raise DeclarationError(
            "-o works only in notebooks, where it names a variable", fix="Leave it out."
        )
    if command.verb in options.work_commands():
        _begin(command)
        return 0
    if command.verb in _HANDLERS:
        return _HANDLERS[command.verb](command) or 0
    answer = verbs.act(command)
    if not isinstance(answer, Iterator):
        answer = [answer]
    for part in answer:
        print(all_plain(str(part)), flush=True)
    return 0


def _declare(command: Command) -> int:
    answer = verbs.act(command)
    if command.dry_run:
        print(answer)
        return _exit_code(answer.well)
    print(
        f"{answer.name} is declared. It starts in the background: `transient cluster status "
        f"{answer.name}`.",
        flush=True,
    )
    if command.wait:
        _show_until(answer, lambda state: state.phase in ("ready", "deleting", "deleted"))
        answer.wait(timeout=5.0)
    return 0


def _exit_code(well: bool) -> int:
    """Return the exit code of checks."""
    if well:
        return 0
    return 1


def _read_source(command: Command) -> tuple[Command, str, Path]:
    """Return the command without its file, the code in the file, and the file's folder."""
    values = dict(command.values)
    path = Path(values.pop("source"))
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = reason_of(error)
        raise DeclarationError(f"{path} cannot be read: {reason}") from None
    return replace(command, values=values), source, path.resolve().parent


def _begin(command: Command) -> None:
    """Declare work. With `--wait`, show its output (or events) until it ends."""
    source = ""
    folder = None
    if command.verb in options.from_files():
        command, source, folder = _read_source(command)
    called = f"transient {options.work_commands()[command.verb].name}"
    begun = verbs.begin(command, Code(source, called, folder=folder))
    print(begun, flush=True)
    if not command.wait or not isinstance(begun, Begun):
        return
    work = begun.work
    if stream := getattr(work, "stream", None):
        for output in stream():
            print(output, end="", flush=True)
    else:
        since = begun.since
        for part in work.parts:
            _show_until(part.cluster, part.is_over, since)
            since = 0  # a study has created its other clusters
    work.wait(timeout=5.0)
    print(f"{work} It cost {text.money(work.cost().total)}.")
    print(f"Its results are in {work.directory}.")


def _attach(command: Command) -> None:
    found = verbs.act(command)
    if found.followed:
        print(f"Following {found.followed}.")
    # Without the flush, a pipe would get this text with the next event.
    print(verbs.act(Command("status", {"name": found.name})), flush=True)
    _show_until(found, lambda state: state.over, None)


def _build(command: Command) -> None:
    build = verbs.act(command)
    print(f"Building {build.name} in the background: `transient image list`.", flush=True)
    if command.wait:
        for step in build.steps():
            print(f"  {step}", flush=True)
        build.wait()
        print(build)


def _doctor(command: Command) -> int:
    diagnosis = verbs.act(command)
    print(all_plain(str(diagnosis)))
    return _exit_code(diagnosis.well)


def _show_until(
    cluster: Cluster, until: Callable[[ClusterState], bool], after: int | None = 0
) -> None:
    """Print a line per event until `until(state)` is true."""
    for event in watch(cluster, after=after, until=until):
        if event.kind == "train.progress" or event.kind not in text.quiet_kinds():
            print(text.event_line(event), flush=True)


_HANDLERS: dict[str, Callable[[Command], int | None]] = {
    "declare": _declare,
    "attach": _attach,
    "image build": _build,
    "doctor": _doctor,
}
"""Handlers of verbs that do more than print the answer."""


if __name__ == "__main__":
    sys.exit(main())
