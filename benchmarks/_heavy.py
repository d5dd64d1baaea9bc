"""Records of any size for benchmarks: the digits with ballast, as a problem of Tensor2Tensor."""

from __future__ import annotations

from _common import CELL

NAMES = ("resnet", "resnet_digits", "heavy_digits")
_PROBLEM = '''

@registry.register_problem
class HeavyDigits(ImageDigits):
    """Large records; those that say that nothing is to be skipped are copied whole."""

    skip_random_fraction_when_training = not WHOLE

    def generate_data(self, data_dir, tmp_dir, task_id=-1):
        import itertools
        import os
        import tensorflow as tf
        from tensor2tensor.data_generators import generator_utils

        ballast = os.urandom(KILOBYTES << 10)
        many = (MEGABYTES << 10) // KILOBYTES
        for path, is_training in ((self.training_filepaths, True), (self.dev_filepaths, False)):
            shards = 8 if is_training else 1
            examples = self.generator(data_dir, tmp_dir, is_training)
            examples = itertools.islice(itertools.cycle(list(examples)), many if is_training else 100)
            writers = [tf.io.TFRecordWriter(name) for name in path(data_dir, shards, shuffled=True)]
            for number, example in enumerate(examples):
                record = generator_utils.to_example({**example, "ballast": [ballast]})
                writers[number % shards].write(record.SerializeToString())
            for writer in writers:
                writer.close()
'''


def cell(megabytes: int, kilobytes: int = 100, *, whole: bool = False) -> str:
    """The cell with so many megabytes of training records, each of so many kilobytes.

    `whole`: workers copy them before their first step.
    """
    words = {"MEGABYTES": megabytes, "KILOBYTES": kilobytes, "WHOLE": whole}
    text = _PROBLEM
    for word, value in words.items():
        text = text.replace(word, str(value))
    return CELL + text
