"""The bill of a chaotic emulated day is what Google's rules make of what an observer of the API saw.

Six hours pass in a minute, for start-ups and notices too. VMs are revoked as in 2019 and one by one, creations are
preempted, zones sell out, the cluster is resized, and its controller is killed and stopped, as on a laptop that is
closed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from tests.homes import own_home
from transient_magics import client, emulator
from transient_magics.client import Cluster, Declaration
from transient_magics.errors import TransientError

from .catalog_prices import catalog_prices
from .comparing import differences
from .observer import Observer
from .reckoning import reckon

pytestmark = pytest.mark.nightly

MINUTES = 4.0
"""An emulated day."""
SPEC = "t4x3@us-central1-a+v100@us-central1-a"
SPECS = (SPEC, "t4x2@us-central1-a+v100@us-central1-a", "t4x4@us-central1-a")
HOURS_PER_MINUTE = 6.0


def attempt(do: Callable[[], object]) -> None:
    """Make a request that may meet a killed process, and ignore its error."""
    try:
        do()
    except TransientError as error:
        print(error)


def controller(cluster: Cluster) -> int | None:
    """Return the process number of the cluster's controller, if it runs."""
    try:
        number = int((cluster.directory / "controller.lock").read_text(encoding="utf-8"))
        os.kill(number, 0)
    except (OSError, ValueError):
        return None
    return number


def nap(cluster: Cluster, seconds: float) -> None:
    """Stop the controller, as on a laptop that sleeps, while VMs are taken away."""
    number = controller(cluster)
    if number is None:
        return
    os.kill(number, signal.SIGSTOP)
    try:
        attempt(lambda: cluster.weather(revocations="every=2s"))
        time.sleep(seconds)
    finally:
        os.kill(number, signal.SIGCONT)
        attempt(lambda: cluster.weather(revocations="published"))


def live(cluster: Cluster, minutes: float, chance: random.Random) -> dict[str, int]:
    """Play the day; return how often each thing happened."""
    happened: dict[str, int] = defaultdict(int)
    cluster.weather(
        hours_per_minute=HOURS_PER_MINUTE,
        notice="scaled",
        boot="published",
        revocations="published",
        creation_preemptions=0.1,
        api_errors=0.02,
        seed=1,
    )
    end = time.monotonic() + 60 * minutes
    moves = ["revoke", "revoke", "resize", "kill", "nap", "stockout", "wait"]
    while (left := end - time.monotonic()) > 0:
        cluster.follow(
            lambda state: False, min(left, chance.uniform(1, 6))
        )  # a client that follows starts a new controller
        move = moves[sum(happened.values())] if sum(happened.values()) < len(moves) else chance.choice(moves)
        happened[move] += 1
        match move:
            case "revoke":
                ready = [vm.name for vm in cluster.state.living if vm.role == "worker" and vm.state == "ready"]
                if ready:
                    attempt(partial(cluster.revoke, chance.choice(ready)))
            case "resize":
                attempt(partial(cluster.resize, chance.choice(SPECS)))
            case "kill" if number := controller(cluster):
                os.kill(number, signal.SIGKILL)
            case "nap":
                nap(cluster, chance.uniform(2, 6))
            case "stockout":
                attempt(lambda: cluster.weather(stockout=["us-central1-a:v100,for=10s"]))
            case _:
                pass
    return happened


def test_the_bill_of_a_chaotic_day_is_googles_within_a_hundredth() -> None:
    with own_home(), emulator.hold():
        url = emulator.ensure()
        with Observer(url) as observer:
            cluster = client.declare(Declaration(SPEC, name="day", max_hours=2000, max_cost=None, idle=1e7))
            cluster.wait(90)
            happened = live(cluster, MINUTES, random.Random(1))
            attempt(lambda: cluster.weather(revocations="none", stockout="none", api_errors=0.0))
            cluster.delete()
            observer.look()
        at = observer.clock(time.time())
        compared = differences(cluster.cost(), reckon(observer.vms(), at, catalog_prices()), cluster.name)
    print(happened, *compared, sep="\n")
    ours = sum(each.ours for each in compared)
    assert ours == pytest.approx(sum(each.reckoned for each in compared), rel=0.01)
    assert not [each.vm for each in compared if each.ours and not each.reckoned], "these cost nothing at Google"
