"""The style gate finds planted violations; `make lint` runs it on the trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import style


def findings(name: str, text: str) -> list[tuple[str, int, str]]:
    """Return measure, line and text of all that the gate finds in a file with this text."""
    rules = style.Rules()
    of_file = style.of_python if name.endswith(".py") else style.of_text
    return [(finding.measure, finding.line, finding.text) for finding in of_file(Path(name), text, rules)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("docstring.py", '"""Return what nobody reads."""\n', ("words", 1, "nobody")),
        ("comment.py", "# A VM that is\n# told to end.\nvalue = 1\n", ("words", 1, "is told")),
        ("comments.py", "value = 1  # it goes on\n", ("words", 1, "goes on")),
        ("string.py", 'error = "the zone is to be named"\n', ("words", 1, "is to be")),
        ("joined.py", 'error = f"{1} VMs, so many"\n', ("words", 1, "so many")),
        ("negation.py", '"""It is no worker."""\n', ("words", 1, "is no worker")),
        ("opening.py", 'def stop() -> None:\n    """Have it end."""\n', ("openings", 2, "Have")),
        ("attribute.py", 'class A:\n    x = 1\n    """Those of `Clock`."""\n', ("openings", 3, "Those")),
        ("name.py", "def f(told):\n    return 1\n", ("names", 1, "told")),
        ("loop.py", "for each in []:\n    pass\n", ("names", 1, "each")),
        ("attr.py", "state.known\n", ("names", 1, "known")),
        ("page.md", "Workers, of\nlate, wait.\n", ("words", 1, "of late")),
        ("panel.js", "// whoever reads this\n", ("words", 1, "whoever")),
        ("conditional.py", "x = 1 if y else 2\n", ("conditional", 1, "")),
        ("nested.py", "x = 1 if y else 2 if z else 3\n", ("nested", 1, "")),
        ("tuples.py", "a, b = 1, 2\n", ("tuples", 1, "")),
        ("walrus.py", "print(a := 1)\n", ("walrus", 1, "")),
        ("skip.py", "a = 1  # fmt: skip\n", ("skip", 1, "")),
        ("long.py", f"a = {'1' * 100}\n", ("long", 1, "")),
    ],
)
def test_a_planted_violation_is_found(name: str, text: str, expected: tuple[str, int, str]) -> None:
    assert expected in findings(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.py", '"""Return the state of a VM."""\n\n\ndef state() -> str:\n    """Return it."""\n    return ""\n'),
        ("swap.py", "a, b = b, a\n"),
        ("walrus.py", "if a := f():\n    pass\n"),
        ("allowed.py", "told = 1  # plain: allow\n"),
        ("longer.py", '"""It is no longer there, and there is no such VM."""\n'),
        ("page.md", "Write `told` as code.\n"),
    ],
)
def test_plain_text_and_code_pass(name: str, text: str) -> None:
    assert findings(name, text) == []


def test_a_tree_above_its_limit_fails_and_names_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    rules = style.Rules()
    planted = style.Finding("words", Path("templates/planted.py"), 1, "Nobody", "the VM")
    count = style.Counter({"words": 1})
    rules.limits["templates"] = {}
    assert style.check({"templates": [planted]}, {"templates": count}, rules) == 1
    assert "templates/planted.py:1: 'Nobody' (write: the VM)" in capsys.readouterr().out
    rules.limits["templates"] = {"words": 1}
    assert style.check({"templates": [planted]}, {"templates": count}, rules) == 0
