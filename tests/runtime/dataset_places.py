"""Where workers begin to read datasets of many kinds, as JSON: `... FOLDER some|all` kinds.

Each kind is made in the graph that reads it, and some outside of graphs. For each come the first example of several
sessions, how many different ones an epoch's length has, and the examples of an evaluation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from transient_magics.runtime.tf.graph_mode import everything
from transient_magics.runtime.training.user_model import reading
from transient_magics.runtime.training.user_model.data import Data, keep_as_constants

COUNT, SESSIONS = 400, 4
SOME = (
    "a seed of its own", "record files in parallel", "a generator", "a generator, shuffled", "filtered", "zipped",
    "one behind another", "looked up in a table",
)  # fmt: skip
"""The kinds of which one each is read in some way of its own."""
OUTSIDE = ("record files in parallel", "a generator", "a generator, in batches, again and again", "kept in memory")
"""The kinds that are made outside of graphs, too."""
tf = everything()
modern: Any = __import__("tensorflow")
sets: Any = modern.data.Dataset


def kinds(folder: Path) -> dict[str, Callable[[], Any]]:
    """Datasets of the numbers below COUNT, by what they are made from."""
    files = [str(folder / f"{part}.tfrecord") for part in range(2)]
    for part, file in enumerate(files):
        with modern.io.TFRecordWriter(file) as writer:
            for number in range(part * COUNT // 2, (part + 1) * COUNT // 2):
                writer.write(str(number).encode())
    (folder / "lines.csv").write_text("".join(f"{number},0\n" for number in range(COUNT)), encoding="utf-8")
    one = modern.TensorSpec((1,))
    texts = list(map(str, range(COUNT)))
    values = modern.lookup.KeyValueTensorInitializer(texts, numpy.arange(COUNT, dtype="f"))
    table = modern.lookup.StaticHashTable(values, -1.0)

    def example(number: Any) -> Any:
        return modern.cast(number, modern.float32)[None], modern.zeros(1)

    def parsed(record: Any) -> Any:
        return modern.strings.to_number(record)[None], modern.zeros(1)

    def generated() -> Any:
        numbers = (numpy.float32([number]) for number in range(COUNT))
        return ((number, numpy.float32([0])) for number in numbers)

    def generator() -> Any:
        return sets.from_generator(generated, output_signature=(one, one))

    def seeded() -> Any:
        modern.random.set_seed(1)
        return sets.range(COUNT).map(example).batch(4)

    return {
        "a seed of its own": seeded,
        "record files": lambda: modern.data.TFRecordDataset(files).map(parsed),
        "record files in parallel": lambda: (
            modern.data.TFRecordDataset(files, num_parallel_reads=2)
            .map(parsed, num_parallel_calls=2)
            .batch(4)
            .prefetch(1)
        ),
        "files interleaved": lambda: sets.from_tensor_slices(files).interleave(modern.data.TFRecordDataset).map(parsed),
        "lines": lambda: modern.data.experimental.CsvDataset(str(folder / "lines.csv"), [0.0, 0.0]).map(
            lambda first, second: (first[None], second[None])
        ),
        "a generator": generator,
        "a generator, in batches, again and again": lambda: generator().batch(4).repeat(),
        "a generator, shuffled": lambda: generator().shuffle(8).batch(4),
        "a generator of known length": lambda: generator().apply(
            modern.data.experimental.assert_cardinality(COUNT)
        ),
        "filtered": lambda: sets.range(2 * COUNT).filter(lambda number: number % 2 == 0).map(
            lambda number: example(number // 2)
        ),
        "batches taken apart": lambda: sets.range(COUNT).batch(10).unbatch().map(example),
        "zipped": lambda: sets.zip((sets.range(COUNT).map(lambda n: example(n)[0]), sets.range(COUNT).map(
            lambda n: example(n)[1]
        ))),
        "a part": lambda: sets.range(9, 2 * COUNT).take(COUNT).map(lambda number: example(number - 9)),
        "kept in memory": lambda: sets.range(COUNT).map(example).cache(),
        "one behind another": lambda: sets.range(9).concatenate(sets.range(9, COUNT)).map(example).batch(4),
        "mixed": lambda: sets.sample_from_datasets([sets.range(9).map(example), sets.range(9, COUNT).map(example)]),
        "looked up in a table": lambda: sets.from_tensor_slices(texts).map(
            lambda text: (table.lookup(text)[None], modern.zeros(1))
        ),
    }  # fmt: skip


def read(data: Data, most: int) -> list[int]:
    """The first examples of a session."""
    with tf.Graph().as_default():
        pipeline = data.training(4)
        dataset = pipeline.dataset.unbatch() if pipeline.batched else pipeline.dataset
        iterator = tf.data.make_initializable_iterator(dataset)
        values = iterator.get_next()["inputs"]
        with tf.Session() as session:
            session.run(iterator.initializer, pipeline.feeds)
            return [int(session.run(values)[0]) for _ in range(most)]


def evaluated(data: Data) -> list[int]:
    """The examples of an evaluation."""
    found = list[int]()
    with tf.Graph().as_default():
        iterator = tf.data.make_initializable_iterator(data.evaluation(4).dataset)
        values = iterator.get_next()["inputs"]
        with tf.Session() as session:
            session.run(iterator.initializer)
            with contextlib.suppress(tf.errors.OutOfRangeError):
                while len(found) <= COUNT:
                    found += session.run(values)[:, 0].astype(int).tolist()
    return found


def looked_at(input_fn: Callable[[str], Any]) -> dict[str, Any]:
    """What is read of a dataset."""
    data = Data(input_fn, [(None, 1)])
    epoch = read(data, COUNT)
    firsts = [epoch[0], *(read(data, 1)[0] for _ in range(SESSIONS - 1))]
    return {"firsts": firsts, "different": len(set(epoch)), "evaluated": sorted(evaluated(data))}


def notes() -> dict[str, str]:
    """What is said of datasets without an end, or one that is too far away."""
    one = modern.TensorSpec((1,))

    def endless() -> Any:
        number = 0
        while True:
            yield numpy.float32([number]), numpy.float32([0])
            number += 1

    def slowly(number: Any) -> Any:
        time.sleep(0.01)
        return modern.cast(number, modern.float32)

    made = {
        "endless": lambda _: sets.from_generator(endless, output_signature=(one, one)),
        "shuffled": lambda _: sets.from_generator(endless, output_signature=(one, one)).shuffle(9),
        "with a length": lambda _: sets.from_generator(endless, output_signature=(one, one)).take(9),
        "said to have a length": lambda _: sets.from_generator(endless, output_signature=(one, one)).apply(
            modern.data.experimental.assert_cardinality(1000)
        ),
    }  # fmt: skip

    def slow() -> Any:
        numbers = sets.range(1000).map(lambda number: modern.py_function(slowly, [number], modern.float32))
        return numbers.map(lambda number: (modern.ensure_shape(number, [])[None], modern.zeros(1)))

    outside = slow()
    made |= {"slow, made outside": lambda _: outside, "slow, in the graph": lambda _: slow()}
    found = dict[str, str]()
    for name, input_fn in made.items():
        with tf.Graph().as_default():
            found[name] = Data(input_fn, [(None, 1)]).training(4).note
    return found


def main() -> None:
    """Print what was found, by where and from what a dataset was made."""
    keep_as_constants()
    found: dict[str, Any] = {}
    for name, make in kinds(Path(sys.argv[1])).items():
        if sys.argv[2] == "some" and name not in SOME:
            continue
        # On a busy machine even a short dataset takes a while to count; an endless one is never counted.
        reading.SECONDS = 1.0 if "again and again" in name else 30.0
        found[f"in the graph: {name}"] = looked_at(lambda _, make=make: make())
        made = make()
        if name in OUTSIDE:
            found[f"outside: {name}"] = looked_at(lambda _, made=made: made)
        if name in OUTSIDE[:1]:
            found[f"from outside: {name}"] = looked_at(lambda _, made=made: made.prefetch(1))
    reading.SECONDS = 1.0
    print(json.dumps({"read": found, "notes": notes()}))


if __name__ == "__main__":
    main()
