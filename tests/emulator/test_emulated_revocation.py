from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from emulated_cloud import PROJECT, ZONE, Cloud, ask_in_turn, eventually
from google.api_core import exceptions
from google.cloud import compute_v1

_WATCH = """
import http.client, time
connection = http.client.HTTPConnection("169.254.169.254")
def get(query):
    connection.request("GET", "/computeMetadata/v1/instance/preempted?" + query, headers={"Metadata-Flavor": "Google"})
    answer = connection.getresponse()
    return answer.read().decode(), answer.headers["ETag"]
value, etag = get("wait_for_change=true&last_etag=0")
print(value, flush=True)
print(get(f"wait_for_change=true&last_etag={etag}")[0], time.time(), flush=True)
time.sleep(100)
"""


@pytest.mark.slow
async def test_a_preemption_is_told_at_once_and_carried_out_after_the_notice(cloud: Cloud) -> None:
    cloud.create("w0", metadata={"emulator-notice-seconds": "10"}, scheduling__instance_termination_action="DELETE")
    async with await cloud.ssh("w0") as connection:
        process = await connection.create_process("transient-python -")
        process.stdin.write(_WATCH)
        process.stdin.write_eof()
        assert await process.stdout.readline() == "FALSE\n"
        begun = time.time()
        cloud.preempt("w0")
        value, moment = (await process.stdout.readline()).split()
        assert value == "TRUE"
        assert float(moment) - begun < 9
        assert cloud.get("w0").status == "STOPPING"
        await connection.wait_closed()
        assert 9.9 < time.time() - begun < 60
    eventually(lambda: "w0" not in cloud.names())
    wanted = 'operationType="compute.instances.preempted" AND targetLink:instances/w0'
    request = compute_v1.ListZoneOperationsRequest(project=PROJECT, zone=ZONE, filter=wanted)
    event = list(cloud.operations.list(request))[-1]
    assert event.name.startswith("systemevent-")
    assert (event.user, event.status) == ("system@google.com", compute_v1.Operation.Status.DONE)


@pytest.mark.slow
def test_a_vm_that_requests_a_longer_notice_runs_on_before_its_shutdown(cloud: Cloud) -> None:
    longer = {"scheduling__preemption_notice_duration": compute_v1.Duration(seconds=120)}
    cloud.create("w0", metadata={"emulator-notice-seconds": "1.5"}, **longer)
    asked = time.monotonic()
    cloud.preempt("w0")
    seen = [cloud.get("w0").status]
    while seen[-1] != "TERMINATED":
        time.sleep(0.1)
        status = cloud.get("w0").status
        seen += [status] if status != seen[-1] else []
    assert seen == ["RUNNING", "STOPPING", "TERMINATED"]
    assert time.monotonic() - asked >= 3.0, "the longer notice, then the usual one"


@pytest.mark.parametrize(("spot", "seconds"), [(True, 60), (False, 120)])
def test_a_longer_notice_is_of_spot_vms_and_of_two_minutes(cloud: Cloud, spot: bool, seconds: int) -> None:
    longer = {"scheduling__preemption_notice_duration": compute_v1.Duration(seconds=seconds)}
    with pytest.raises(exceptions.BadRequest, match="preemptionNoticeDuration"):
        cloud.insert("w0", spot=spot, **longer)


@pytest.mark.slow
def test_a_preempted_vm_is_kept_stopped_unless_told_otherwise(cloud: Cloud) -> None:
    script = {"shutdown-script": "echo last words; touch ~/saved", "emulator-notice-seconds": "0.5"}
    cloud.create("w0", metadata=script)
    cloud.preempt("w0")
    eventually(lambda: cloud.get("w0").status == "TERMINATED")
    assert (cloud.running.state / "vms/w0/home/saved").exists()
    with pytest.raises(exceptions.BadRequest):
        cloud.preempt("w0")


def test_deleting_cuts_the_notice_short(cloud: Cloud) -> None:
    cloud.create("w0", metadata={"emulator-notice-seconds": "300"})
    cloud.preempt("w0")
    begun = time.monotonic()
    cloud.delete("w0")
    assert time.monotonic() - begun < 150, "half of the notice"


def test_a_vm_preempted_while_it_boots_never_runs(cloud: Cloud) -> None:
    insertion = cloud.insert("w0", scheduling__instance_termination_action="DELETE")
    cloud.preempt("w0")
    (error,) = cloud.wait(insertion).error.errors
    assert "preempt" in error.message
    eventually(lambda: cloud.names() == set())


def test_an_on_demand_vm_is_restarted_by_maintenance(cloud: Cloud) -> None:
    first = cloud.create("w0", spot=False)
    cloud.preempt("w0")
    eventually(
        lambda: (
            cloud.get("w0").status == "RUNNING" and cloud.get("w0").last_start_timestamp > first.last_start_timestamp
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["duration", "moment"])
def test_compute_engine_itself_ends_a_vm_whose_time_is_up(cloud: Cloud, limit: str) -> None:
    changes = {"scheduling__instance_termination_action": "DELETE"}
    if limit == "duration":
        changes["scheduling__max_run_duration"] = compute_v1.Duration(seconds=3)
    else:
        changes["scheduling__termination_time"] = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    assert not cloud.wait(cloud.insert("w0", spot=False, **changes)).error.errors
    eventually(lambda: cloud.names() == set())


async def test_the_metadata_server_answers_as_googles_does(cloud: Cloud) -> None:
    cloud.create("w0", metadata={"colour": "blue"})
    google = {"Metadata-Flavor": "Google"}
    answered = {
        "instance/attributes/colour": "blue", "instance/name": "w0", "project/project-id": PROJECT,
        "instance/network-interfaces/0/ip": cloud.get("w0").network_interfaces[0].network_i_p,
        "instance/preempted?wait_for_change=true&timeout_sec=0.2": "FALSE",
    }  # fmt: skip
    others = ("instance/zone", "instance/nothing", "instance/?recursive=true", "instance/")
    async with await cloud.ssh("w0") as connection:
        heard = await ask_in_turn(
            connection,
            ("", "GET", "", {"Accept": "*"}),
            *((path, "GET", "", google) for path in (*answered, *others)),
            ("instance/guest-attributes/mine/key", "PUT", "hello", google),
        )
    (unnamed, *_), *told, (kept, *_) = heard
    assert unnamed == 403
    known = dict(zip((*answered, *others), ((status, text) for status, text, _ in told), strict=True))
    for path, text in answered.items():
        assert known[path] == (200, text)
    assert known["instance/zone"][1].endswith(f"/zones/{ZONE}")
    assert known["instance/nothing"][0] == 404
    assert '"preempted": "FALSE"' in known["instance/?recursive=true"][1]
    assert "attributes/" in known["instance/"][1].splitlines()
    assert kept == 200
    request = compute_v1.GetGuestAttributesInstanceRequest(
        project=PROJECT, zone=ZONE, instance="w0", variable_key="mine/key"
    )
    assert cloud.instances.get_guest_attributes(request).variable_value == "hello"
