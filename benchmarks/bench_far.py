"""Parameter servers in another region: plans beside what was published, and the emulator's way between regions.

First plans beside the two published clusters of ICAC'19 whose workers were in two regions, and the steps of CM-DARE at
30.3 ms, where its data set lies beside the project. Both were used to set the planner's constants
(planner/speeds/throughput.py), so they show whether it describes them, and not how far off other distances are.

Then `--link 1gbit,far=10gbit/30ms` on the emulator: two VMs in two regions, a connection over TCP between them. Frames
that take their time go through a process of their own (emulator/network/delay_line.py), so first without a latency:
what it carries, and adds; then with 30 ms: how far round trips differ, and what is carried. On a machine that has other
work to do all of it is worse. `--plans` leaves this part out.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from collections import defaultdict

from _common import ROOT, own_home, process, quantile, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration, plan
from transient_magics.planner.plan import Plan
from transient_magics.planner.speeds import throughput

STEPS = 64_000
# Of ICAC'19, 5 runs each: the cluster, hours (mean, standard deviation). One parameter server, in us-east1.
PUBLISHED = {
    "k80x3@us-east1-c+k80@us-central1-a": (1.074, 0.014),
    "p100x2@us-east1-c+p100x2@us-central1-c": (0.696, 0.040),
}
STEP_TIMES = ROOT.parent / "shared" / "data" / "cmdare" / "speed_data" / "speed_data_supertable.csv"
NEAR, FAR = 0.3, 30.3  # ms
RATE = "10gbit"
ROUND_TRIP = 30.0
_SERVER = """
import socket
server = socket.create_server(("", 5000))
print("ready", flush=True)
while True:
    connection = server.accept()[0]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := connection.recv(1 << 20):
        if len(data) == 1:
            connection.sendall(data)
"""
_CLIENT = """
import json, socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), 60)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips, until = [], time.perf_counter() + float(sys.argv[2])
while time.perf_counter() < until:
    began = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    trips.append(time.perf_counter() - began)
    time.sleep(0.002)
block, sent, began = bytes(1 << 20), 0, time.perf_counter()
while time.perf_counter() < began + float(sys.argv[2]):
    connection.sendall(block)
    sent += len(block)
print(json.dumps({"trips": trips, "rate": 8 * sent / (time.perf_counter() - began)}))
"""


def planned() -> None:
    """Print hours of the published clusters, what was published, and whether that is in the plan's range."""
    for spec, (hours, deviation) in PUBLISHED.items():
        found = plan(spec, workload="icac19/resnet-32", train_steps=STEPS, ps_zone="us-east1-c", revocations=0)
        assert isinstance(found, Plan)
        low, high = found.interval("hours")
        say(spec, found.hours, "h", f"{hours:g}", more=f"runs' sd {deviation:g}")
        say("    off", 100 * (found.hours / hours - 1), "%", "within 10")
        near = next(group for group in found.choice.placed if not found.choice.round_trip(group))
        alone = found.workload.step(near.accelerator).seconds + found.workload.service_seconds
        theirs = 1 - 3600 * hours * near.count / alone / STEPS  # of the workers near the server, at their own speed
        shares = dict(zip(found.choice.placed, found.choice.shares(found.workload), strict=True))
        say("    share of the distant workers' steps", 100 * (1 - shares[near]), "%", f"about {100 * theirs:.0f}")
        inside = "inside" if low <= hours <= high else "outside"
        say("    range", high - low, "h", "published inside", more=f"{low:.3f} to {high:.3f}: {inside}")


def steps() -> None:
    """Print what CM-DARE's steps took longer at 30.3 ms, and what is computed for one worker alone."""
    if not STEP_TIMES.exists():
        print("CM-DARE's data set does not lie beside the project: its steps are left out.")
        return
    seconds: dict[tuple[str, int, float], list[float]] = defaultdict(list)
    for row in csv.DictReader(STEP_TIMES.read_text(encoding="utf-8").splitlines()):
        gpu = {"4.113": "K80", "9.526": "P100"}[row["GPU TFLOPS"]]
        seconds[gpu, int(row["Number of Parameters"]), float(row["Latency (ms)"])].append(float(row["Step Time (s)"]))
    errors = list[float]()
    for (gpu, parameters, latency), found in sorted(seconds.items()):
        if latency == FAR:
            near, far = statistics.fmean(seconds[gpu, parameters, NEAR]), statistics.fmean(found)
            predicted = near + throughput.alone(latency / 1000, 8 * parameters)
            errors.append(abs(predicted / far - 1))
            say(
                f"{gpu}, {parameters:,} parameters, {latency:g} ms",
                predicted,
                "s",
                f"{far:.3f}",
                more=f"n {len(found)}",
            )
    say("    off, mean of them", 100 * statistics.fmean(errors), "%", "<= 10")
    say("    off, worst", 100 * max(errors), "%", "<= 20")


def inside(cluster: Cluster, vm: str, *words: str) -> list[str]:
    """A command that runs Python in the network of a VM."""
    agent = str(process(cluster, vm, "agent"))
    return ["nsenter", "--preserve-credentials", "--user", "--net", "-t", agent, "--", sys.executable, "-S", *words]


def observe(cluster: Cluster, seconds: float) -> tuple[list[float], float]:
    """Round trips in milliseconds, and Mbit/s, from the first worker to the second."""
    command = inside(cluster, "worker-1", "-c", _SERVER)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as server:
        assert server.stdout
        server.stdout.readline()
        address = cluster.state.vms["worker-1"].address
        command = inside(cluster, "worker-0", "-c", _CLIENT, address, str(seconds))
        told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout)
        server.kill()
    return [1000 * each for each in told["trips"]], told["rate"] / 1e6


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    parser.add_argument("--plans", action="store_true", help="leave the emulator out")
    asked = parser.parse_args()
    planned()
    steps()
    if not asked.plans:
        emulated(3 if asked.quick else 15)


def emulated(seconds: int) -> None:
    """Print round trips, their jitter and the rate: without the line, with it, with its latency."""
    with own_home():
        zones = "cpu@us-central1-a+cpu@us-west1-b"
        cluster = client.declare(Declaration(zones, name="bench", purpose="jobs"))
        cluster.wait(300)
        direct = 0.0
        for name, link, wanted in (
            ("no line", f"{RATE},far={RATE}", 0.0),
            ("a line without latency", f"{RATE},far={RATE}/0s", 0.0),
            (f"a line of {ROUND_TRIP:g} ms", f"{RATE},far={RATE}/{ROUND_TRIP:g}ms", ROUND_TRIP),
        ):
            cluster.weather(link=link)
            trips, rate = observe(cluster, seconds)
            half = quantile(trips, 0.5)
            direct = direct or half
            say(f"{name}: round trip, median of {len(trips)}", half, "ms", f"{wanted:g}" if wanted else "")
            say(f"{name}: more than wanted", half - wanted - direct, "ms", "<= 1" if half is not direct else "")
            jitter = quantile(trips, 0.95) - quantile(trips, 0.05)
            say(f"{name}: jitter (95 % less 5 %)", jitter, "ms", "<= 2")
            say(f"{name}: carries", rate, "Mbit/s", ">= 1000")


if __name__ == "__main__":
    main()
