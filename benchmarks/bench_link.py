"""What a step moves, and what half-width values gain where the network is the limit.

One worker trains a fully connected network whose step is all network: its bytes are read from the VM's own interface,
against the least that is possible (every parameter and every gradient once), with the link held at 100 Mbit/s.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from _common import all_in, own_home, process, rows_between, say, start

from transient_magics import client
from transient_magics.client import Cluster, Declaration

LINK = 100e6
WIDE = "hidden_size=1024,num_hidden_layers=4,batch_size=32"
LIMITS = {"fp32": "<= 1.05", "bf16": "<= 0.53"}
"""Of the bytes of a step, over every parameter and every gradient once in fp32."""
PARAMETERS = (64 * 1024 + 1024) + 3 * (1024 * 1024 + 1024) + (1024 * 10 + 10)


def crossed(cluster: Cluster) -> int:
    """Bytes that went in and out of the worker's VM."""
    text = Path(f"/proc/{process(cluster, 'worker-0', 'worker')}/net/dev").read_text(encoding="utf-8")
    counters = [line.split(":")[1].split() for line in text.splitlines() if ":" in line and "lo:" not in line]
    return sum(int(each[0]) + int(each[8]) for each in counters)


def observe(cluster: Cluster, wire: str, seconds: float) -> tuple[float, float]:
    """Bytes per step and steps per second of a run with this wire."""
    run = start(
        cluster, model="basic_fc_relu", hparams_set="basic_fc_small", hparams=WIDE, wire=wire, checkpoint_steps=None,
        checkpoint_seconds=None,
    )  # fmt: skip
    all_in(cluster, 1)
    time.sleep(10)
    began, before = time.time(), crossed(cluster)
    time.sleep(seconds)
    ended, after = time.time(), crossed(cluster)
    steps = sum(row["steps"] for row in rows_between(run, began, ended))
    run.stop()
    run.wait(60)
    return (after - before) / steps, steps / (ended - began)


def main() -> None:
    """Print bytes per step, steps per second and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    seconds = 30 if parser.parse_args().quick else 90
    least = {"fp32": 2 * 4 * PARAMETERS, "bf16": 2 * 2 * PARAMETERS}
    with own_home():
        cluster = client.declare(Declaration("k80", name="bench"))
        cluster.wait(60)
        cluster.weather(link="100mbit")
        rates = {}
        for wire, floor in least.items():
            moved, rates[wire] = observe(cluster, wire, seconds)
            say(f"{wire}: bytes per step", moved / 1e6, "MB")
            say(f"{wire}: over 2 x 4 bytes x parameters", moved / least["fp32"], "", LIMITS[wire])
            say(f"{wire}: over the least possible", moved / floor, "", "1.01 to 1.05")
            say(f"{wire}: steps at 100 Mbit/s", rates[wire], "steps/s")
            say(f"{wire}: over what the link allows", rates[wire] * floor * 8 / LINK, "", "towards 1")
        say("bf16 over fp32, steps/s", rates["bf16"] / rates["fp32"], "", "towards 2")


if __name__ == "__main__":
    main()
