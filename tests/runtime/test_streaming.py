"""A run on records that come in blocks: a worker is killed in mid-epoch, and every record is accounted for.

One story is played once: the problem notes the number of each record that is read.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.light import LIGHT
from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_training import DECLARATION, DIGITS, Story, assignment

pytestmark = [pytest.mark.training, pytest.mark.nightly]

CELL = (
    DIGITS
    + """

@registry.register_problem
class HeavyDigits(ImageDigits):
    def generator(self, data_dir, tmp_dir, is_training):
        import itertools
        every_third = itertools.islice(super().generator(data_dir, tmp_dir, is_training), None, None, 3)
        for number, example in enumerate(every_third):
            yield {**example, "number": [number], "ballast": [bytes(25_000)]}

    def example_reading_spec(self):
        from tensor2tensor.utils import contrib
        import tensorflow.compat.v1 as tf
        fields, decoders = super().example_reading_spec()
        fields["number"] = tf.FixedLenFeature((), tf.int64)
        decoders["number"] = contrib.slim().tfexample_decoder.Tensor("number")
        return fields, decoders

    def preprocess_example(self, example, mode, hparams):
        import tensorflow as tf
        said = tf.print(example.pop("number"), output_stream=f"file://PLACE/{mode}")
        with tf.control_dependencies([said]):
            example["inputs"] = tf.identity(example["inputs"])
        return super().preprocess_example(example, mode, hparams)
"""
)
RECORDS, HELD_OUT = 479, 120


@pytest.fixture(scope="module")
def story(shared_room: MachineRoom, tmp_path_factory: pytest.TempPathFactory) -> Story:
    place = tmp_path_factory.mktemp("read")
    declared = {
        **DECLARATION, **LIGHT, "hparams": "batch_size=12", "problem": "heavy_digits",
        "train_steps": 170, "cache": "3MB:memory", "prep_threads": 2, "pace_seconds": 0.1, "eval_batches": 0,
        "checkpoint_steps": None, "checkpoint_seconds": None,
    }  # fmt: skip
    story = Story(shared_room)
    story.marks["place"] = place
    server, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    for name in ("ps-0", "worker-1", "worker-2"):
        shared_room.start_agent(name)
        shared_room.say(name, {"do": "warm", "run": "run-1", "role": "worker", "name": name})
        shared_room.put(name, declared, CELL.replace("PLACE", str(place)))
        shared_room.say(name, assignment(name, [server], chief))
    for name in ("worker-1", "worker-2"):
        story.wait(f"{name} joined", "worker.joined", worker=name)
    until(lambda: any(line["step"] > 60 for line in story.metrics()), "an epoch and a half")
    os.kill(shared_room.pids("worker-2")["worker-2"], signal.SIGKILL)
    story.wait("its blocks come back", "train.reread", worker="worker-2")
    until(lambda: story.events("train.finished", "train.failed"), "the end")
    return story


def read(place: Path, mode: str) -> Counter[int]:
    return Counter(int(line) for line in (place / mode).read_text(encoding="utf-8").split())


def test_every_record_is_read_and_a_death_repeats_no_more_than_its_blocks(story: Story) -> None:
    told = story.events("train.data")
    (lost,) = story.events("train.reread")
    assert 0 < lost["blocks"] <= lost["bound"] <= 40, "what the dead worker held"
    assert told[-1]["again"] == lost["blocks"]
    last, records = told[-1], read(story.marks["place"], "train")
    assert set(records) == set(range(RECORDS)), "none is lost"
    assert last["records"] == RECORDS
    assert min(records.values()) >= last["epochs"] >= 3
    begun = last["epochs"] + 2  # the one that is being read, and that for which its end is not waited
    largest = -(-RECORDS // last["blocks"]) + 1
    more = sum(many > begun for many in records.values())
    assert more <= last["again"] * largest
    assert max(records.values()) <= begun + 1, "one died"


def test_the_cache_keeps_what_it_took_and_says_what_it_saved(story: Story) -> None:
    last = story.events("train.data")[-1]
    assert last["hits"] > 10
    assert 200_000 * last["hits"] < last["saved_bytes"] < 300_000 * last["hits"]
    assert last["fetched_bytes"] > last["bytes"] > 25_000 * RECORDS
    copied = sum(path.stat().st_size for path in (story.room.run_folder("worker-1") / "data").rglob("*"))
    assert copied < 100_000, "no file of records is on a worker"


def test_the_evaluation_reads_every_record_once(story: Story) -> None:
    (evaluated,) = story.events("train.evaluated")
    assert (evaluated["examples"], evaluated["complete"]) == (HELD_OUT, True)
    assert read(story.marks["place"], "eval") == dict.fromkeys(range(HELD_OUT), 1)
