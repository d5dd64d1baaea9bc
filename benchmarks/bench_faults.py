"""Ten thousand random sequences of faults against the controller's core, on a clock that is only counted."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from _common import say

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "controller"))


def main() -> None:
    """Print how many sequences ended as they must, and what they went through."""
    from test_faults_simulated import check, run

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five hundred")
    sequences = 500 if parser.parse_args().quick else 10_000
    began, asked, kills, hours = time.perf_counter(), 0, 0, 0.0
    for seed in range(sequences):
        world = run(seed)
        check(world, seed)
        asked, kills = asked + len(world.names), kills + world.kills
        hours += (world.now - world.state.declared_at) / 3600
    say("sequences that ended in the declared cluster", sequences, f"of {sequences}", f"{sequences}")
    say("VMs asked for in them", asked, "")
    say("controllers killed in them", kills, "")
    say("hours of cluster time", hours, "h")
    say("took", time.perf_counter() - began, "s")


if __name__ == "__main__":
    main()
