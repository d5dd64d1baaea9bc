"""The code that the doctor trains: the smallest model there is, which says what TensorFlow sees on its VM.

Like a cell of a user's it runs on the VMs, where what it prints is in the log.
"""

from __future__ import annotations

import json
from typing import Any

MARK = "doctor-sees:"
STEPS = 20
SOURCE = f'''
import json
import shutil
import subprocess

import numpy as np
import tensorflow.compat.v1 as tf


def driver():
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    return done.stdout.split("\\n")[:-1]


def input_fn(mode):
    about = {{
        "tensorflow": tf.__version__,
        "cuda": dict(tf.sysconfig.get_build_info()).get("cuda_version", ""),
        "gpus": [each.name for each in tf.config.list_physical_devices("GPU")],
        "driver": driver(),
    }}
    print("{MARK}", json.dumps(about), flush=True)
    points = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    return points, (3 * points[:, 0]).astype("float32")


def model_fn(features, labels, mode):
    guess = tf.squeeze(features @ tf.get_variable("slope", [1, 1], initializer=tf.zeros_initializer()), 1)
    answer = {{"predictions": {{"guess": guess}}}}
    if mode != "infer":
        answer["loss"] = tf.reduce_mean(tf.square(guess - labels))
    if mode == "train":
        answer |= {{"optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.1}}
    if mode == "eval":
        answer["eval_metric_ops"] = {{"error": tf.metrics.mean_absolute_error(labels, guess)}}
    return answer
'''


def seen(log: str) -> dict[str, Any] | None:
    """What the code said in a VM's log; None where it has not."""
    for line in reversed(log.splitlines()):
        _, mark, said = line.partition(MARK)
        if mark:
            try:
                return json.loads(said)
            except ValueError:
                continue
    return None
