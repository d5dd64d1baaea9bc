"""What is found out about a training cell before anything is launched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from transient_magics.client.cell import check, check_syntax
from transient_magics.client.declaring import payload
from transient_magics.client.declaring.payload import copy, included
from transient_magics.errors import CellError, DeclarationError

DIGITS = Path(__file__).parents[2] / "templates" / "digits.py"


@pytest.mark.parametrize(
    "source",
    [
        DIGITS.read_text(encoding="utf-8"),
        "xs = [1]\nys = [x for x in xs if x]\nclass A:\n    def m(self):\n        return super().m(), __class__\n",
        "def f():\n    global g\n    g = 1\ndef h():\n    return g\n",
        "def f():\n    return later\nlater = 3\n",
        "from x import *\nfoo()\n",
        "if (n := 3) > 2:\n    print(n, __name__)\n",
        "import a.b as c, d.e\nmatch c:\n case [p, *q]:\n  print(p, q, d)\n case {'k': v, **r}:\n  v, r\n",
        "exec('name = 1')\nprint(name)\n",
        "from __future__ import annotations\ndef f(a: Unknown) -> Also: ...\n",
        "try:\n    pass\nexcept ValueError as e:\n    print(e)\nwith open('x') as f, open('y') as g:\n    f, g\n",
        "def outer():\n    x = 1\n    def inner():\n        nonlocal x\n        x += 1\n    return inner\n",
        "f = lambda z, *a, k=1, **kw: z + a + k + kw\n",
    ],
)
def test_a_cell_that_brings_what_it_uses_passes(source: str) -> None:
    check(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\ny = (1,\n", "cell line 3: '(' was never closed"),
        (
            "import os\n!pip install x\n",
            "cell line 3: invalid syntax. Remove lines with % and !, because VMs run plain Python",
        ),
        ("def f():\n  return 1\n return 2\n", "cell line 4: unindent"),
        ("\x00", "null bytes"),
        ("  \n", "has no body"),
        ("def f():\n    return lerning\n", "cell line 3: 'lerning' is not defined"),
        ("display(3)\n", "The VMs run plain Python"),
        ("from . import helpers\n", "a cell, which has no package"),
    ],
)
def test_a_fault_names_the_line_of_the_notebooks_cell(source: str, said: str) -> None:
    with pytest.raises(CellError) as error:
        check(source)
    assert said in str(error.value)


def test_a_name_of_the_notebook_is_reported_with_a_way_to_bring_it() -> None:
    def helper() -> None: ...

    notebook = {"batch": 64, "js": json, "helper": helper}
    source = "a = [batch for batch in range(3)]\n\nprint(batch)\n"
    with pytest.raises(CellError, match=r"cell line 4: 'batch' exists in this notebook.*--hparams batch={batch}"):
        check(source, notebook)
    with pytest.raises(CellError) as error:
        check(source, notebook, own_model=True)
    assert "--hparams" not in str(error.value), "a model of the cell's own takes none"
    with pytest.raises(CellError) as error:
        check(source, notebook, hparams=False)
    assert str(error.value).endswith("Define it in the cell, or in a module that comes with --include.")
    with pytest.raises(CellError, match=r"cell line 2: 'js' exists.*`import json as js`"):
        check("def f(): js.dumps(1)\n", notebook)
    with pytest.raises(CellError, match=r"cell line 2: 'helper' exists.*--include"):
        check("helper()\n", notebook)


def test_several_names_are_reported_at_once_in_the_order_of_their_lines() -> None:
    with pytest.raises(CellError, match=r"cell line 2: 'b' .*cell line 3: 'a' .*and 2 more"):
        check("b\na\nc\nd\ne\nf\n")


def test_in_a_file_lines_are_the_files_own() -> None:
    with pytest.raises(CellError, match=r"^line 1: 'lerning'"):
        check("lerning\n", line_offset=0)


def test_a_module_beside_the_notebook_must_be_sent_along(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("", encoding="utf-8")
    with pytest.raises(
        CellError, match=r"cell line 2: the module 'helpers' is next to the notebook.*--include helpers\.py"
    ):
        check("import helpers\n", folder=tmp_path)
    check("import helpers\n", folder=tmp_path, include=included(["helpers"], tmp_path))


def test_what_is_included_exists_and_is_not_huge(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("", encoding="utf-8")
    (tmp_path / "package").mkdir()
    assert included(["helpers", "package", "helpers.py"], tmp_path) == (
        str(tmp_path / "helpers.py"), str(tmp_path / "package"), str(tmp_path / "helpers.py"),
    )  # fmt: skip
    with pytest.raises(DeclarationError, match="'helper' is neither a file nor a folder"):
        included(["helper"], tmp_path)
    with (tmp_path / "package" / "data").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(DeclarationError, match="more than 200 MB"):
        included(["package"], tmp_path)


def test_links_are_included_as_what_they_lead_to_and_count_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere, target = tmp_path / "project", tmp_path / "elsewhere", tmp_path / "sent"
    for folder in (project / "code", project / "__pycache__", elsewhere, target):
        folder.mkdir(parents=True)
    (project / "code" / "main.py").write_text("print(1)", encoding="utf-8")
    (project / "__pycache__" / "main.pyc").write_text("", encoding="utf-8")
    (project / ".env").write_text("KEY=value", encoding="utf-8")
    (project / "code" / "run.sh").write_text("#!/bin/sh", encoding="utf-8")
    (project / "code" / "run.sh").chmod(0o755)
    (elsewhere / "rows.csv").write_text("1,2\n", encoding="utf-8")
    (project / "data").symlink_to(elsewhere)
    (project / "readme").symlink_to(elsewhere / "rows.csv")
    os.mkfifo(project / "pipe")
    copy(included(["project"], tmp_path), target)
    sent = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file() and not path.is_symlink()}
    assert sent == {
        "project/.env", "project/code/main.py", "project/code/run.sh", "project/data/rows.csv", "project/readme",
    }  # fmt: skip
    assert os.access(target / "project" / "code" / "run.sh", os.X_OK)
    with pytest.raises(DeclarationError, match="Two of the included files and folders have the name 'project'"):
        copy([str(project)], target)
    with (elsewhere / "large").open("wb") as file:
        file.truncate(300 * 2**20)
    with pytest.raises(DeclarationError, match=r"data/large', the included files have more than 200 MB"):
        included(["project"], tmp_path)
    (elsewhere / "large").unlink()
    monkeypatch.setattr(payload, "MOST_FILES", 5)
    with pytest.raises(DeclarationError, match="more than 5 files are included"):
        included(["project"], tmp_path)


def test_links_without_an_end_and_links_to_nothing_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "loopy" / "a").mkdir(parents=True)
    (tmp_path / "loopy" / "a" / "up").symlink_to("..")
    with pytest.raises(DeclarationError, match=r"'.*/loopy/a/up' is a link to a folder that contains it"):
        included(["loopy"], tmp_path)
    (tmp_path / "loopy" / "a" / "up").unlink()
    (tmp_path / "loopy" / "a" / "gone").symlink_to("nowhere")
    with pytest.raises(DeclarationError, match=r"'.*/loopy/a/gone' is a broken link"):
        included(["loopy"], tmp_path)


def test_the_limit_holds_while_files_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "growing").mkdir()
    (tmp_path / "growing" / "log").write_bytes(bytes(90))
    monkeypatch.setattr(payload, "MOST_BYTES", 100)
    paths = included(["growing"], tmp_path)
    (tmp_path / "growing" / "log").write_bytes(bytes(101))
    (tmp_path / "sent").mkdir()
    with pytest.raises(DeclarationError, match=r"With '.*/growing/log', the included files have more than"):
        copy(paths, tmp_path / "sent")
    assert sum(path.stat().st_size for path in (tmp_path / "sent").rglob("*") if path.is_file()) <= 100


def test_parameters_are_names_that_a_cell_has_and_has_to_read() -> None:
    cell = "import keras\nmodel = keras.optimizers.Adam(lr)\n\ndef input_fn(mode):\n    return mode\n"
    check(cell, own_model=True, params=dict.fromkeys(["lr", "batch_size"], "--param"))
    for source, params, said in (
        (cell, [], "cell line 3: 'lr' is not defined"),
        (cell, ["lr", "units"], "The cell does not read the parameter 'units'"),
        (f"lr = 0.1\n{cell}", ["lr"], "cell line 2: 'lr' is a parameter, but the cell sets it itself"),
    ):
        with pytest.raises(CellError) as refused:
            check(source, own_model=True, params=dict.fromkeys(params, "--param"))
        assert str(refused.value).startswith(said)
    for params, said in (
        (
            {"units": "--param", "lrr": "--over"},
            "--over sets 'lrr', which the cell does not read: use the same name in both.",
        ),
        ({"rate": "--param"}, "--param sets 'rate', which the cell does not read: use the same name in both."),
        ({"batch_size": "--over"}, "Import it in the cell, or define it there."),
    ):
        with pytest.raises(CellError) as refused:
            check(cell, own_model=True, params=params)
        assert str(refused.value) == f"cell line 3: 'lr' is not defined. {said}"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import asyncio\nawait asyncio.sleep(1)", "cell line 3: 'await' outside function. Only notebooks can await"),
        ("x = [\n    await y\n    for y in z\n]", "cell line 2: asynchronous comprehension"),
        ("async with a:\n    pass", "cell line 2: 'async with' outside async function. Only notebooks can await"),
        ("if 1:\n    return 5", "cell line 3: 'return' outside function. The line is: return 5"),
        ("yield 1", "cell line 2: 'yield' outside function"),
        (
            "x = 1\nfrom __future__ import annotations",
            "cell line 3: from __future__ imports must occur at the beginning",
        ),
        ("x = 1\nbreak", "cell line 3: 'break' outside loop"),
        ("def f(a, a): pass", "cell line 2: duplicate argument 'a'"),
        ("def f():\n    global x\n    x = 1\n    nonlocal y", "cell line 5: no binding for nonlocal 'y' found"),
        ("!ls", "cell line 2: invalid syntax. Remove lines with % and !, because VMs run plain Python"),
        (
            "import os\nfiles = !ls *.py",
            "cell line 3: invalid syntax. Remove lines with % and !, because VMs run plain Python",
        ),
        ("%time f()", "Remove lines with % and !, because VMs run plain Python"),
        ("spent = %time f()", "Remove lines with % and !, because VMs run plain Python"),
        ("import os\nos.path?", "Remove lines with % and !, because VMs run plain Python"),
        ("x = 1 +", "cell line 2: invalid syntax. The line is: x = 1 +"),
        ("x = 'a\0b'", "null bytes"),
        ("  \n", "There is no code to run"),
    ],
)
def test_the_code_of_a_job_is_compiled_before_anything_is_rented_for_it(code: str, said: str) -> None:
    with pytest.raises(CellError) as caught:
        check_syntax(code, 1)
    assert said in str(caught.value)


def test_the_code_of_a_job_may_await_and_return_in_functions_and_have_future_imports_first() -> None:
    check_syntax("from __future__ import annotations\nasync def f():\n    await g()\n    return 5\n", 1)


def test_a_file_that_a_command_runs_is_compiled_too() -> None:
    with pytest.raises(CellError, match=r"^train\.py line 2: 'return' outside function"):
        check_syntax("x = 1\nreturn x", file="train.py")
    with pytest.raises(CellError, match=r"^train\.py is empty"):
        check_syntax("", file="train.py")
