"""The magics in a real IPython shell, on the emulator: what is returned, bound, printed and refused."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from tests.homes import end_emulator
from transient_magics import client
from transient_magics.cli.answers import Listing, Snapshot
from transient_magics.cli.program import main
from transient_magics.errors import CellError, ClusterError, DeclarationError, TransientError
from transient_magics.journal import ClusterState
from transient_magics.magics.answers import listing_html, snapshot_html

TRAIN = "%%train --model resnet --hparams-set resnet_cifar_32 --problem image_digits --train-steps 20"


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of our own, with a short path; every cluster in it is deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    yield folder
    for cluster in client.clusters():
        with contextlib.suppress(TransientError):
            cluster.delete(timeout=150)
    end_emulator()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shell(home: Path) -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()  # what `get_ipython` gives, as in a terminal
    run(shell, "%load_ext transient_magics")
    yield shell
    run(shell, "%unload_ext transient_magics")
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, code: str) -> ExecutionResult:
    return shell.run_cell(code, store_history=True)


def refused(shell: InteractiveShell, code: str) -> str:
    error = run(shell, code).error_in_exec
    assert isinstance(error, TransientError), error
    assert len(error._render_traceback_()) == 1
    return str(error)


@pytest.mark.parametrize("handle", [client.Cluster, client.Run, client.Study, client.Job, client.Bag, client.Stalls])
def test_every_handle_that_a_magic_returns_is_shown_as_its_panel(shell: InteractiveShell, handle: type) -> None:
    assert handle in shell.display_formatter.ipython_display_formatter  # type: ignore[union-attr]


def test_loading_twice_and_unloading_leave_no_trace(shell: InteractiveShell) -> None:
    before = set(shell.magics_manager.magics["cell"])
    run(shell, "%reload_ext transient_magics")
    assert set(shell.magics_manager.magics["cell"]) == before
    run(shell, "%unload_ext transient_magics")
    assert not {"train", "transient_train", "sweep", "transient_sweep", "transient_cluster"} & set(
        shell.magics_manager.magics["cell"]
    )
    run(shell, "%load_ext transient_magics")


@pytest.mark.parametrize("face", ["notebook", "terminal"])
def test_one_cluster_that_cannot_be_deleted_keeps_none_of_the_others(
    face: str,
    shell: InteractiveShell,
    home: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone: list[str] = []

    def delete(cluster: client.Cluster, **_: object) -> None:
        if cluster.name in ("a", "b"):
            raise ClusterError(f"{cluster.name} does not answer")
        gone.append(cluster.name)

    for name in ("a", "b", "c"):
        folder = home / "clusters" / name
        folder.mkdir(parents=True)
        spec = client.specify(client.Declaration("cpux1", name=name))
        (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(client.Cluster, "delete", delete)
        if face == "notebook":
            said = refused(shell, "%transient_cluster delete --all")
            out = capsys.readouterr().out
        else:
            assert main(["cluster", "delete", "--all"]) == 1
            out, said = capsys.readouterr()
    assert gone == ["c"]
    assert "c is deleted" in out
    assert "a does not answer" in said
    assert "b does not answer" in said
    shutil.rmtree(home / "clusters")


def test_another_extensions_train_is_left_to_it(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = InteractiveShell()
    shell.register_magic_function(lambda line, cell: "theirs", "cell", "train")
    run(shell, "%load_ext transient_magics")
    assert "%%transient_train is ours" in capsys.readouterr().out
    assert run(shell, "%%train\nx").result == "theirs"
    assert "cell line 2: 'x' is not defined" in refused(shell, "%%transient_train\nx")
    assert "needs --train-steps" in refused(shell, "%%sweep --over lr=1,2\nx")
    assert "A job needs a command, or code below it, not both" in refused(shell, "%%job 'python x.py'\nx")
    assert "cell line 2: invalid syntax. The line is: a b c" in refused(shell, "%%transient_job --keep out\na b c")
    assert 'Put the whole command in quotes, such as "python train.py".' in refused(shell, "%job python train.py")
    assert "cell line 2: 'lr' is a parameter, but the cell sets it itself" in refused(
        shell, "%%sweep --over lr=1,2 --train-steps 5 --objective accuracy\nlr = 1\nmodel = lr\ndef input_fn(mode): 1"
    )


def test_a_dead_controller_is_reported_above_what_its_cluster_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    said = "No controller of <demo> has been running since 03:04."
    for html in (
        snapshot_html(Snapshot(client.Cluster("demo"), ClusterState(name="demo"), unattended=said)),
        listing_html(Listing([client.Cluster("demo")], unattended=[said])),
    ):
        assert html.startswith("<div>No controller of &lt;demo&gt; has been running since 03:04.</div>")


@pytest.mark.slow
def test_a_declared_cluster_is_returned_bound_and_shown_once(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(shell, "n = 1\nc = %transient_cluster cpux$n --name demo -o d --wait  # {just} a comment\nc")
    assert isinstance(result.result, client.Cluster)
    assert shell.user_ns["c"] is shell.user_ns["d"]
    assert shell.user_ns["c"].state.phase == "ready"
    assert capsys.readouterr().out.count("nothing is billed") == 1
    run(shell, "%transient_cluster list")
    assert "demo" in capsys.readouterr().out
    assert "The cluster demo already exists" in refused(shell, "%transient_cluster cpux1 --name demo")
    assert "worker-9" in refused(shell, "%transient_cluster revoke demo worker-9")
    run(shell, "%transient_cluster status demo")
    assert "worker-0" in capsys.readouterr().out
    run(shell, "%transient_cluster events demo --kind vm.ready")
    assert len(capsys.readouterr().out.splitlines()) == 2
    for _ in range(2):
        run(shell, "%transient_cluster delete demo")
        assert "demo is deleted, no VM is left" in capsys.readouterr().out


def test_a_table_in_the_body_declares_too(shell: InteractiveShell) -> None:
    result = run(shell, '%%transient_cluster --dry-run\nname = "big"\n[[group]]\ngpu = "k80"\ncount = 3\n')
    assert isinstance(result.result, client.Preview)
    assert result.result.spec.spec == "k80x3"
    assert "cell line 2, column 7" in refused(shell, "%%transient_cluster\nspec =\n")


@pytest.mark.parametrize(
    "code",
    [
        "%transient_cluster k80x4+v100x2 --dry-run",
        "%transient_lifetimes --gpu k80 --source published",
        "%transient_plan k80x4 --workload icac19/resnet-32 --train-steps 64000",
    ],
)
def test_what_a_notebook_shows_is_whole_and_its_prices_are_no_formulas(shell: InteractiveShell, code: str) -> None:
    assert shell.display_formatter is not None
    data, _ = shell.display_formatter.format(run(shell, code).result)
    shown = ElementTree.fromstring(data["text/html"])
    alone = [
        element
        for element in shown.iter()
        if "$" in (element.text or "") and (element.tag, element.text) != ("span", "$")
    ]
    assert not alone, "MathJax reads what is between two of these"
    assert not [element for element in shown.iter() if "$" in (element.tail or "")]
    if "--dry-run" in code:
        assert next(line for line in map(said_in, shown) if line.startswith("$")).endswith(".")
        assert "It would be deleted automatically" in said_in(shown)


def said_in(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


@pytest.mark.parametrize(
    ("code", "error", "said"),
    [
        ("%transient_cluster k80x", DeclarationError, "column 5"),
        ("%transient_cluster k80x4 --naem a", DeclarationError, "Did you mean --name?"),
        ("%transient_cluster k80x$missing", DeclarationError, "'$missing' cannot be evaluated"),
        ("%transient_cluster status nope", ClusterError, "Unknown cluster 'nope'"),
        ("%train " + TRAIN[8:], DeclarationError, "Write %%train with two %"),
        (TRAIN + "\nimport os\nx = (\n", CellError, "cell line 3: '(' was never closed"),
        (TRAIN + "\nbatch\n", CellError, "cell line 2: 'batch' exists in this notebook"),
        (TRAIN + " \\\n  --mode async\nbatch\n", CellError, "cell line 3: 'batch'"),
        ("\n\n" + TRAIN + "\nbatch\n", CellError, "cell line 4: 'batch'"),
        (TRAIN + "\nx = 1\n", ClusterError, "There is no cluster yet"),
        (TRAIN + " --include nothere\nx = 1\n", DeclarationError, "'nothere' is neither a file nor a folder"),
    ],
)
def test_a_mistake_is_one_line_and_launches_nothing(
    shell: InteractiveShell, code: str, error: type[Exception], said: str
) -> None:
    run(shell, "batch = 3")
    result = run(shell, code)
    assert isinstance(result.error_in_exec, error)
    assert said in str(result.error_in_exec)
    assert client.clusters(all=True) == []


@pytest.mark.slow
def test_leaving_with_a_living_cluster_warns_with_one_line(home: Path) -> None:
    code = (
        "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell()\n"
        "shell.run_cell('%load_ext transient_magics'); shell.run_cell('%transient_cluster cpux1 --name demo --wait')"
    )
    left = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert left.stderr == (
        "transient_magics: demo is still running (emulated, 2 VMs); `transient cluster delete demo` ends it.\n"
    )


@pytest.mark.slow
def test_interrupting_a_wait_leaves_the_cluster_alone(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = client.Cluster.wait

    def interrupted(cluster: client.Cluster) -> object:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        return wait(cluster)

    with monkeypatch.context() as patched:
        patched.setattr(client.Cluster, "wait", interrupted)
        said = refused(shell, "%transient_cluster cpux1 --name demo --wait")
    assert "You interrupted only the wait: demo continues" in said
    cluster = client.cluster("demo")
    assert cluster.wait(150).phase == "ready"
    cluster.delete()
