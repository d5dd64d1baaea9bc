"""Run the parts of the nightly suite and store their results: `make nightly`, or `make nightly PART=faults`.

Each part runs alone, for at most 60 minutes. Its output goes to `out/nightly/PART.log`; its date, commit, seconds,
exit code and last line go to `tools/nightly-results.json`, which is committed. `--table` prints them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tools" / "nightly-results.json"
LOGS = ROOT / "out" / "nightly"
LIMIT_SECONDS = 3600.0
PYTEST = ("-m", "pytest", "--nightly", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")

PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "faults": ((*PYTEST, "tests/faults"),),
    "stories": ((*PYTEST, "-m", "nightly", "--ignore=tests/faults", "--ignore=tests/zoo", "tests"),),
    "zoo": ((*PYTEST, "-m", "nightly", "--dist", "load", "tests/zoo"),),
    "mutants": (("tools/mutants.py", "--jobs", "3"),),
    "mutation": (("benchmarks/bench_mutation.py",),),
    "simulations": (("benchmarks/bench_simulation.py",),),
    "emulated-faults": (("benchmarks/bench_faults_emulated.py",),),
    "fuzz": (("benchmarks/bench_fuzz.py",),),
    "parity": (("benchmarks/bench_parity.py",),),
}  # fmt: skip
"""The commands of each part, all of them Python programs that end with another code than 0 if a promise is broken."""


def main() -> int:
    """Run the chosen parts, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to run (default: all): {', '.join(PARTS)}")
    parser.add_argument("--table", action="store_true", help="print the stored results and run nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown part {', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    if options.table:
        print_table()
        return 0
    failed = []
    for part in options.parts or PARTS:
        result = run(part)
        store(part, result)
        print(f"{part}: exit code {result['code']} after {result['seconds']} s: {result['last']}", flush=True)
        if result["code"] != 0:
            failed.append(part)
    return 1 if failed else 0


def run(part: str) -> dict[str, Any]:
    """Run the commands of a part until one fails or the time is over; return what is stored of it."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{part}.log"
    began = time.monotonic()
    code = 0
    with log.open("w", encoding="utf-8") as output:
        for command in PARTS[part]:
            left = LIMIT_SECONDS - (time.monotonic() - began)
            code = run_program([sys.executable, *command], output.fileno(), left)
            if code != 0:
                break
    lines = [line for line in log.read_text(errors="replace", encoding="utf-8").splitlines() if line.strip()]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "seconds": round(time.monotonic() - began),
        "code": code,
        "last": lines[-1].strip("= ")[:200] if lines else "",
    }


def run_program(command: list[str], output: int, seconds: float) -> int:
    """Run a program with a time limit in seconds; return its exit code, or 124 if it exceeded the limit."""
    program = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        return program.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        program.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(60)
        return 124
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def commit() -> str:
    """Return the abbreviated commit that is checked out, with a plus sign if files have changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run(
        [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain"], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    changes = [line for line in changed.splitlines() if RESULTS.name not in line]
    return head.stdout.strip() + ("+" if changes else "")


def store(part: str, result: dict[str, Any]) -> None:
    """Replace the stored result of a part."""
    results = stored()
    results[part] = result
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def stored() -> dict[str, dict[str, Any]]:
    """Return the last result of each part."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def print_table() -> None:
    """Print the stored results in Markdown."""
    results = stored()
    print("| part | date (UTC) | commit | seconds | exit code | last line |\n|---|---|---|---|---|---|")
    for part in PARTS:
        result = results.get(part)
        if result is None:
            print(f"| {part} | never | | | | |")
        else:
            cells = [str(result[key]) for key in ("date", "commit", "seconds", "code", "last")]
            print(f"| {part} | {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
