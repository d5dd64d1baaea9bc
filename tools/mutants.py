"""Judge the test suite by planted faults: `make mutants`.

`tools/mutants.toml` lists the faults. Each one is a regular expression that matches once in the sources, a replacement,
the promise that the replacement breaks, and the tests that must notice. This program copies the project, plants one
fault at a time in the copy, and runs those tests as `make test` selects them: slow tests count, tests that run only in
`make nightly` do not. A fault is

* killed, if a test fails with the fault and passes without it,
* survived, if every test passes,
* unsound, if the pattern does not match exactly once, a module no longer imports, no test is selected, or the test
  that failed also fails without the fault.

Results go to `out/mutants.jsonl` after each fault. An interrupted run resumes there, as long as the sources, the tests
and the entry are the same. The exit code is 1 if a fault survived that is not marked `survives = true`, or if an entry
is unsound.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parent.parent
CATALOG = ROOT / "tools" / "mutants.toml"
RESULTS = ROOT / "out" / "mutants.jsonl"
SOURCES = ("transient_magics/**/*.py", "transient_emulator/**/*.py", "templates/**/*", "widgets/*.js", "widgets/*.css")
BUILT = ("widgets/dist", "widgets/node_modules")
"""Ignored by git, needed by the copies: the bundled front end, and what bundles it."""
LIMIT_SECONDS = 180.0
TEST_SECONDS = 120
KILLED, SURVIVED, UNSOUND = "killed", "survived", "unsound"


@dataclass(frozen=True)
class Mutant:
    """One planted fault.

    Attributes
    ----------
    name, area
        What it is called, and the part of the product it belongs to.
    pattern, replacement
        A regular expression (multi-line) and what replaces its only match.
    breaks
        The promise that no longer holds.
    tests
        Node ids of the tests that must notice.
    survives
        Whether it is known that no test notices.
    """

    name: str
    area: str
    pattern: str
    replacement: str
    breaks: str
    tests: tuple[str, ...]
    survives: bool = False

    @property
    def digest(self) -> str:
        """A digest of everything that decides the verdict."""
        parts = (self.pattern, self.replacement, *self.tests)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Verdict:
    """The verdict about a fault (`killed`, `survived` or `unsound`), the test or reason behind it, and its seconds."""

    verdict: str
    reason: str
    seconds: float = 0.0


def main() -> int:
    """Judge the faults and print a table by area."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="judge only faults whose name contains NAME")
    parser.add_argument("--area", nargs="+", default=[], metavar="AREA", help="judge only faults of these areas")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="judge N faults at a time (default: 1)")
    parser.add_argument("--restart", action="store_true", help="forget earlier results")
    parser.add_argument("--check", action="store_true", help="only check the patterns and the named tests' files")
    parser.add_argument("--catalog", type=Path, default=CATALOG, help="a list of faults (default: tools/mutants.toml)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file (default: out/mutants.jsonl)")
    options = parser.parse_args()

    mutants = read_catalog(options.catalog)
    if options.names:
        mutants = [mutant for mutant in mutants if any(name in mutant.name for name in options.names)]
    if options.area:
        mutants = [mutant for mutant in mutants if mutant.area in options.area]
    if problems := unsound_entries(mutants):
        print(*problems, sep="\n")
        return 1
    if options.check:
        print(f"{len(mutants)} entries match once")
        return 0

    if options.restart:
        options.results.unlink(missing_ok=True)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    sources = digest_of_project()
    verdicts = earlier_verdicts(options.results, sources, mutants)
    pending = [mutant for mutant in mutants if mutant.name not in verdicts]
    for mutant, verdict in judged(pending, options.jobs):
        verdicts[mutant.name] = verdict
        row = {"name": mutant.name, "entry": mutant.digest, "sources": sources, **vars(verdict)}
        with options.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{verdict.verdict:9} {verdict.seconds:5.0f} s  {mutant.name}: {verdict.reason}", flush=True)
    return report(mutants, verdicts)


def read_catalog(path: Path) -> list[Mutant]:
    """Return the entries of a list of faults."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def source_files(root: Path) -> list[Path]:
    """Return the files in which faults are planted."""
    found = {path for pattern in SOURCES for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if "__pycache__" not in path.parts)


def unsound_entries(mutants: list[Mutant]) -> list[str]:
    """Return a sentence for each entry whose pattern does not match exactly once or whose test file is missing."""
    texts = {path: path.read_text(encoding="utf-8") for path in source_files(ROOT)}
    problems = []
    for name, count in Counter(mutant.name for mutant in mutants).items():
        if count > 1:
            problems.append(f"{name}: two entries have this name")
    for mutant in mutants:
        pattern = re.compile(mutant.pattern, re.MULTILINE)
        count = sum(len(pattern.findall(text)) for text in texts.values())
        if count != 1:
            problems.append(f"{mutant.name}: the pattern matches {count} times instead of once")
        for test in mutant.tests:
            path, _, function = test.partition("::")
            if not (ROOT / path).exists():
                problems.append(f"{mutant.name}: {path} does not exist")
            elif function and f"def {function.partition('[')[0]}(" not in (ROOT / path).read_text(encoding="utf-8"):
                problems.append(f"{mutant.name}: {test} does not exist")
    return problems


def digest_of_project() -> str:
    """Return a digest of the sources and the tests."""
    digest = hashlib.sha256()
    for path in [*source_files(ROOT), *sorted((ROOT / "tests").rglob("*.py"))]:
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def earlier_verdicts(path: Path, sources: str, mutants: list[Mutant]) -> dict[str, Verdict]:
    """Return the verdicts of an interrupted run that still hold."""
    entries = {mutant.name: mutant.digest for mutant in mutants}
    verdicts = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["sources"] == sources and entries.get(row["name"]) == row["entry"]:
                verdicts[row["name"]] = Verdict(row["verdict"], row["reason"], row["seconds"])
    return verdicts


def judged(mutants: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, Verdict]]:
    """Judge faults in as many copies of the project as run at a time; yield each verdict as it is reached."""
    if not mutants:
        return
    copies = SimpleQueue[Path]()
    with tempfile.TemporaryDirectory(prefix="tm-mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            copies.put(copy_project(Path(folder) / str(number)))

        def judge_in_a_copy(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return judge(mutant, copy)
            finally:
                copies.put(copy)

        futures = {pool.submit(judge_in_a_copy, mutant): mutant for mutant in mutants}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def copy_project(target: Path) -> Path:
    """Copy what git tracks or would track, and the built front end."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True, encoding="utf-8",
    ).stdout  # fmt: skip
    for name in listed.split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    for name in BUILT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True)
    # Some tests ask git which files belong to the project.
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=target, check=True)
    return target


def judge(mutant: Mutant, copy: Path) -> Verdict:
    """Plant a fault in a copy, run the tests that must notice, and remove it again."""
    began = time.monotonic()

    def verdict(word: str, reason: str) -> Verdict:
        return Verdict(word, reason, round(time.monotonic() - began, 1))

    with planted(mutant, copy) as path:
        if reason := import_error(path, copy):
            return verdict(UNSOUND, reason)
        code, failed, output = run_tests(mutant.tests, copy)
    if code == 0:
        return verdict(SURVIVED, mutant.breaks)
    if code is None:
        return verdict(KILLED, f"its tests do not end within {LIMIT_SECONDS:.0f} s")
    if code != 1 or not failed:
        return verdict(UNSOUND, f"pytest ended with {code}: {output[-600:]}")
    code, _, output = run_tests(failed[:1], copy)
    if code != 0:
        return verdict(UNSOUND, f"{failed[0]} also fails without the fault: {output[-600:]}")
    return verdict(KILLED, failed[0])


@contextlib.contextmanager
def planted(mutant: Mutant, copy: Path) -> Iterator[Path]:
    """Yield the file in which the fault stands for the time being."""
    pattern = re.compile(mutant.pattern, re.MULTILINE)
    (path,) = [path for path in source_files(copy) if pattern.search(path.read_text(encoding="utf-8"))]
    text = path.read_text(encoding="utf-8")
    replace_source(path, pattern.sub(mutant.replacement, text))
    try:
        rebuild_front_end(path, copy)
        yield path
    finally:
        replace_source(path, text)
        rebuild_front_end(path, copy)


def replace_source(path: Path, text: str) -> None:
    """Write a source file so that Python compiles it again: it compares sizes and whole seconds of the last change."""
    later = path.stat().st_mtime + 2
    path.write_text(text, encoding="utf-8")
    os.utime(path, (later, later))


def rebuild_front_end(path: Path, copy: Path) -> None:
    """Bundle the panels again where one of their sources has changed."""
    if path.parent.name == "widgets":
        subprocess.run([sys.executable, "tools/bundle.py"], cwd=copy, check=True, capture_output=True)


def import_error(path: Path, copy: Path) -> str:
    """Return why a module does not import, or nothing."""
    if path.suffix != ".py" or path.relative_to(copy).parts[0] not in ("transient_magics", "transient_emulator"):
        return ""
    name = ".".join(path.relative_to(copy).with_suffix("").parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        return ""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=copy, env=environment(copy), capture_output=True, text=True, check=False, timeout=120, encoding="utf-8",
    )  # fmt: skip
    return done.stderr[-600:] if done.returncode else ""


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which every Python program imports the copy."""
    # Without compiled modules each of the many programs that a test starts would compile the whole package.
    left_out = ("TRANSIENT_", "PYTHONDONTWRITEBYTECODE")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**inherited, "PYTHONPATH": str(copy)}


def run_tests(tests: tuple[str, ...] | list[str], copy: Path) -> tuple[int | None, list[str], str]:
    """Run tests until the first failure.

    Returns
    -------
    tuple
        pytest's exit code (None if it did not end in time), the tests that failed, and the end of its output.
    """
    mark = f"TM_MUTANT={uuid.uuid4().hex}"
    variable, _, value = mark.partition("=")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:cacheprovider"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        program = subprocess.Popen(
            [*command, f"--timeout={TEST_SECONDS}", *tests],
            cwd=copy, env={**environment(copy), variable: value}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            code = program.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            program.send_signal(signal.SIGINT)  # pytest removes what its fixtures made
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(20)
        finally:
            end_processes(mark)
            program.wait()
        output.seek(0)
        text = output.read()
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+?::.+?)(?: - .*)?$", text, re.MULTILINE)
    return code, failed, text


def end_processes(mark: str) -> None:
    """Kill what a run with a fault left behind: emulators, controllers and VMs outlive the tests that start them."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if mark.encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)


def report(mutants: list[Mutant], verdicts: dict[str, Verdict]) -> int:
    """Print the verdicts by area, then what is wrong; return the exit code."""
    areas: dict[str, Counter[str]] = {}
    wrong = []
    for mutant in mutants:
        verdict = verdicts[mutant.name]
        for area in (mutant.area, "all"):
            areas.setdefault(area, Counter())[verdict.verdict] += 1
        if verdict.verdict == UNSOUND or (verdict.verdict == SURVIVED and not mutant.survives):
            wrong.append(f"{verdict.verdict}: {mutant.name}: {verdict.reason}")
        elif verdict.verdict == KILLED and mutant.survives:
            wrong.append(f"killed, though marked `survives`: {mutant.name} by {verdict.reason}")
    print(f"\n{'area':28}{'killed':>9}{'survived':>10}{'unsound':>9}")
    for area, counts in sorted(areas.items(), key=lambda item: (item[0] == "all", item[0])):
        print(f"{area:28}{counts[KILLED]:9}{counts[SURVIVED]:10}{counts[UNSOUND]:9}")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
