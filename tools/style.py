"""Count what the writing guide rules out, and fail where a tree has more of it than its limit: part of `make lint`.

Words are looked for in docstrings, comments, strings, Markdown, templates and JavaScript, across line breaks; names in
Python code. Of code it counts the constructs that make lines dense. The word lists and the limits are in
`tools/style.toml`. A line with the marker `plain: allow` is not counted, and there are at most twenty of these lines.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
RULES = ROOT / "tools" / "style.toml"
TREES = ("transient_magics", "transient_emulator", "widgets", "templates", "docs", "README.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".js", ".ts", ".css", ".j2", ".sh", ".html"}
LEFT_OUT = {"node_modules", "dist", "_build", "reference", "gallery", "__pycache__"}
ALLOW = "plain: allow"
EXAMPLES = "\n| instead of | write |\n"
"""The head of the table of examples at the end of CONTRIBUTING, which is not counted."""
MOST_ALLOWED = 20
MOST_LISTED = 50
LONG_LINE = 100
DIRECTIVES = ("fmt:", "noqa", "type:", "pyright:", "ruff:")


@dataclass(frozen=True, slots=True)
class Finding:
    """One place that the guide rules out.

    Attributes
    ----------
    measure : str
        What is counted: `words`, `openings`, `names`, or a construct of code such as `conditional`.
    path : pathlib.Path
        The file, relative to the root of the project.
    line : int
        The line, from 1.
    text : str
        The words or the name; empty for a construct of code.
    advice : str
        What to write instead; empty for a construct of code.
    """

    measure: str
    path: Path
    line: int
    text: str = ""
    advice: str = ""


class Rules:
    """The word lists, limits and exempt files of `style.toml`."""

    def __init__(self, path: Path = RULES) -> None:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        self.words = _compiled(values["words"], re.IGNORECASE)
        self.openings = _compiled(values["openings"], 0)
        self.names = {re.compile(pattern): advice for pattern, advice in values["names"].items()}
        self.exempt = frozenset(values["exempt"]["files"])
        self.limits: dict[str, dict[str, int]] = values.get("limits", {})


def _compiled(patterns: dict[str, str], flags: int) -> dict[re.Pattern[str], str]:
    """Return regular expressions that match whole words, with any white space for each blank."""
    compiled = {}
    for pattern, advice in patterns.items():
        spaced = pattern.replace(" ", r"\s+")
        compiled[re.compile(rf"\b(?:{spaced})\b", flags)] = advice
    return compiled


def main() -> int:
    """Print the counts of each tree; with `--check`, fail where one exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: the trees with limits)")
    parser.add_argument("--check", action="store_true", help="fail where a tree exceeds a limit of tools/style.toml")
    parser.add_argument("--tighten", action="store_true", help="lower the limits to the present counts")
    parser.add_argument("--list", action="store_true", help="list the places")
    options = parser.parse_args()
    rules = Rules()
    paths = [path.resolve() for path in options.paths] or [ROOT / tree for tree in TREES]
    counts: dict[str, Counter[str]] = {}
    findings: dict[str, list[Finding]] = {}
    for path in paths:
        tree = path.relative_to(ROOT).as_posix()
        findings[tree] = list(of_tree(path, rules))
        counts[tree] = Counter(finding.measure for finding in findings[tree])
    if options.list:
        for tree in findings:
            for finding in findings[tree]:
                print(in_words(finding))
    if options.tighten:
        tighten(counts, rules)
    if options.check:
        return check(findings, counts, rules)
    for tree, count in counts.items():
        print(f"{tree}: " + ", ".join(f"{measure} {count[measure]}" for measure in sorted(count)))
    return 0


def check(findings: dict[str, list[Finding]], counts: dict[str, Counter[str]], rules: Rules) -> int:
    """Return 1, and print what to do, where a tree exceeds a limit or too many lines are marked; else 0."""
    failed = False
    for tree, count in counts.items():
        limits = rules.limits.get(tree, {})
        for measure, found in sorted(count.items()):
            limit = limits.get(measure, 0)
            if found <= limit:
                continue
            failed = True
            print(f"{tree}: {found} of {measure}, and the limit is {limit} (tools/style.toml).")
            if found > MOST_LISTED:
                print(f"  tools/style.py --list {tree} lists them; git diff shows which are new.")
                continue
            for finding in findings[tree]:
                if finding.measure == measure:
                    print(f"  {in_words(finding)}")
    allowed = sum(text.count(ALLOW) for text in _allowed_texts(rules))
    if allowed > MOST_ALLOWED:
        failed = True
        print(f"{allowed} lines are marked '{ALLOW}'; at most {MOST_ALLOWED} may be.")
    return int(failed)


def _allowed_texts(rules: Rules) -> Iterator[str]:
    """Yield the text of every counted file of the trees."""
    for tree in TREES:
        for path in files_of(ROOT / tree):
            if path.relative_to(ROOT).as_posix() not in rules.exempt:
                yield path.read_text(encoding="utf-8")


def tighten(counts: dict[str, Counter[str]], rules: Rules) -> None:
    """Write the present counts into `style.toml` where they are lower than the limits, or where there is no limit."""
    text = RULES.read_text(encoding="utf-8").partition("\n[limits.")[0].rstrip("\n") + "\n"
    for tree in TREES:
        old = rules.limits.get(tree)
        new = counts.get(tree, Counter())
        measures = sorted(new if old is None else old)
        text += f'\n[limits."{tree}"]\n'
        for measure in measures:
            limit = new[measure] if old is None else min(old[measure], new[measure])
            if limit:
                text += f"{measure} = {limit}\n"
    RULES.write_text(text, encoding="utf-8")


def in_words(finding: Finding) -> str:
    """Return one line with the place, what is there, and what to write."""
    place = f"{finding.path}:{finding.line}"
    if not finding.text:
        return f"{place}: {finding.measure}"
    return f"{place}: '{finding.text}' (write: {finding.advice})"


def files_of(path: Path) -> Iterator[Path]:
    """Yield the text files at or below a path that are written by hand, sorted by name."""
    if path.is_file():
        yield path
        return
    for candidate in sorted(path.rglob("*")):
        if candidate.suffix in SUFFIXES and not LEFT_OUT & set(candidate.relative_to(path).parts):
            yield candidate


def of_tree(path: Path, rules: Rules) -> Iterator[Finding]:
    """Yield the findings in all files at or below a path."""
    for file in files_of(path):
        relative = file.relative_to(ROOT)
        if relative.as_posix() in rules.exempt:
            continue
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            yield from of_python(relative, text, rules)
        else:
            yield from of_text(relative, text, rules)


def of_text(path: Path, text: str, rules: Rules) -> Iterator[Finding]:
    """Yield the words that a page, a template or JavaScript may not have. Code between backquotes is left out."""
    text = text.partition(EXAMPLES)[0]
    if path.suffix == ".md":
        text = re.sub(r"`[^`\n]+`", lambda code: " " * len(code[0]), text)
    allowed = _allowed_lines(text)
    yield from _words_in(path, text, 1, allowed, rules)


def of_python(path: Path, text: str, rules: Rules) -> Iterator[Finding]:
    """Yield the words, openings, names and dense constructs of a module."""
    allowed = _allowed_lines(text)
    tree = ast.parse(text)
    documented = _docstrings(tree)
    for line, comment in _comments(text):
        yield from _words_in(path, comment, line, allowed, rules)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _words_in(path, node.value, node.lineno, allowed, rules)
            if id(node) in documented and node.lineno not in allowed:
                for pattern, advice in rules.openings.items():
                    opening = pattern.match(node.value)
                    if opening:
                        yield Finding("openings", path, node.lineno, opening[0], advice)
    for line, name in _names(tree):
        if line in allowed:
            continue
        for pattern, advice in rules.names.items():
            if pattern.fullmatch(name):
                yield Finding("names", path, line, name, advice)
    for measure, line in dense(text, tree):
        if line not in allowed:
            yield Finding(measure, path, line)


def _words_in(path: Path, text: str, first: int, allowed: set[int], rules: Rules) -> Iterator[Finding]:
    """Yield the words that a text may not have; it begins in line `first` of its file."""
    for pattern, advice in rules.words.items():
        for match in pattern.finditer(text):
            line = first + text.count("\n", 0, match.start())
            if line not in allowed:
                yield Finding("words", path, line, re.sub(r"\s+", " ", match[0]), advice)


def _allowed_lines(text: str) -> set[int]:
    """Return the numbers of the lines with the marker."""
    return {number for number, line in enumerate(text.splitlines(), 1) if ALLOW in line}


def _docstrings(tree: ast.AST) -> set[int]:
    """Return the ids of the constants that are docstrings, those of attributes included."""
    found: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                found.add(id(statement.value))
    return found


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield each block of comment lines with its first line; the words of a sentence follow on each other."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield first, "\n".join(block)
            block = []
        if not block:
            first = line
        block.append(token.string.lstrip("#"))
        last = line
    if block:
        yield first, "\n".join(block)


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each use of a name: variables, arguments, keywords, attributes, functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name():
                yield node.lineno, node.id
            case ast.Attribute():
                yield node.lineno, node.attr
            case ast.arg() | ast.keyword() if node.arg:
                yield node.lineno, node.arg
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.lineno, node.name
            case _:
                pass


def dense(text: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the constructs that make code dense, each with its line.

    `conditional` expressions, `nested` ones, `tuples` (one assignment of several unrelated values), `walrus` outside a
    condition, `skip` (`fmt: skip`) and `long` lines of more than 100 characters.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if "fmt: skip" in line:
            yield "skip", number
        if len(line) > LONG_LINE:
            yield "long", number
    conditions: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            for child in ast.walk(node.test):
                conditions.add(id(child))
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            yield "conditional", node.lineno
            if any(isinstance(child, ast.IfExp) for child in (node.body, node.orelse, node.test)):
                yield "nested", node.lineno
        elif isinstance(node, ast.NamedExpr) and id(node) not in conditions:
            yield "walrus", node.lineno
        elif isinstance(node, ast.Assign) and _is_unrelated(node):
            yield "tuples", node.lineno


def _is_unrelated(node: ast.Assign) -> bool:
    """Return whether an assignment gives several names several values, and is not a swap."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    names = {ast.unparse(element) for element in target.elts}
    values = {ast.unparse(element) for element in node.value.elts}
    return not names & values


if __name__ == "__main__":
    sys.exit(main())
