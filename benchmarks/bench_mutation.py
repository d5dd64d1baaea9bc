"""What decides, changed in small ways: how many of the changes the tests notice. With mutmut, in a copy of the project.

The core and capacity, the chief's state machine, the decoders, the bill and the cluster's declaration. mutmut rewrites
the sources that it is given, wants its own section in the project's settings and brings a terminal user interface; so
it gets a copy of the project and an environment beside this one, and neither is kept. Takes an hour or two on two
cores. With `--sample N` so many mutants are drawn, and the share comes with its interval (Wilson, 95 %).
"""

from __future__ import annotations

import argparse
import math
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from pathlib import Path

from _common import ROOT, say

VERSION = "mutmut==3.8.1"
MUTATED = (
    "controller/core.py", "controller/capacity.py", "runtime/chief_state.py", "protocol/checks.py",
    "protocol/vm_events.py", "journal/cost.py", "spec/cluster.py",
)  # fmt: skip
TESTS = (
    "tests/controller/test_core.py", "tests/controller/test_capacity.py", "tests/runtime/test_chief_state.py",
    "tests/runtime/test_roster.py", "tests/runtime/test_saving.py", "tests/protocol", "tests/journal/test_state.py",
    "tests/journal/test_journal.py", "tests/spec", "tests/simulation",
)  # fmt: skip
COPIED = ("transient_magics", "tests", "templates", "locks", "widgets", "docs", "README.md", "pyproject.toml")
NOT_OF_THE_COPY = "tests/protocol/test_foreign_lines.py::test_the_ground_floor_needs_nothing_but_the_standard_library"
NOTICED = ("killed", "timeout", "segfault")


def main() -> int:
    """Print the share of the mutants that were noticed, by module, and those that were not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sample of fifty")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="draw so many")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--at-once", type=int, default=2, metavar="N")
    given = parser.parse_args()
    sample = 50 if given.quick else given.sample
    with tempfile.TemporaryDirectory(prefix="tm-mutants-") as place:
        mutmut, copy = environment(Path(place)), lay_out(Path(place) / "project")
        drawn: list[str] = []
        if sample:
            subprocess.run([mutmut, "run", "no-such-mutant"], cwd=copy, check=False, capture_output=True)
            drawn = random.Random(given.seed).sample(names := sorted(verdicts(mutmut, copy)), min(sample, len(names)))
        subprocess.run([mutmut, "run", "--max-children", str(given.at_once), *drawn], cwd=copy, check=False)
        found = {name: how for name, how in verdicts(mutmut, copy).items() if not drawn or name in drawn}
    report(found)
    return 0


def environment(place: Path) -> str:
    """mutmut in an environment of its own that sees this one's packages; the program."""
    subprocess.run([sys.executable, "-m", "venv", place / "venv"], check=True)
    (site,) = (place / "venv" / "lib").glob("python*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
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

    def listed(name: str, values: tuple[str, ...]) -> str:
        return "\n    ".join([f"{name} =", *values])

    settings = [
        "[mutmut]",
        "source_paths = transient_magics",
        listed("only_mutate", tuple(f"transient_magics/{name}" for name in MUTATED)),
        listed("also_copy", COPIED[1:]),
        listed("pytest_add_cli_args_test_selection", TESTS),
        listed("pytest_add_cli_args", ("-p", "no:cacheprovider", "--timeout=120", f"--deselect={NOT_OF_THE_COPY}")),
    ]
    (copy / "setup.cfg").write_text("\n".join(settings) + "\n")
    return copy


def verdicts(mutmut: str, copy: Path) -> dict[str, str]:
    """What became of each mutant."""
    told = subprocess.run([mutmut, "results", "--all", "true"], cwd=copy, check=False, capture_output=True, text=True)
    return dict(re.findall(r"^\s*(\S+): (.+?)\s*$", told.stdout, re.MULTILINE))


def report(found: dict[str, str]) -> None:
    """The table, and the mutants that nobody noticed."""
    modules: dict[str, Counter[str]] = {}
    for name, how in found.items():
        modules.setdefault(name.partition(".x")[0], Counter())[how] += 1
    for module, counts in sorted(modules.items()):
        noticed = sum(counts[how] for how in NOTICED)
        say(module, 100 * noticed / counts.total(), f"% of {counts.total()}", "90")
    noticed, total = sum(how in NOTICED for how in found.values()), len(found)
    low, high = interval(noticed, total)
    say("mutants that the tests notice", 100 * noticed / max(total, 1), f"% of {total}", "90")
    print(f"95 % interval, were these a sample: {100 * low:.1f} to {100 * high:.1f} %")
    for name, how in sorted(found.items()):
        if how not in NOTICED:
            print(f"{how}: {name}")


def interval(hits: int, of: int) -> tuple[float, float]:
    """Wilson's, 95 %."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, hits / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)


if __name__ == "__main__":
    sys.exit(main())
