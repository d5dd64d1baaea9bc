"""The magics themselves: thin, each a line that is read, a verb that is obeyed, and something to
look at.

They return the handle. The panel is shown by then; should the handle also be the cell's last value,
IPython does not show it twice (see `panels.show`). Errors are TransientErrors, which say one line
and fail the cell. Interrupting a magic interrupts the waiting; clusters and runs go on.

Registering them loads little: what a verb needs (`magics.dispatch`, and through it journals and
panels) is imported when a cell says the first one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import display

from ..cli import arguments
from ..errors import CellError, DeclarationError
from ..kinds import WORK_MAGICS

_WORK = "|".join(WORK_MAGICS)
_CELL = re.compile(rf"%%(?:{_WORK}|transient_(?:{_WORK}|cluster|plan|stalls))(?:\s|$)")

if TYPE_CHECKING:
    from ..cli.arguments import Command
    from ..cli.options import Code
    from ..client import Cluster


@magics_class
class TransientMagics(Magics):
    """Magics of transient_magics. `held` has the clusters that this process declared or attached,
    by name.
    """

    held: ClassVar[dict[str, Cluster]] = {}

    @line_cell_magic
    def transient_cluster(self, line: str, cell: str | None = None) -> Any:
        """Declare a cluster of transient GPU servers, or look after one.

        %transient_cluster SPEC [options]           for example: c = %transient_cluster k80x4
        %transient_cluster                          a panel in which a cluster is put together
        %%transient_cluster [options]               the same as TOML in the cell's body
        %transient_cluster
        list|status|attach|resize|relocate|revoke|move|agree|logs|events|delete|sweep ...

        `%transient_cluster -h` lists the options, `%transient_cluster SUB-COMMAND -h` those of a
        sub-command.
        """
        if cell is None:
            called = "%transient_cluster"
        else:
            called = "%%transient_cluster"
        words = self._words(line)
        if cell is not None:
            words += arguments.words_of_table(_toml(cell))
        if not words and cell is None:
            from .. import panels

            panels.show_declare(self.keep)
            return None
        command = arguments.parse("cluster", words, called=called)
        return self._obey(command)

    @line_magic
    def transient_help(self, line: str) -> None:
        """Show all magics, those that most people need first, or the options of one.

        %transient_help [COMMAND]                   for example: %transient_help train
        """
        display(arguments.explain(self._words(line), notebook=True))

    @line_cell_magic
    def transient_stalls(self, line: str, cell: str | None = None) -> Any:
        """Measure on a cluster where the time of a step goes, and what would help; nothing is
        trained.

        %transient_stalls RUN [options]             of a run's model and data
        %transient_stalls --model resnet --hparams-set resnet_cifar_32 --problem image_digits
        %%transient_stalls [options]                of what the cell defines, as for %%train

        `%transient_stalls -h` lists the options.
        """
        if cell is None:
            called = "%transient_stalls"
        else:
            called = "%%transient_stalls"
        return self.declare_work(line, cell, called)

    @line_magic
    def transient_work(self, line: str) -> Any:
        """List all work: runs, studies, jobs, bags, Dask clusters and measurements of stalls.

        %transient_work [CLUSTER]                   for example: %transient_work k80x4
        """
        return self._obey(arguments.parse("work", self._words(line), called="%transient_work"))

    @line_magic
    def transient_stop(self, line: str) -> Any:
        """End a piece of work of any kind. Its results so far remain.

        %transient_stop CLUSTER NAME                for example: %transient_stop k80x4 job-1
        """
        return self._obey(arguments.parse("stop", self._words(line), called="%transient_stop"))

    @line_magic
    def transient_weather(self, line: str) -> Any:
        """See what the emulated zones do to a cluster's VMs, and set it: revocations, stockouts,
        faster time, ...

        %transient_weather NAME [options]           for example: %transient_weather k80x4
        --revocations published

        `%transient_weather -h` lists the options. All clusters without a project share one weather.
        """
        command = arguments.parse("weather", self._words(line), called="%transient_weather")
        return self._obey(command)

    @line_magic
    def transient_deflate(self, line: str) -> Any:
        """Have the emulator shrink a VM that runs, as a provider does under pressure instead of
        revoking it. Or stop a worker, make it a smaller machine, and start it again.

        %transient_deflate NAME WORKER --cpu 50% [--network 50%]
        %transient_deflate NAME WORKER --machine-type n1-standard-2
        %transient_deflate NAME --reclaim 1.5cpu [--policy proportional|priority|deterministic]
        %transient_deflate NAME [WORKER] --restore

        `%transient_deflate -h` lists the options.
        """
        command = arguments.parse("deflate", self._words(line), called="%transient_deflate")
        return self._obey(command)

    @line_magic
    def transient_measure(self, line: str) -> Any:
        """Ask for VMs in some zones and give them back at once, to see where there are any; or tell
        what was seen.

        %transient_measure GPU [options]            for example: %transient_measure t4 --zones
        us-east1-c --budget 2

        `%transient_measure -h` lists the options.
        """
        command = arguments.parse("measure", self._words(line), called="%transient_measure")
        return self._obey(command)

    @line_magic
    def transient_lifetimes(self, line: str) -> Any:
        """How long transient VMs live: your own, published ones, or those of a file.

        %transient_lifetimes [options]              for example: %transient_lifetimes --gpu k80
        --source published

        `%transient_lifetimes -h` lists the options.
        """
        command = arguments.parse("lifetimes", self._words(line), called="%transient_lifetimes")
        return self._obey(command)

    @line_cell_magic
    def transient_plan(self, line: str, cell: str | None = None) -> Any:
        """What a cluster would take and cost for a run, revocations included; without a SPEC, which
        clusters are best.

        %transient_plan [SPEC] --workload WORKLOAD --train-steps N [options] %%transient_plan [SPEC]
        --train-steps N [options]     the model that the cell defines, as a cell of %%train does

        `%transient_plan -h` lists the options. Nothing is created.
        """
        line, cell, continued = _continued(line, cell)
        words = self._words(line) + (["--cell", "-"] if cell else [])
        command = arguments.parse(
            "plan", words, called="%transient_plan" if cell is None else "%%transient_plan"
        )
        if cell and command.verb == "plan":
            values = {
                **command.values,
                "source": cell,
                "line_offset": self._lines_above(cell) or 1 + continued,
            }
            command = replace(command, values={**values, "cell": ""})
        return self._obey(command)

    @line_magic
    def transient_doctor(self, line: str) -> Any:
        """Check all that training on Google Cloud needs, with the command that fixes each line that
        is not good.

        %transient_doctor [SPEC] [options]          for example: %transient_doctor --project
        my-project

        `%transient_doctor -h` lists the options. Nothing is created.
        """
        command = arguments.parse("doctor", self._words(line), called="%transient_doctor")
        return self._obey(command)

    @line_magic
    def transient_image(self, line: str) -> Any:
        """Images that VMs boot from ready to train: bake, list and delete them.

        %transient_image build|list|delete ...      for example: %transient_image build --project
        my-project

        `%transient_image SUB-COMMAND -h` lists the options of each. A build goes on by itself;
        `list` shows how far it is.
        """
        command = arguments.parse("image", self._words(line), called="%transient_image")
        return self._obey(command)

    def work_magic(self, name: str) -> Callable[..., Any]:
        """Return the magic that declares work under a name, such as `job` or `transient_job`."""
        return MethodType(_WorkMagic(name), self)

    def declare_work(self, line: str, body: str | None, called: str) -> Any:
        """Declare work as a line of the magic that was `called` says, with the code of the cell's
        body.
        """
        from ..cli import options

        line, body, continued = _continued(line, body)
        typed = called.lstrip("%").removeprefix("transient_")
        verb = options.aliases().get(typed, typed)
        command = arguments.parse(verb, self._words(line), called=called)
        if command.verb != "help" and body is None and options.work_commands()[verb].from_file:
            what = f"A {options.kind_of(verb)} needs its code: write {called} with two %, and the code below it"
            raise DeclarationError(what)
        offset = self._lines_above(body) or 1 + continued
        code = options.Code(body or "", called, line_offset=offset, notebook=self._shell.user_ns)
        return self._obey(command, code)

    def _words(self, line: str) -> list[str]:
        try:
            return arguments.split(line)
        except DeclarationError:
            # A comment may have kept IPython from evaluating what stands before it: {braces} that
            # mean nothing.
            return arguments.split(str(self._shell.var_expand(arguments.without_comment(line))))

    def keep(self, cluster: Cluster) -> None:
        """Remember that this process declared or attached `cluster`."""
        self.held[cluster.name] = cluster

    def _obey(self, command: Command, code: Code | None = None) -> Any:
        from .dispatch import obey

        return obey(self, command, code)

    @property
    def _shell(self) -> Any:
        return self.shell

    def _lines_above(self, body: str | None) -> int:
        """How many lines of the cell, as the user sees it, stand above the body (0: not known)."""
        history = self._shell.history_manager.input_hist_raw
        if body and history:
            above, found, _ = history[-1].rpartition(body.rstrip("\n"))
        else:
            above = ""
            found = ""
            _ = ""
        if found:
            return above.count("\n")
        return 0


class _WorkMagic:
    """The function of the magic that declares work under a name."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, magics: TransientMagics, line: str, cell: str | None = None) -> Any:
        return magics.declare_work(line, cell, f"%%{self.__name__}")

    @property
    def __doc__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The text that `%job?` shows, computed on demand: loading imports no options."""
        from ..cli import options

        name = self.__name__
        short = name.removeprefix("transient_")
        command = options.work_commands()[options.aliases().get(short, short)]
        percents = "%" * (1 + command.from_file)  # work that needs code is a cell magic
        return (
            f"{command.description}\n\n"
            f"{percents}{name} {command.example}\n\n"
            f"`%{name} -h` lists the options. `%%{_other_name(name)}` is the same magic."
        )


def _other_name(name: str) -> str:
    if name.startswith("transient_"):
        return name.removeprefix("transient_")
    return f"transient_{name}"


def _continued(line: str, body: str | None) -> tuple[str, str | None, int]:
    """Join a first line that ends with a backslash with the body's next lines.

    Return the line, the rest of the body (empty where it is blank), and how many lines were joined.
    """
    count = 0
    while body is not None and line.rstrip().endswith("\\"):
        following, _, body = body.partition("\n")
        line = f"{line.rstrip()[:-1]} {following}"
        count += 1
    if body is not None and not body.strip():
        body = ""
    return line, body, count


def with_body(lines: list[str]) -> list[str]:
    """Append a blank body to a cell that is only the line of one of our cell magics.

    An input transformer of IPython, which refuses an empty body before the magic is called. With a
    blank one `%%train -h` shows its help.
    """
    text = "".join(lines).strip()
    if "\n" not in text and _CELL.match(text):
        return [*lines, "\n"]
    return lines


def _toml(body: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        if found:
            place = f"cell line {int(found[1]) + 1}, column {found[2]}"
        else:
            place = "the cell's body"
        raise CellError(
            f"{place}: {str(error).partition(' (at')[0]}",
            fix='The body is TOML, as: spec = "k80x4"',
        ) from None
