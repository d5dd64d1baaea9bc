"""What saving a checkpoint of 200 MB costs the workers: their step while one is written, and otherwise."""

from __future__ import annotations

import argparse
import time

from _common import all_in, own_home, rows_between, say, start

from transient_magics import client
from transient_magics.client import Declaration
from transient_magics.journal import events

PACE = 0.8
LARGE = "hidden_size=2880,num_hidden_layers=3,batch_size=8,optimizer=Adam"


def main() -> None:
    """Print the size of a checkpoint, the seconds that it takes, and the two step rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    seconds = 60 if parser.parse_args().quick else 150
    with own_home():
        cluster = client.declare(Declaration("k80x2", name="bench"))
        run = start(
            cluster, model="basic_fc_relu", hparams_set="basic_fc_small", hparams=LARGE, pace_seconds=PACE,
            checkpoint_steps=None, checkpoint_seconds=12.0,
        )  # fmt: skip
        all_in(cluster, 2)
        time.sleep(20)
        began = time.time()
        time.sleep(seconds)
        ended = time.time()
        saves = [
            event for event in cluster.events("train.checkpoint")
            if isinstance(event, events.TrainCheckpoint) and began < event.time / 1e9 < ended
        ]  # fmt: skip
        rows = rows_between(run, began, ended)
        saving, quiet = [], []
        for row in rows:
            until = row["time"] / 1e9
            beside = any(until - 1 < each.time / 1e9 and each.time / 1e9 - each.seconds < until for each in saves)
            (saving if beside else quiet).append(row)
        times = [sum(row["compute_seconds"] for row in part) / sum(row["steps"] for row in part)
                 for part in (saving, quiet)]  # fmt: skip
        say("checkpoint", max(each.bytes for each in saves) / 1e6, "MB")
        say("  saved in", sum(each.seconds for each in saves) / len(saves), "s")
        say(f"{len(saves)} saves: a step while one is written", times[0], "s")
        say("a step otherwise", times[1], "s")
        say("dip of the workers' rate while saving", 1 - times[1] / times[0], "", "< 0.1")


if __name__ == "__main__":
    main()
