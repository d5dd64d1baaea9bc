"""The magics themselves: thin, each a line that is read, a call to the client, and something to look at.

They return the handle. The panel is shown by then; should the handle also be the cell's last value, IPython does not
show it twice (see `panels.show`). Errors are TransientErrors, which say one line and fail the cell. Interrupting a
magic interrupts the waiting; clusters and runs go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.display import clear_output

from .. import client, panels
from ..cli import arguments
from ..cli.arguments import Command
from ..client import Build, Cluster, Declaration, ImageList, Run, cell, text
from ..client.following.watch import watch
from ..client.planning.forecasts import forecast_line
from ..errors import CellError, ClusterError, DeclarationError
from .answers import Listing, Snapshot


@magics_class
class TransientMagics(Magics):
    """Magics of transient_magics. `held` has the clusters that this process declared or attached, by name."""

    held: ClassVar[dict[str, Cluster]] = {}

    @line_cell_magic
    def transient_cluster(self, line: str, cell: str | None = None) -> Any:
        """Declare a cluster of transient GPU servers, or look after one.

        %transient_cluster SPEC [options]           for example: c = %transient_cluster k80x4
        %transient_cluster                          a panel in which a cluster is put together
        %%transient_cluster [options]               the same as TOML in the cell's body
        %transient_cluster list|status|attach|resize|revoke|logs|events|delete|sweep ...

        `%transient_cluster -h` lists the options, `%transient_cluster SUB-COMMAND -h` those of a sub-command.
        """
        called = "%transient_cluster" if cell is None else "%%transient_cluster"
        words = self._words(line)
        if cell is not None:
            words += arguments.words_of_table(_toml(cell))
        if not words and cell is None:
            panels.show_declare(self._keep)
            return None
        command = arguments.parse("cluster", words, called=called)
        return self._obey(command, lambda: _VERBS[command.verb](self, command))

    @line_cell_magic
    def train(self, line: str, cell: str | None = None) -> Any:
        """Train a model on a cluster; the cell's body is the code, which runs on the VMs.

        %%train --model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 2000 [options]
        %%train --train-steps 2000 [options]        the model that the cell defines, as `%train -h` describes it

        `%train -h` lists the options. `%%transient_train` is the same magic.
        """
        return self._train(line, cell, "train")

    @line_cell_magic
    def transient_train(self, line: str, cell: str | None = None) -> Any:
        """The same as `%%train`, for notebooks in which something else owns that name."""
        return self._train(line, cell, "transient_train")

    @line_magic
    def transient_weather(self, line: str) -> Any:
        """See what the emulated zones do to a cluster's VMs, and set it: revocations, stockouts, faster time, ...

        %transient_weather NAME [options]           for example: %transient_weather k80x4 --revocations published

        `%transient_weather -h` lists the options. All clusters without a project share one weather.
        """
        command = arguments.parse("weather", self._words(line), called="%transient_weather")
        values = dict(command.values)
        return self._obey(command, lambda: client.cluster(values.pop("name", None)).weather(**values))

    @line_magic
    def transient_lifetimes(self, line: str) -> Any:
        """How long transient VMs live: your own, published ones, or those of a file.

        %transient_lifetimes [options]              for example: %transient_lifetimes --gpu k80 --source published

        `%transient_lifetimes -h` lists the options.
        """
        command = arguments.parse("lifetimes", self._words(line), called="%transient_lifetimes")
        return self._obey(command, lambda: client.lifetimes(**command.values))

    @line_magic
    def transient_plan(self, line: str) -> Any:
        """What a cluster would take and cost for a run, revocations included; without a SPEC, which clusters are best.

        %transient_plan [SPEC] --workload WORKLOAD --train-steps N [options]

        `%transient_plan -h` lists the options. Nothing is created.
        """
        command = arguments.parse("plan", self._words(line), called="%transient_plan")
        return self._obey(command, lambda: self._plan(command))

    @line_magic
    def transient_doctor(self, line: str) -> Any:
        """See whether all is here that training on Google Cloud needs, and with --spend whether it works.

        %transient_doctor [SPEC] [options]          for example: %transient_doctor --project my-project

        `%transient_doctor -h` lists the options. Nothing is made without --spend.
        """
        command = arguments.parse("doctor", self._words(line), called="%transient_doctor")
        return self._obey(command, lambda: self._examine(command))

    @line_magic
    def transient_image(self, line: str) -> Any:
        """Images that VMs boot from ready to train: bake, list and delete them.

        %transient_image build|list|delete ...      for example: %transient_image build --project my-project

        `%transient_image SUB-COMMAND -h` lists the options of each. A build goes on by itself; `list` shows
        how far it is.
        """
        command = arguments.parse("image", self._words(line), called="%transient_image")
        return self._obey(command, lambda: _IMAGE_VERBS[command.verb](command))

    def _plan(self, command: Command) -> Any:
        found = client.plan(**command.values)
        if command.output:
            self._shell.push({command.output: found}, interactive=False)
        return found

    def _train(self, line: str, body: str | None, name: str) -> Any:
        line, body, continued = _continued(line, body)
        command = arguments.parse("train", self._words(line), called=f"%%{name}")
        if command.verb != "help" and body is None:
            raise DeclarationError(f"A run needs its code: write %%{name} with two %, and the code below it")
        offset = self._lines_above(body) or 1 + continued
        return self._obey(command, lambda: self._launch(command, body or "", offset))

    def _words(self, line: str) -> list[str]:
        try:
            return arguments.split(line)
        except DeclarationError:
            # A comment may have kept IPython from evaluating what stands before it: {braces} that mean nothing.
            return arguments.split(str(self._shell.var_expand(arguments.without_comment(line))))

    @property
    def _shell(self) -> Any:
        return self.shell

    def _lines_above(self, body: str | None) -> int:
        """How many lines of the cell, as the user sees it, stand above the body (0: not known)."""
        history = self._shell.history_manager.input_hist_raw
        above, found, _ = history[-1].rpartition(body.rstrip("\n")) if body and history else ("", "", "")
        return above.count("\n") if found else 0

    def _obey(self, command: Command, act: Callable[[], Any]) -> Any:
        if command.verb == "help":
            print(command.values["text"])
            return None
        try:
            answer = act()
        except KeyboardInterrupt:
            raise ClusterError("Interrupted", fix="What was declared goes on: see %transient_cluster list.") from None
        return answer

    def _examine(self, command: Command) -> Any:
        spends = "spend" in command.values
        say: Callable[[str], None] = print if spends else lambda words: None
        try:
            found = client.doctor(**command.values, say=say)
        except KeyboardInterrupt:
            fix = "What it had made is deleted; %transient_doctor tells if anything is left."
            raise ClusterError("Interrupted", fix=fix) from None
        if spends and panels.has_front_end(self._shell):
            clear_output(wait=True)  # the table says all of it again
        return found

    def _hold(self, command: Command, handle: Cluster | Run) -> None:
        self._keep(handle if isinstance(handle, Cluster) else handle.cluster)
        if command.output:
            self._shell.push({command.output: handle}, interactive=False)

    def _keep(self, cluster: Cluster) -> None:
        self.held[cluster.name] = cluster

    def _declare(self, command: Command) -> Any:
        declaration = Declaration(**command.values)
        if command.dry_run:
            return client.preview(declaration)
        cluster = client.declare(declaration)
        self._hold(command, cluster)
        panels.show(cluster)
        if command.wait:
            _waiting(cluster.wait, cluster.name, fix=f"%transient_cluster delete {cluster.name} ends it.")
        return cluster

    def _launch(self, command: Command, body: str, offset: int) -> Run:
        values = dict(command.values)
        values["include"] = cell.included(values.get("include", ()))
        own_model = not values.get("model")
        cell.check(body, self._shell.user_ns, line_offset=offset, include=values["include"], own_model=own_model)
        run = client.train(source=body, line_offset=offset, **values)
        self._hold(command, run)
        panels.show_run(run)
        if command.wait:
            stop = f"{command.output}.stop()" if command.output else f"transient_magics.run({run.name!r}).stop()"
            _waiting(run.wait, f"{run.name} on {run.cluster.name}", fix=f"{stop} ends it.")
        return run

    def _list(self, command: Command) -> Listing:
        return Listing(client.clusters(all=command.values.get("all", False)), client.unreadable())

    def _status(self, command: Command) -> Snapshot:
        cluster = client.cluster(command.values.get("name"))
        state = cluster.state
        return Snapshot(state, forecast_line(cluster.run(state.active_run.name)) if state.active_run else "")

    def _attach(self, command: Command) -> Cluster:
        cluster = client.attach(command.values.get("name"), command.values.get("project"))
        if cluster.followed:
            print(f"Following {cluster.followed}.")
        self._hold(command, cluster)
        panels.show(cluster)
        return cluster

    def _resize(self, command: Command) -> None:
        cluster = client.cluster(command.values["name"])
        cluster.resize(command.values["spec"])
        print(f"{cluster.name} will have {command.values['spec']}.")

    def _revoke(self, command: Command) -> None:
        values = command.values
        client.cluster(values["name"]).revoke(values["worker"], values.get("seconds", 0.0))
        print(f"{values['worker']} of {values['name']} will be taken back: 30 seconds from its notice on.")

    def _logs(self, command: Command) -> None:
        values = command.values
        logged = client.cluster(values["name"]).logs(values["worker"], values.get("lines", 200))
        print(logged.rstrip("\n") or f"{values['worker']} has logged nothing yet.")

    def _events(self, command: Command) -> None:
        cluster = client.cluster(command.values.get("name"))
        kind = command.values.get("kind")
        if not command.values.get("follow"):
            print("\n".join(map(text.event_line, cluster.events(kind))) or "No events.")
            return
        for event in watch(cluster, kind):
            print(text.event_line(event), flush=True)

    def _delete(self, command: Command) -> None:
        cluster = None
        for cluster in client.deleted(**command.values):
            self.held.pop(cluster.name, None)
            print(text.deleted_words(cluster.state, cluster.cost()))
        if cluster is None:
            print(text.NOTHING_TO_DELETE)

    def _sweep(self, command: Command) -> None:
        print(client.sweep(**command.values))


_VERBS: dict[str, Callable[[TransientMagics, Command], Any]] = {
    "declare": TransientMagics._declare,
    "list": TransientMagics._list,
    "status": TransientMagics._status,
    "attach": TransientMagics._attach,
    "resize": TransientMagics._resize,
    "revoke": TransientMagics._revoke,
    "logs": TransientMagics._logs,
    "events": TransientMagics._events,
    "delete": TransientMagics._delete,
    "sweep": TransientMagics._sweep,
}


def _build_image(command: Command) -> Build | None:
    build = client.build_image(**command.values)
    if not command.wait:
        return build
    print(f"{build.name} is being built.", flush=True)
    try:
        for step in build.steps():
            print(f"  {step}", flush=True)
        build.wait()
    except KeyboardInterrupt:
        what = f"Only the waiting was interrupted: the build of {build.name} goes on"
        raise ClusterError(what, fix="%transient_image list shows how far it is.") from None
    return build


def _list_images(command: Command) -> ImageList:
    return client.images(**command.values)


def _delete_image(command: Command) -> None:
    print(client.delete_image(**command.values))


_IMAGE_VERBS: dict[str, Callable[[Command], Any]] = {
    "image build": _build_image,
    "image list": _list_images,
    "image delete": _delete_image,
}


def _waiting(wait: Callable[[], Any], what: str, *, fix: str) -> None:
    try:
        wait()
    except KeyboardInterrupt:
        raise ClusterError(f"Only the waiting was interrupted: {what} goes on", fix=fix) from None


def _continued(line: str, body: str | None) -> tuple[str, str | None, int]:
    """A first line that ends with a backslash goes on in the body's first lines; how many did."""
    count = 0
    while body is not None and line.rstrip().endswith("\\"):
        following, _, body = body.partition("\n")
        line = f"{line.rstrip()[:-1]} {following}"
        count += 1
    return line, body, count


def _toml(body: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(body)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        place = f"cell line {int(found[1]) + 1}, column {found[2]}" if found else "the cell's body"
        raise CellError(
            f"{place}: {str(error).partition(' (at')[0]}", fix='The body is TOML, as: spec = "k80x4"'
        ) from None
