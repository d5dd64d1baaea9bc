"""The magics: each parses its line, executes a verb, and shows the answer.

A magic that declares something shows its panel and returns its handle. If the handle is also the
last value of the cell, IPython does not show it twice (see `panels.show`). Errors are
TransientErrors: one line, and the cell fails. An interrupt ends only the waiting; clusters and runs
continue.

Registration loads little: the first magic of a cell imports the modules that verbs need
(`magics.dispatch`, and through it journals and panels).
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
    """The magics of transient_magics.

    Attributes
    ----------
    clusters : dict of str to Cluster
        The clusters that this process declared or attached, by name.
    """

    clusters: ClassVar[dict[str, Cluster]] = {}

    @line_cell_magic
    def transient_cluster(self, line: str, cell: str | None = None) -> Any:
        """Declare a cluster of transient GPU servers, or manage one.

        %transient_cluster SPEC [options]           for example: c = %transient_cluster k80x4
        %transient_cluster                          show a panel that declares a cluster
        %%transient_cluster [options]               declare a cluster by TOML in the cell's body
        %transient_cluster SUB-COMMAND ...          list, status, attach, resize, relocate, revoke,
                                                    move, agree, logs, events, delete or sweep

        `%transient_cluster -h` lists the options, `%transient_cluster SUB-COMMAND -h` those of a
        sub-command.
        """
        called = "%transient_cluster"
        words = self._words(line)
        if cell is not None:
            called = "%%transient_cluster"
            words += arguments.words_of_table(_toml(cell))
        if not words and cell is None:
            from .. import panels

            panels.show_declare(self.keep)
            return None
        command = arguments.parse("cluster", words, called=called)
        return self._obey(command)

    @line_magic
    def transient_help(self, line: str) -> None:
        """Show all magics, or the options of one.

        %transient_help [COMMAND]                   for example: %transient_help train
        """
        display(arguments.explain(self._words(line), notebook=True))

    @line_cell_magic
    def transient_stalls(self, line: str, cell: str | None = None) -> Any:
        """Measure the parts of a step's time on a cluster, and suggest improvements.

        Nothing is trained.

        %transient_stalls RUN [options]             with the model and data of a run
        %transient_stalls --model resnet --hparams-set resnet_cifar_32 --problem image_digits
        %%transient_stalls [options]                with the model of the cell, as for %%train

        `%transient_stalls -h` lists the options.
        """
        called = "%transient_stalls"
        if cell is not None:
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
        """Stop a piece of work of any kind and keep its results so far.

        %transient_stop CLUSTER NAME                for example: %transient_stop k80x4 job-1
        """
        return self._obey(arguments.parse("stop", self._words(line), called="%transient_stop"))

    @line_magic
    def transient_weather(self, line: str) -> Any:
        """Show or set the weather of the emulator: revocations, stockouts, faster time, ...

        %transient_weather NAME [options]

        For example: %transient_weather k80x4 --revocations published

        `%transient_weather -h` lists the options. All clusters without a project share one weather.
        """
        command = arguments.parse("weather", self._words(line), called="%transient_weather")
        return self._obey(command)

    @line_magic
    def transient_deflate(self, line: str) -> Any:
        """Shrink an emulated VM while it runs, or change the machine type of a worker.

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
        """Measure capacity: request VMs in some zones and delete them immediately.

        Without GPU, show the measurements.

        %transient_measure [GPU] [options]

        For example: %transient_measure t4 --zones us-east1-c --budget 2

        `%transient_measure -h` lists the options.
        """
        command = arguments.parse("measure", self._words(line), called="%transient_measure")
        return self._obey(command)

    @line_magic
    def transient_lifetimes(self, line: str) -> Any:
        """Show lifetimes of transient VMs: your own, published ones, or those of a file.

        %transient_lifetimes [options]

        For example: %transient_lifetimes --gpu k80 --source published

        `%transient_lifetimes -h` lists the options.
        """
        command = arguments.parse("lifetimes", self._words(line), called="%transient_lifetimes")
        return self._obey(command)

    @line_cell_magic
    def transient_plan(self, line: str, cell: str | None = None) -> Any:
        """Estimate the time and the cost of a run; without a SPEC, find the best clusters.

        %transient_plan [SPEC] --workload WORKLOAD --train-steps N [options]
        %%transient_plan [SPEC] --train-steps N [options]       with the model of the cell

        `%transient_plan -h` lists the options. Nothing is created.
        """
        called = "%transient_plan"
        if cell is not None:
            called = "%%transient_plan"
        line, cell, continued = _continued(line, cell)
        words = self._words(line)
        if cell:
            words += ["--cell", "-"]
        command = arguments.parse("plan", words, called=called)
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
        """Check the requirements of training on Google Cloud.

        %transient_doctor [SPEC] [options]

        For example: %transient_doctor --project my-project

        `%transient_doctor -h` lists the options. Nothing is created.
        """
        command = arguments.parse("doctor", self._words(line), called="%transient_doctor")
        return self._obey(command)

    @line_magic
    def transient_image(self, line: str) -> Any:
        """Build, list or delete images from which VMs boot sooner.

        %transient_image build|list|delete ...

        For example: %transient_image build --project my-project

        `%transient_image SUB-COMMAND -h` lists the options of each. A build runs in the background;
        `list` shows its progress.
        """
        command = arguments.parse("image", self._words(line), called="%transient_image")
        return self._obey(command)

    def work_magic(self, name: str) -> Callable[..., Any]:
        """Return the magic that declares work under a name, such as `job` or `transient_job`."""
        return MethodType(_WorkMagic(name), self)

    def declare_work(self, line: str, body: str | None, called: str) -> Any:
        """Declare work with the code of the cell's body.

        Parameters
        ----------
        line
            The line of the magic.
        body
            The body of the cell; None for a line magic.
        called
            The magic with its percent signs, such as `%%train`.
        """
        from ..cli import options

        line, body, continued = _continued(line, body)
        typed = called.lstrip("%").removeprefix("transient_")
        verb = options.aliases().get(typed, typed)
        command = arguments.parse(verb, self._words(line), called=called)
        if command.verb != "help" and body is None and options.work_commands()[verb].from_file:
            kind = options.kind_of(verb)
            raise DeclarationError(
                f"A {kind} needs its code", fix=f"Write {called} with two %, and the code below it."
            )
        offset = self._lines_above(body) or 1 + continued
        code = options.Code(body or "", called, line_offset=offset, notebook=self._shell.user_ns)
        return self._obey(command, code)

    def _words(self, line: str) -> list[str]:
        try:
            return arguments.split(line)
        except DeclarationError:
            # {Braces} in a comment may have kept IPython from evaluating the rest of the line.
            return arguments.split(str(self._shell.var_expand(arguments.without_comment(line))))

    def keep(self, cluster: Cluster) -> None:
        """Record that this process declared or attached a cluster."""
        self.clusters[cluster.name] = cluster

    def _obey(self, command: Command, code: Code | None = None) -> Any:
        from .dispatch import obey

        return obey(self, command, code)

    @property
    def _shell(self) -> Any:
        return self.shell

    def _lines_above(self, body: str | None) -> int:
        """Return the number of lines above the body in the cell as the user sees it; 0: unknown."""
        history = self._shell.history_manager.input_hist_raw
        if not body or not history:
            return 0
        above, found, _ = history[-1].rpartition(body.rstrip("\n"))
        if not found:
            return 0
        return above.count("\n")


class _WorkMagic:
    """The function of a magic that declares work."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, magics: TransientMagics, line: str, cell: str | None = None) -> Any:
        return magics.declare_work(line, cell, f"%%{self.__name__}")

    @property
    def __doc__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The text of `%job?`. It is computed on demand, so that loading imports no options."""
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
    """Join a first line that ends with a backslash with the next lines of the body.

    Return the line, the rest of the body (empty if it is blank), and the number of joined lines.
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
    """Append a blank body to a cell that has only the line of one of our cell magics.

    This is an input transformer of IPython, which refuses an empty body before it calls the magic.
    With a blank body, `%%train -h` shows its help.
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
            fix='Write TOML, such as: spec = "k80x4"',
        ) from None
