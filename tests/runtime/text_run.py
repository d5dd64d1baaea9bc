"""Trains a run in this process alone, without chief or workers: `python -m tests.runtime.text_run FOLDER`.

It ends when the run has learnt its texts by heart, usually after 40 to 80 steps: neither the first weights nor the
order of the texts are the same twice. The declared steps are the most that an unlucky beginning may need.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BY_HEART = 0.1
"""A loss per token in twenty batches in a row."""


def main() -> None:
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    import numpy

    from transient_magics.runtime.files.checkpoints import Checkpoints
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.tf.graph_mode import tensorflow
    from transient_magics.runtime.training.loading import load_model

    folder = RunFolder(Path(sys.argv[1]))
    spec = folder.spec()
    numpy.random.seed(7)
    trainable = load_model(folder, spec, str(folder.data))
    trainable.generate(str(folder.data), str(folder.path / "temporary"))
    trainable.prepare()
    tf = tensorflow()
    with tf.Graph().as_default():
        tf.set_random_seed(7)
        step = tf.train.get_or_create_global_step()
        pipeline = trainable.training_pipeline()
        objective = trainable.objective(tf.data.make_one_shot_iterator(pipeline.dataset).get_next(), tf.constant(1.0))
        update = objective.optimizer.apply_gradients(objective.finished(objective.pairs), step)
        saver = tf.train.Saver(tf.global_variables())
        one = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        with tf.Session(config=one) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            losses = [1.0]
            while len(losses) <= spec.train_steps and max(losses[-20:]) > BY_HEART:
                losses.append(session.run([objective.loss, update])[0])
            Checkpoints(folder.checkpoints).write(
                spec.train_steps, lambda prefix: saver.save(session, prefix, write_meta_graph=False)
            )
    print(len(losses), losses[-1])


if __name__ == "__main__":
    main()
