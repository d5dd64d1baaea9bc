"""What a controller waits minutes for, in seconds: it runs in the test's own process, with its limits made short."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from tests.faults.healing import healed
from tests.money.catalog_prices import catalog_prices
from tests.money.comparing import differences
from tests.money.observer import Observer
from tests.money.reckoning import reckon
from tests.steered import steered, swift_emulator, weather
from transient_magics.client import Declaration
from transient_magics.controller.decisions import capacity
from transient_magics.controller.vms import boots
from transient_magics.journal import ClusterState, events
from transient_magics.spec import image

ZONE = "us-west1-b"
pytestmark = pytest.mark.nightly


@pytest.fixture
def url() -> Iterator[str]:
    with swift_emulator() as place:
        yield place


def ready(state: ClusterState) -> list[str]:
    """The workers that are there."""
    return [vm.name for vm in state.living if vm.state == "ready" and vm.role == "worker"]


async def test_vms_that_never_answer_are_given_up_replaced_and_paid_for_until_then(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience, ordinary = 4.0, (image._INSTALL_PATIENCE, image._GPU_PATIENCE)
    monkeypatch.setattr(boots, "_EVERY", 0.5)

    def patient(server: float, worker: float) -> None:
        monkeypatch.setattr(image, "_INSTALL_PATIENCE", server)
        monkeypatch.setattr(image, "_GPU_PATIENCE", worker)

    patient(patience, patience)
    weather(url, boot="silent")
    with Observer(url) as observer:
        async with steered(Declaration(f"t4@{ZONE}", name="mute", max_hours=5)) as mute:
            await mute.until(lambda state: len([vm for vm in state.living if vm.running_at]) == 2)
            await asyncio.sleep(1)  # both are waited for by now
            patient(*ordinary)
            weather(url, boot="0.3s")
            await mute.until(lambda state: state.phase == "ready")
            state, seconds = mute.cluster.state, time.time()
        observer.look()

    failed = [each for each in mute.cluster.events() if isinstance(each, events.VmBootFailed)]
    assert sorted(each.vm for each in failed) == ["ps-0", "worker-0"]
    for each in failed:
        vm = state.vms[each.vm]
        assert each.reason.startswith("no answer within")
        assert (vm.state, vm.reason) == ("deleted", each.reason)
        assert patience < each.at - vm.running_at < patience + 60
        seconds = min(seconds, each.at)
    assert sorted(vm.name for vm in state.living) == ["ps-1", "worker-1"]
    healed("a VM that never answers", "from its start, given up", state.ready_at - seconds)
    reckoned = reckon(observer.vms(), observer.clock(time.time()), catalog_prices())
    compared = {each.vm: each.dollars for each in differences(mute.cluster.cost(), reckoned, "mute")}
    assert len(compared) == 4
    assert compared == pytest.approx(dict.fromkeys(compared, 0.0), abs=5e-4)
    assert all(mute.cluster.cost().by_vm[each.vm] > 0 for each in failed)


async def test_a_used_up_quota_is_told_once_and_what_can_be_had_is_there_meanwhile(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(capacity._CLOSED, capacity.QUOTA, (8.0, 8.0))  # instead of five minutes
    weather(url, quota=["t4=1"])
    async with steered(Declaration(f"t4x3@{ZONE}", name="rationed", max_hours=5)) as rationed:
        state = await rationed.until(lambda state: len(ready(state)) == 1 and "NVIDIA_T4_GPUS" in state.trouble)
        assert "us-west1" in state.trouble
        await asyncio.sleep(5)
        asked = [vm for vm in rationed.cluster.state.vms.values() if vm.role == "worker"]
        refused = [vm for vm in asked if vm.state == "refused"]
        assert {vm.cause for vm in refused} == {"quota"}
        assert len(refused) <= 4, "asked again and again"
        weather(url, quota=[])
        raised = time.monotonic()
        state = await rationed.until(lambda state: state.phase == "ready")
        healed("quota used up", "provisioning, once it is raised (8 s instead of 5 min)", time.monotonic() - raised)
        assert len(ready(state)) == 3
        await rationed.until(lambda state: not state.trouble)
        assert sorted(vm.slot for vm in rationed.cluster.state.living if vm.role == "worker") == [0, 1, 2]
