"""The way between regions on the emulator (`--link 1gbit,far=10gbit/30ms`): what it carries, and how even it is.

Two VMs in two regions, a connection over TCP between them. Frames that take their time go through a process of their
own (emulator/network/delay_line.py), so first without a latency: what it carries, and adds; then with 30 ms: how far
round trips differ, and what is carried. On a machine that has other work to do all of it is worse.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from _common import own_home, process, quantile, say

from transient_magics import client
from transient_magics.client import Cluster, Declaration

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
    """Print round trips, their jitter and the rate: without the line, with it, with its latency."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter observation")
    seconds = 3 if parser.parse_args().quick else 15
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
