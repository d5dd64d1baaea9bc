"""What decides, changed in small ways: how many of the changes the tests notice. With mutmut, in a copy of the project.

The core and capacity, the chief's state machine, the decoders, the bill and the cluster's declaration. mutmut rewrites
the sources that it is given, wants its own section in the project's settings and brings a terminal user interface; so
it gets a copy of the project and an environment beside this one, and neither is kept. Only tests that take moments are
asked (no simulation, no emulator), so the share is what these notice at least. Functions are changed, and not what
stands at the top of a module or below a decorator, as properties.

A sample is drawn (`--sample`, by `--seed`), and its share comes with its interval (Wilson, 95 %); `--all` judges every
change, in an hour or more on one core. A change that keeps its tests busy is given up after some times what they take
otherwise, and counts as noticed. What was not noticed is printed as a diff. `mutation_answers.toml` says of some why no
test could or should: the share is told with and without them.
"""

from __future__ import annotations

import argparse
import difflib
import json
import math
import random
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from _common import ROOT, say

VERSION = "mutmut==3.8.1"
ANSWERS = Path(__file__).with_name("mutation_answers.toml")
MUTATED = (
    "controller/decisions/core.py", "controller/decisions/capacity.py", "runtime/parameter_server/chief/state.py",
    "protocol/checks.py", "protocol/vm_events.py", "journal/cost/bills.py", "journal/cost/shares.py",
    "journal/cost/shares.py", "spec/cluster.py",
)  # fmt: skip
TESTS = (
    "tests/controller/test_core.py", "tests/controller/test_decisions.py", "tests/controller/test_capacity.py",
    "tests/controller/test_ranking.py", "tests/controller/test_resizing.py", "tests/runtime/test_chief_state.py",
    "tests/runtime/test_chief_words.py", "tests/runtime/test_roster.py", "tests/runtime/test_saving.py",
    "tests/protocol", "tests/journal/test_state.py", "tests/journal/test_bill.py", "tests/spec",
)  # fmt: skip
COPIED = (
    "transient_magics",
    "transient_emulator",
    "tests",
    "templates",
    "locks",
    "widgets",
    "docs",
    "README.md",
    "pyproject.toml",
)
NOT_ASKED = (
    # Of the project itself, not of a copy; and one that takes as long as all the others.
    "tests/protocol/test_foreign_lines.py::test_the_ground_floor_needs_nothing_but_the_standard_library",
    "tests/controller/test_resizing.py::test_whatever_was_resized_when_the_money_lasts_though_nobody_is_in_charge",
)
MEMORY = 4 * 2**30
NOTICED = ("killed", "timeout", "segfault")
# No search for the smallest example: it is enough that there is one.
AT_ONCE = """
hypothesis.settings.register_profile(
    "at-once", deadline=None, derandomize=True, database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
hypothesis.settings.load_profile("at-once")
"""


@dataclass(frozen=True, order=True)
class Change:
    """What a mutant is: the lines of a function (`module:function`) that went, and those that came."""

    place: str
    was: str
    becomes: str


def main() -> int:
    """Print the share of the mutants that were noticed, by module, and those that were not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sample of fifty")
    parser.add_argument("--sample", type=int, default=500, metavar="N", help="draw so many")
    parser.add_argument("--all", action="store_true", help="draw none, judge all")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--only", default="", metavar="TEXT", help="only of modules and functions whose name has this")
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tm-mutants-") as place:
        mutmut, copy = environment(Path(place)), lay_out(Path(place) / "project")
        told = bounded([mutmut, "run", "no-such-mutant"], copy)
        see_that_tests_are_found(copy, told)
        changes = changed(copy)
        names = sorted(name for name, change in changes.items() if given.only in change.place)
        sample = 50 if given.quick else given.sample
        drawn = names if given.all else random.Random(given.seed).sample(names, min(sample, len(names)))
        bounded([mutmut, "run", "--max-children", str(given.at_once), *drawn], copy)
        found = verdicts(mutmut, copy)
    report({name: found[name] for name in drawn}, changes, answers())
    return 0


def bounded(command: list[str], copy: Path) -> str:
    """The end of what it says; a change may well make a list without an end, and must not take the machine's memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    done = subprocess.run(
        command, cwd=copy, check=False, capture_output=True, text=True, preexec_fn=limit, encoding="utf-8"
    )
    return (done.stdout + done.stderr)[-3000:]


def environment(place: Path) -> str:
    """mutmut in an environment of its own that sees this one's packages; the program."""
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    subprocess.run([place / "venv" / "bin" / "pip", "install", "-q", VERSION], check=True)
    return str(place / "venv" / "bin" / "mutmut")


def lay_out(copy: Path) -> Path:
    """A copy of the project with mutmut's settings."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, copy / name)
    with (copy / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(AT_ONCE)

    def listed(name: str, values: tuple[str, ...]) -> str:
        return "\n    ".join([f"{name} =", *values])

    settings = [
        "[mutmut]",
        "source_paths = transient_magics",
        "timeout_multiplier = 8.0",  # of the time that passes: a busy machine is no failure
        "timeout_constant = 3.0",
        listed("only_mutate", tuple(f"transient_magics/{name}" for name in MUTATED)),
        listed("also_copy", COPIED[1:]),
        listed("pytest_add_cli_args_test_selection", TESTS),
        listed(
            "pytest_add_cli_args", ("-p", "no:cacheprovider", "--timeout=60", *map("--deselect={}".format, NOT_ASKED))
        ),
    ]
    (copy / "setup.cfg").write_text("\n".join(settings) + "\n", encoding="utf-8")
    return copy


def see_that_tests_are_found(copy: Path, told: str) -> None:
    """Whether each test still has its name where it is collected again, after a fork: else mutants fail for nothing."""
    stats = copy / "mutants" / "mutmut-stats.json"
    if not stats.exists():
        sys.exit(f"the tests fail as they are, or there are none: {told}")
    if odd := [name for name in json.loads(stats.read_text(encoding="utf-8"))["duration_by_test"] if "\\" in name]:
        sys.exit(f"pytest escapes the backslash in these names once more each time: {odd}"[:2000])


def changed(copy: Path) -> dict[str, Change]:
    """What each mutant changes, from the sources that mutmut has written."""
    found = {}
    for module in MUTATED:
        path = copy / "mutants" / "transient_magics" / module
        lines = [
            line.replace("# type: ignore # mutmut generated", "").strip()
            for line in path.read_text(encoding="utf-8").split("\n")
        ]
        spans = json.loads(path.with_name(path.name + ".spans").read_text(encoding="utf-8"))["spans"]
        sources = {name: lines[begin - 1 : end] for name, (begin, end) in spans.items()}
        prefix = f"transient_magics.{module.removesuffix('.py').replace('/', '.')}"
        for name, source in sources.items():
            function, mutant, _ = name.rpartition("__mutmut_")
            if not mutant or name.endswith("_orig"):
                continue
            was = [line.replace("__mutmut_orig", "") for line in sources[f"{function}__mutmut_orig"]]
            is_now = [line.replace(name, function) for line in source]
            diff = [line for line in difflib.ndiff(was, is_now) if line[0] in "-+"]
            gone, came = (" ".join(line[2:] for line in diff if line[0] == sign) for sign in "-+")
            of = ".".join(part for part in re.split("ǁ", function.removeprefix("x_")) if part not in ("", "x"))
            found[f"{prefix}.{name}"] = Change(f"{module}:{of}", gone, came)
    return found


def verdicts(mutmut: str, copy: Path) -> dict[str, str]:
    """What became of each mutant."""
    told = subprocess.run(
        [mutmut, "results", "--all", "true"], cwd=copy, check=False, capture_output=True, text=True, encoding="utf-8"
    )
    return dict(re.findall(r"^\s*(\S+): (.+?)\s*$", told.stdout, re.MULTILINE))


def answers() -> dict[Change, str]:
    """Why no test could or should notice a change, by what it changes."""
    told = tomllib.loads(ANSWERS.read_text(encoding="utf-8")).get("answer", [])
    return {Change(each["place"], was, now): each["why"] for each in told for was, now in each["changes"]}


def report(found: dict[str, str], changes: dict[str, Change], answered: dict[Change, str]) -> None:
    """The table, and the mutants that nobody noticed."""
    modules: dict[str, Counter[str]] = {}
    for name, how in found.items():
        left = how not in NOTICED
        verdict = "noticed" if not left else "answered" if changes[name] in answered else "left"
        for module in (changes[name].place.partition(":")[0], "all"):
            modules.setdefault(module, Counter())[verdict] += 1
    for module, counts in sorted(modules.items(), key=lambda item: (item[0] == "all", item[0])):
        noticed, total, answers_ = counts["noticed"], counts.total(), counts["answered"]
        low, high = interval(noticed, total)
        aside = f"{100 * low:.1f} to {100 * high:.1f} %; {100 * noticed / max(total - answers_, 1):.1f} % of those that"
        say(module, 100 * noticed / total, f"% of {total}", "90", more=f"{aside} no answer excuses ({answers_})")
    for name, how in sorted(found.items(), key=lambda item: changes[item[0]]):
        if how not in NOTICED:
            change = changes[name]
            told = f" (answered: {answered[change]})" if change in answered else ""
            print(f"\n{how}: {name} in {change.place}{told}\n- {change.was}\n+ {change.becomes}")
    for change in sorted(answered.keys() - set(changes.values())):
        print(f"\nan answer to no change, in {change.place}:\n- {change.was}\n+ {change.becomes}")


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's, 95 %."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, hits / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


if __name__ == "__main__":
    sys.exit(main())
