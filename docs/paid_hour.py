"""Test Google Cloud for at most a dollar: rent VMs, build an image, train a model, and delete the VMs.

    python paid_hour.py --project my-project --spend 1
    python paid_hour.py                                   on the emulator, in a few minutes, without cost

Every VM has a termination time, at which Compute Engine deletes it even if this program and this machine fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import transient_magics as tm
from transient_magics.catalog import with_extras, worker_price

CLUSTER_HOURS = 0.5
BARE_GPU_HOURS = 0.7
"""The longest life of the GPU's cluster if it has to install the driver first."""
BUILD_HOURS = 1.0
READY_SECONDS, BUILD_SECONDS, RUN_SECONDS, REVOKED_SECONDS = 1200.0, 2100.0, 900.0, 240.0

CELL = """
import shutil
import subprocess

import numpy as np
import tensorflow.compat.v1 as tf


def input_fn(mode):
    print("GPUs of TensorFlow", tf.__version__, tf.config.list_physical_devices("GPU"), flush=True)
    if shutil.which("nvidia-smi"):
        subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], check=False)
    points = np.linspace(-1, 1, 64, dtype="float32").reshape(-1, 1)
    return points, (3 * points[:, 0]).astype("float32")


def model_fn(features, labels, mode):
    slope = tf.get_variable("slope", [1, 1], initializer=tf.zeros_initializer())
    guess = tf.squeeze(features @ slope, 1)
    loss = tf.reduce_mean(tf.square(guess - labels))
    return {"loss": loss, "optimizer": tf.train.GradientDescentOptimizer, "learning_rate": 0.1}
"""


def attempt(stage: str, work: Callable[[], str]) -> bool:
    """Do one stage, print how it ended, and return whether it went well."""
    began = time.monotonic()
    try:
        found = work()
    except tm.errors.TransientError as error:
        print(f"NOT GOOD: {stage}: {error}", flush=True)
        return False
    print(f"good: {stage} ({time.monotonic() - began:.0f} s): {found}", flush=True)
    return True


def main() -> int:
    """Run all stages; exit code 1 if one of them fails."""
    parser = argparse.ArgumentParser(description="Test Google Cloud for an hour, and delete the VMs.")
    parser.add_argument("--project", help="the ID of your project (default: use the emulator)")
    parser.add_argument("--zone", help="the zone of the GPU")
    parser.add_argument("--gpu", default="t4")
    parser.add_argument("--spend", type=float, default=1.0, help="the highest cost in US dollars (default: 1)")
    options = parser.parse_args()
    common = {"project": options.project, "idle": 600.0, "controller": "local", "replace": False}
    if options.zone:
        common["zone"] = (options.zone,)

    ready_images = [image for image in tm.images(options.project).images if image["ready"] and image["current"]]
    gpu_hours = CLUSTER_HOURS if ready_images else BARE_GPU_HOURS
    cpu = tm.Declaration("cpu", name="paid-hour-cpu", max_hours=CLUSTER_HOURS, **common)
    gpu = tm.Declaration(options.gpu, name="paid-hour-gpu", max_hours=gpu_hours, **common)
    if not agreed(cpu, gpu, options, build=not ready_images):
        return 1

    passed = [attempt("a VM without a GPU", lambda: boot(cpu))]
    if not ready_images:
        passed.append(attempt("an image with TensorFlow", lambda: build(options)))
    passed.append(attempt("a VM with a GPU", lambda: use_gpu(gpu, passed)))
    passed.append(attempt("leftovers", lambda: leftovers(options.project)))
    return 0 if all(passed) else 1


def agreed(cpu: tm.Declaration, gpu: tm.Declaration, options: argparse.Namespace, *, build: bool) -> bool:
    """Print the highest possible cost, and ask before anything is rented."""
    most = 0.0
    for declaration in (cpu, gpu):
        spec = tm.preview(declaration).spec
        cost = spec.hourly * declaration.max_hours
        most += cost
        print(f"{declaration.name}: ${spec.hourly:.2f} an hour, for {declaration.max_hours} h at most: ${cost:.2f}")
    if build:
        hourly = with_extras(worker_price("cpu", spec.home_zone), spec.home_zone).on_demand
        most += hourly * BUILD_HOURS
        print(f"building an image: ${hourly:.2f} an hour, for {BUILD_HOURS:g} h at most")
    if options.project is None:
        print("The emulator bills nothing.", flush=True)
        return True
    if most > options.spend:
        print(f"The cost could be ${most:.2f}, which is more than --spend {options.spend}.")
        return False
    return input(f"${most:.2f} at most. Rent these VMs? [y/N] ").strip().lower() in ("y", "yes")


def boot(declaration: tm.Declaration) -> str:
    """Declare a cluster, wait until its VMs let SSH in, and delete it."""
    with tm.declare(declaration) as cluster:
        found = boot_times(cluster)
    return f"{found} Deleted; it cost ${cluster.cost().total:.3f}."


def boot_times(cluster: tm.Cluster) -> str:
    """Wait until a cluster is ready, and return how long its VMs took."""
    state = cluster.wait(READY_SECONDS)
    times = [f"{vm.name} answers after {vm.ready_at - vm.requested_at:.0f} s" for vm in state.vms.values()]
    return f"{', '.join(times)}."


def build(options: argparse.Namespace) -> str:
    """Build an image with the driver and TensorFlow. It is not deleted."""
    zone = options.zone.split(",")[0] if options.zone else None
    image = tm.build_image(project=options.project, zone=zone, gpu=options.project is not None)
    image.wait(BUILD_SECONDS)
    return f"{image.name}, which is not deleted."


def use_gpu(declaration: tm.Declaration, passed: list[bool]) -> str:
    """Train on a GPU, fetch the checkpoint, have the VM revoked, and delete the cluster."""
    with tm.declare(declaration) as cluster:
        found = boot_times(cluster)
        passed.append(attempt("training", lambda: train(cluster)))
        passed.append(attempt("a preemption notice", lambda: revoke(cluster)))
    return f"{found} Deleted; it cost ${cluster.cost().total:.3f}."


def train(cluster: tm.Cluster) -> str:
    """Train twenty steps, and fetch the checkpoint as users do."""
    run = tm.train(source=CELL, cluster=cluster, train_steps=20, check=False, name="lesson")
    result = run.wait(RUN_SECONDS)
    for line in run.logs("worker-0", 2000).splitlines():
        if "GPUs of TensorFlow" in line or "NVIDIA" in line or "Tesla" in line:
            print(f"    {line}")
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(path.name for path in Path(run.fetch(folder)).rglob("model.ckpt-*.index"))
    return f"{result.step} steps, loss {result.loss:.3g}; fetched {', '.join(files) or 'no checkpoint'}."


def revoke(cluster: tm.Cluster) -> str:
    """Simulate a maintenance event, which preempts a Spot VM, and wait until the VM is gone."""
    asked = time.time()
    cluster.revoke("worker-0")
    gone = cluster.follow(lambda state: not state.vms["worker-0"].living, REVOKED_SECONDS)
    kinds = ("vm.preemption_notice", "vm.revoked", "vm.deleted")
    seen = [f"{event.kind} after {event.time / 1e9 - asked:.0f} s" for event in cluster.events() if event.kind in kinds]
    if gone is None:
        raise tm.errors.ClusterError(f"worker-0 still exists after {REVOKED_SECONDS:.0f} s")
    return f"{', '.join(seen)}."


def leftovers(project: str | None) -> str:
    """Report VMs and firewall rules that belong to no cluster."""
    found = tm.sweep(project)
    if found.names or found.rules:
        raise tm.errors.CloudError(str(found))
    return "no VMs and no firewall rules."


if __name__ == "__main__":
    sys.exit(main())
