"""What a real GPU brings: needs a machine with an NVIDIA card and CUDA's libraries (locks/cuda.txt), else it says so.

First, what TensorFlow needs of the driver: a plain script's way from its start to its first steps, with an empty cache
of compiled kernels, with the full one, and where the driver may compile none (CUDA_DISABLE_PTX_JIT): if that trains,
the wheel has machine code for this GPU, and an older driver does.

Then one step of ResNet-32 (mini-batches of 128 pictures of 32 x 32): its variables on the GPU, or on a parameter server
in another process without one, in turns of a second in one worker. No code of ours but the graph's.

Last the whole system on an emulated cluster whose VMs have the card: where each operation of a step runs, the parts of
a step, what a worker that joins needs to its first gradient, and the loss while one of two workers is revoked. All
workers share the one card.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import all_in, card, own_home, rows_between, say, say_all, step_rate
from _guard import elsewhere

from transient_magics import client
from transient_magics.client import Run
from transient_magics.journal import metrics

CELL = '''
import numpy as np
from tensor2tensor.data_generators import image_utils
from tensor2tensor.models import resnet
from tensor2tensor.utils import registry

@registry.register_problem
class ImageHues(image_utils.Image2ClassProblem):
    """Which of ten hues is hidden in the noise?"""
    is_small, num_classes, train_shards, dev_shards = True, 10, 4, 1

    def generator(self, data_dir, tmp_dir, is_training):
        draw = np.random.default_rng(0 if is_training else 1)
        kinds = draw.integers(0, 10, 5120 if is_training else 640)
        hues = np.random.default_rng(2).normal(size=(10, 3))
        pictures = draw.normal(size=(len(kinds), 32, 32, 3)) + hues[kinds][:, None, None]
        return image_utils.image_generator(list(np.uint8(np.clip(128 + 40 * pictures, 0, 255))), list(kinds))

    def preprocess_example(self, example, mode, hparams):
        example["inputs"].set_shape([32, 32, 3])
        return super().preprocess_example(example, mode, hparams)

@registry.register_hparams
def resnet_hues():
    hparams = resnet.resnet_cifar_32()
    hparams.batch_size, hparams.learning_rate = 128, 0.05
    return hparams
'''
NAMES: dict[str, Any] = {"model": "resnet", "hparams_set": "resnet_hues", "problem": "image_hues"}
PARTS = ("kernels", "variables", "cluster")
PORT = 2240


@contextlib.contextmanager
def prepared() -> Iterator[Path]:
    """A run's folder with its declaration; who needs them makes the records."""
    with tempfile.TemporaryDirectory(prefix="tm-gpu-") as name:
        folder = Path(name)
        (folder / "cell.py").write_text(CELL, encoding="utf-8")
        declared = {"name": "run-1", "train_steps": 10**6, "token": "0123456789abcdef", "check": False, **NAMES}
        (folder / "run.json").write_text(json.dumps(declared), encoding="utf-8")
        yield folder


def task(folder: Path, *words: str, **environment: str) -> list[dict[str, Any]]:
    """Run a task of this file in a process of its own; the lines of JSON that it prints, none where it fails."""
    command = [sys.executable, __file__, "--task", str(folder), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=elsewhere() | environment, encoding="utf-8"
    )
    if done.returncode:
        said = done.stderr.strip().rpartition("\n")[2]
        print(f"code {done.returncode}: {said[:300]}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _graph(tf: Any, trainable: Any, device: Any) -> tuple[Any, Any, Any, Any]:
    """Build a training graph for `device`: how it begins, what a step fetches and feeds, and the data's feeds."""
    from transient_magics.runtime.training.graph.step import training_graph

    trainable.prepare()
    with tf.device("/cpu:0" if not device else "/job:worker/task:0/cpu:0"):
        pipeline = trainable.training_pipeline()
        data = pipeline.dataset if pipeline.batched else pipeline.dataset.batch(trainable.batch, drop_remainder=True)
        iterator = tf.data.make_initializable_iterator(data.prefetch(8))
    with tf.device(device):
        built = training_graph(trainable, dict(iterator.get_next()))
        start = tf.global_variables_initializer()
    return [iterator.initializer, start], [built.objective.loss, built.step], {built.divisor: 1.0}, pipeline.feeds


def _defined(folder: Path) -> tuple[Any, Any]:
    from transient_magics.runtime.folder import RunFolder
    from transient_magics.runtime.training.loading import import_tensorflow, load_model

    spec = RunFolder(folder).spec()
    tf = import_tensorflow(spec)
    trainable = load_model(RunFolder(folder), spec, str(folder / "data"))
    if not trainable.has_records():
        trainable.generate(str(folder / "data"), str(folder / "tmp"))
    return tf, trainable


def first(folder: Path, seconds: float) -> None:
    """Print what a plain script needs to its first steps, all of it on the GPU."""
    began = time.monotonic()
    tf, trainable = _defined(folder)
    defined = time.monotonic()
    with tf.Graph().as_default():
        begin, fetches, feeds, data = _graph(tf, trainable, "")
        built = time.monotonic()
        config = tf.ConfigProto(allow_soft_placement=True)
        config.gpu_options.allow_growth = True
        with tf.Session(config=config) as session:
            gpus = [each.name for each in session.list_devices() if each.device_type == "GPU"]
            opened = time.monotonic()
            session.run(begin, data)
            session.run(fetches, feeds)
            stepped = time.monotonic()
            for _ in range(20):
                session.run(fetches, feeds)
            warm, steps, loss = time.monotonic(), 0, math.nan
            while time.monotonic() - warm < seconds:
                loss, _ = session.run(fetches, feeds)
                steps += 1
            took = time.monotonic() - warm
    found = {"import": defined - began, "graph": built - defined, "device": opened - built, "first": stepped - opened}
    print(json.dumps({**found, "gpus": len(gpus), "rate": steps / took, "loss": float(loss)}), flush=True)


def turns(folder: Path, role: str, count: int) -> None:
    """Be this task; the worker prints the steps per second of each turn: variables elsewhere, and on its GPU."""
    tf, trainable = _defined(folder)
    addresses = {"ps": [f"127.0.0.1:{PORT}"], "worker": [f"127.0.0.1:{PORT + 1}"]}
    config = tf.ConfigProto(allow_soft_placement=True)
    config.gpu_options.allow_growth = True
    server = tf.train.Server(addresses, job_name=role, task_index=0, config=config)
    if role == "ps":
        server.join()
    worker = "/job:worker/task:0"
    sessions = []
    for place in (tf.train.replica_device_setter(cluster=addresses, worker_device=worker), f"{worker}/gpu:0"):
        with tf.Graph().as_default():
            begin, fetches, feeds, data = _graph(tf, trainable, place)
            session = tf.Session(server.target, config=config)
            session.run(begin, data)
            sessions.append((session, fetches, feeds))
    for number in range(2 * count + 4):
        session, fetches, feeds = sessions[number % 2]
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < 1.0:
            session.run(fetches, feeds)
            steps += 1
        if number > 3:
            print(json.dumps({"turn": number % 2, "rate": steps / (time.monotonic() - began)}), flush=True)


def kernels(seconds: float) -> None:
    """Print what TensorFlow needs of the driver."""
    with prepared() as folder:
        task(folder, "records", CUDA_VISIBLE_DEVICES="-1")
        for name, cache, more in (
            ("empty cache of kernels", folder / "compiled", {}),
            ("full cache", folder / "compiled", {}),
            ("no kernel may be compiled", folder / "none", {"CUDA_DISABLE_PTX_JIT": "1"}),
        ):
            lines = task(folder, "first", str(seconds), CUDA_CACHE_PATH=str(cache), **more)
            if not lines:
                print(f"{name}: it does not train", flush=True)
                continue
            (found,) = lines
            size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) / 1e6
            parts = ", ".join(f"{part} {found[part]:.1f} s" for part in ("import", "graph", "device", "first"))
            aside = f"{parts}; {found['gpus']} GPU; {size:.1f} MB compiled; loss {found['loss']:.3f}"
            say(f"{name}: steps per second, all on the GPU", found["rate"], "/s", more=aside)


def variables(count: int) -> None:
    """Print what a parameter server in another process costs a worker with a GPU."""
    with prepared() as folder:
        task(folder, "records", CUDA_VISIBLE_DEVICES="-1")
        quiet = {**elsewhere(), "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, __file__, "--task", str(folder), "ps", "0"]
        with subprocess.Popen(command, env=quiet, start_new_session=True) as server:
            try:
                lines = task(folder, "worker", str(count))
            finally:
                server.kill()
    if not lines:
        raise SystemExit("The worker with the GPU failed.")
    away, here = ([line["rate"] for line in lines if line["turn"] == turn] for turn in (0, 1))
    say_all("steps per second, variables on a parameter server", away, "/s")
    say_all("steps per second, variables on the GPU", here, "/s")
    say_all("  on a parameter server over on the GPU", [a / b for a, b in zip(away, here, strict=True)], "")


def cluster(workers: int, seconds: float) -> None:
    """Print what the whole system does on VMs that have the card."""
    with own_home() as home:
        declared = client.declare(client.Declaration(f"h100x{workers}", name="bench", max_workers=4 * workers))
        declared.wait(300)
        run = client.train(source=CELL, cluster=declared, train_steps=10**6, check=False, **NAMES)
        all_in(declared, workers)
        for name in sorted(vm for vm in declared.state.vms if vm.startswith("worker")):
            print(f"{name}: {last_start(run, name)}", flush=True)
        run.reach(100, 300)
        began = time.time()
        time.sleep(seconds)
        say(f"whole system, {workers} workers: global steps per second", step_rate(run, began, time.time()), "/s")
        told_parts(run, began)
        devices(run.profile(home / "step.json"))
        declared.revoke("worker-0")
        began = time.monotonic()
        declared.follow(
            lambda state: bool(state.current_or_next_run and "worker-0" not in state.current_or_next_run.workers), 120
        )
        all_in(declared, workers)
        say("revoked, until all step again", time.monotonic() - began, "s", more=last_start(run, f"worker-{workers}"))
        run.reach(run.state.step + 200, 300)
        losses = [row["loss"] for row in metrics.read(run.directory / "metrics.jsonl") if row.get("loss") is not None]
        say("loss", losses[-1], "", more=f"{losses[0]:.3f} in the beginning")
        say("accuracy, as it is", run.evaluate(now=True)["accuracy"], "")
        run.stop()
        run.wait(300)


def last_start(run: Run, worker: str) -> str:
    """What a worker wrote about its last start."""
    lines = [line for line in run.logs(worker).splitlines() if "first gradient after" in line]
    return lines[-1] if lines else "(nothing said)"


def told_parts(run: Run, since: float) -> None:
    """Print where the time of a step goes."""
    found = [split for row in rows_between(run, since, time.time()) if (split := metrics.split(row))]
    sums = {part: sum(each[part] for each in found) for part in metrics.SPLIT if part.startswith("split_")}
    for part, seconds in sums.items():
        say(f"  of a step: {part.removeprefix('split_')}", 100 * seconds / (sum(sums.values()) or 1.0), "%")


def devices(path: Path) -> None:
    """Print how many operations of a step ran where, and the longest kinds of the workers' CPUs."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content["traceEvents"] if isinstance(content, dict) else content
    names = {each["pid"]: each["args"]["name"] for each in events if each.get("name") == "process_name"}
    kinds: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for each in events:
        if each.get("ph") == "X":
            kinds[names.get(each["pid"], str(each["pid"]))][each["name"]] += 1
    for device, found in sorted(kinds.items()):
        print(f"{device}: {found.total()} operations; {dict(found.most_common(8))}", flush=True)


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter stretches, one worker")
    parser.add_argument("--only", choices=PARTS, help="one of the three")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        folder, what, *words = given.task
        match what:
            case "records":
                _defined(Path(folder))
            case "first":
                first(Path(folder), float(words[0]))
            case _:
                turns(Path(folder), what, int(words[0]))
        return
    if not (name := card()):
        print("skipped: no NVIDIA GPU is here (nvidia-smi -L names none)")
        return
    print(name, flush=True)
    if given.only in (None, "kernels"):
        kernels(2.0 if given.quick else 10.0)
    if given.only in (None, "variables"):
        variables(5 if given.quick else 20)
    if given.only in (None, "cluster"):
        cluster(1 if given.quick else 2, 5.0 if given.quick else 20.0)


if __name__ == "__main__":
    main()
