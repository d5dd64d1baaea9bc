"""The thread that follows files for a program: when the program ends, and where the kernel will not tell of changes."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.homes import own_home
from transient_magics import places
from transient_magics.client.following.follower import follower
from transient_magics.protocol import layout

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


@pytest.mark.slow
def test_programs_that_end_while_they_follow_end_silently(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FOLLOW_AND_END, str(tmp_path / "metrics.jsonl")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    assert ended.stdout.split() == ["seen"] * PROGRAMS
    assert ended.stderr == ""


FOLLOW_UNTOLD = """
import pathlib, sys, threading
import asyncinotify
from transient_magics.client.following.follower import follower

try:
    asyncinotify.Inotify()
except OSError:
    print("not told", flush=True)
path = pathlib.Path(sys.argv[1])
seen = threading.Event()
follower().rows(path, lambda rows: seen.set())
path.write_text("{}\\n")
print("seen" if seen.wait(60) else "unseen")
"""


def test_files_are_followed_where_the_user_has_no_watcher_left(tmp_path: Path) -> None:
    """In a user namespace of its own, which may have none at all."""
    program = [sys.executable, "-c", FOLLOW_UNTOLD, str(tmp_path / "metrics.jsonl")]
    without = ["unshare", "-Ur", "sh", "-c", 'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    if subprocess.run([*without, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no user namespace with limits of its own can be made here")
    ended = subprocess.run([*without, *program], capture_output=True, text=True, check=False, encoding="utf-8")
    assert ended.stdout.split("\n")[:2] == ["not told", "seen"], ended.stderr


def test_a_journal_that_cannot_be_followed_is_told() -> None:
    told = queue.SimpleQueue[str]()

    def listen() -> Callable[[], None]:
        return follower().subscribe("unfollowed", lambda state, _: told.put(state.trouble))

    with own_home():
        (places.cluster("unfollowed") / layout.JOURNAL).mkdir(parents=True)
        ends = [listen()]
        first = told.get(timeout=60)
        assert "this process no longer follows it (IsADirectoryError" in first
        assert "restart the kernel" in first
        ends.append(listen())
        assert told.get(timeout=60) == first, "whoever comes later hears it, too"
        for end in ends:
            end()
