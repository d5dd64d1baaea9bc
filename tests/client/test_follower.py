"""The thread that follows files for a program, when the program ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAMS = 12
FOLLOW_AND_END = f"""
import os, pathlib, sys, threading, time
import asyncinotify
from transient_magics.client.following.follower import follower

path = pathlib.Path(sys.argv[1])
going_on = set()
for _ in range({PROGRAMS}):
    program = os.fork()
    if program == 0:
        seen = threading.Event()
        follower().rows(path, lambda rows: seen.set())
        seen.wait()
        os.write(1, b"seen\\n")  # at once: where output is not buffered, print writes the end of a line by itself
        sys.exit()
    going_on.add(program)
while going_on:
    with path.open("a") as file:
        file.write("{{}}\\n")
    time.sleep(0.001)
    going_on -= {{program for program in going_on if os.waitpid(program, os.WNOHANG)[0]}}
"""


def test_programs_that_end_while_they_follow_end_silently(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOLLOW_AND_END, str(tmp_path / "metrics.jsonl")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["seen"] * PROGRAMS
    assert ended.stderr == ""
