from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from discovery import faults, refusal_faults
from emulated_cloud import KEY, PROJECT, ZONE, Cloud, Running, eventually, http_request, start, text_of
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError
from googleapiclient.http import BatchHttpRequest

_BASE = f"/compute/v1/projects/{PROJECT}"
_SELF = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"
_GCLOUD = "alt=json&prettyPrint=false&returnPartialSuccess=True&maxResults=500"


@pytest.fixture(scope="module")
def google(running: Running) -> Any:
    """The client that is made from the discovery document."""
    options = {"api_endpoint": f"{running.url}/compute/v1/"}
    return build("compute", "v1", static_discovery=True, credentials=AnonymousCredentials(), client_options=options)


@pytest.fixture
def ask(running: Running) -> Any:
    """Ask as any program would; refusals and answers are held against the discovery document."""

    def ask(method: str, path: str, schema: str = "", body: Any = None, *, expect: int = 200) -> Any:
        status, content = http_request(running.url, method, f"{_BASE}/{path}".rstrip("/"), body)
        assert status == expect, content
        wrong = faults(schema or "Operation", content) if status < 300 else refusal_faults(status, content)
        assert wrong == []
        return content if status < 300 else content["error"]["errors"][0]["reason"]

    return ask


def test_a_project_begins_with_a_network_and_its_rules(google: Any, ask: Any) -> None:
    names = {each["name"] for each in google.firewalls().list(project=PROJECT).execute()["items"]}
    assert names == {f"default-allow-{name}" for name in ("internal", "ssh", "rdp", "icmp")}
    ssh = ask("GET", "global/firewalls/default-allow-ssh", "Firewall")
    assert (ssh["allowed"], ssh["sourceRanges"], ssh["priority"]) == (
        [{"IPProtocol": "tcp", "ports": ["22"]}], ["0.0.0.0/0"], 65534,
    )  # fmt: skip
    network = ask("GET", "global/networks/default", "Network")
    assert f"{_SELF}/regions/us-central1/subnetworks/default" in network["subnetworks"]
    subnetworks = ask("GET", f"aggregated/subnetworks?{_GCLOUD}", "SubnetworkAggregatedList")["items"]
    assert subnetworks["regions/us-central1"]["subnetworks"][0]["ipCidrRange"] == "10.128.0.0/20"


def test_firewall_rules_are_made_changed_and_deleted(cloud: Cloud, ask: Any) -> None:
    client, wait = cloud.client(compute_v1.FirewallsClient), cloud.client(compute_v1.GlobalOperationsClient).wait
    rule = compute_v1.Firewall(
        name="open", network="global/networks/default", source_ranges=["10.0.0.0/8"], target_tags=["ps"],
        allowed=[compute_v1.Allowed(I_p_protocol="tcp", ports=["2222", "8000-8100"])],
    )  # fmt: skip
    request = compute_v1.InsertFirewallRequest(project=PROJECT, firewall_resource=rule, request_id=str(uuid.uuid4()))
    operation = client.insert_unary(request)
    assert wait(project=PROJECT, operation=operation.name).status == compute_v1.Operation.Status.DONE
    assert client.insert_unary(request).name == operation.name
    with pytest.raises(exceptions.Conflict) as conflict:
        client.insert_unary(project=PROJECT, firewall_resource=rule)
    assert conflict.value.errors[0]["reason"] == "alreadyExists"
    client.patch_unary(project=PROJECT, firewall="open", firewall_resource=compute_v1.Firewall(priority=7))
    found = client.get(project=PROJECT, firewall="open")
    assert (found.priority, list(found.target_tags), found.direction) == (7, ["ps"], "INGRESS")
    denied = {"name": "open", "network": f"{_SELF}/global/networks/default", "denied": [{"IPProtocol": "udp"}]}
    ask("PUT", "global/firewalls/open", body=denied)
    rule = ask("GET", "global/firewalls/open", "Firewall")
    assert "allowed" not in rule
    assert (rule["denied"], rule["sourceRanges"], rule["priority"]) == ([{"IPProtocol": "udp"}], ["0.0.0.0/0"], 1000)
    for wrong, reason in (
        ({"allowed": []}, "invalid"),
        ({"allowed": [{"ports": ["1"]}]}, "required"),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["99999"]}]}, "invalid"),
        ({"allowed": [{"IPProtocol": "tcp"}], "sourceRanges": ["here"]}, "invalid"),
        ({"allowed": [{"IPProtocol": "tcp"}], "network": "global/networks/none"}, "invalid"),
        ({"allowed": [{"IPProtocol": "tcp"}], "name": "Open"}, "invalid"),
    ):
        assert ask("POST", "global/firewalls", body={"name": "bad", **wrong}, expect=400) == reason
    assert [each.name for each in client.list(project=PROJECT) if not each.name.startswith("default")] == ["open"]
    client.delete_unary(project=PROJECT, firewall="open")
    with pytest.raises(exceptions.NotFound):
        client.delete_unary(project=PROJECT, firewall="open")


def test_networks_of_ones_own(ask: Any, cloud: Cloud) -> None:
    ask("POST", "global/networks", body={"name": "own", "autoCreateSubnetworks": False})
    inner = {"name": "inner", "network": "global/networks/own", "ipCidrRange": "10.7.0.0/24"}
    ask("POST", "regions/us-central1/subnetworks", body=inner)
    assert ask("GET", "regions/us-central1/subnetworks/inner", "Subnetwork")["gatewayAddress"] == "10.7.0.1"
    again = {**inner, "name": "other", "ipCidrRange": "10.7.0.128/25"}
    assert ask("POST", "regions/us-central1/subnetworks", body=again, expect=400) == "invalid"
    assert ask("DELETE", "global/networks/own", expect=400) == "resourceInUseByAnotherResource"
    stale = {"fingerprint": "AAAA", "privateIpGoogleAccess": True}
    assert ask("PATCH", "regions/us-central1/subnetworks/inner", body=stale, expect=412) == "conditionNotMet"
    with pytest.raises(exceptions.BadRequest, match="Subnetwork should be specified"):
        cloud.insert("w0", network_interfaces=[compute_v1.NetworkInterface(network="global/networks/own")])
    with pytest.raises(exceptions.BadRequest, match="referenced network resource cannot be found"):
        cloud.insert("w0", network_interfaces=[compute_v1.NetworkInterface(network="global/networks/no")])
    interface = compute_v1.NetworkInterface(subnetwork="regions/us-central1/subnetworks/inner")
    instance = cloud.create("w0", network_interfaces=[interface])
    assert instance.network_interfaces[0].network == f"{_SELF}/global/networks/own"
    cloud.delete("w0")
    ask("DELETE", "regions/us-central1/subnetworks/inner")
    ask("DELETE", "global/networks/own")
    assert ask("GET", "global/networks/own", expect=404) == "notFound"


def test_addresses_are_reserved(google: Any, ask: Any) -> None:
    regional = google.addresses()
    regional.insert(project=PROJECT, region="us-central1", body={"name": "out"}).execute()
    body = {"name": "in", "addressType": "INTERNAL", "subnetwork": "regions/us-central1/subnetworks/default"}
    regional.insert(project=PROJECT, region="us-central1", body=body).execute()
    google.globalAddresses().insert(project=PROJECT, body={"name": "all"}).execute()
    found = ask("GET", "regions/us-central1/addresses", "AddressList")["items"]
    addresses = {each["name"]: each["address"] for each in found}
    assert addresses["in"].startswith("10.128.15.")
    everywhere = ask("GET", "aggregated/addresses", "AddressAggregatedList")["items"]
    assert [each["name"] for each in everywhere["global"]["addresses"]] == ["all"]
    assert everywhere["regions/us-east1"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
    region = ask("GET", "regions/us-central1", "Region")
    assert {each["metric"]: each["usage"] for each in region["quotas"]}["STATIC_ADDRESSES"] == 1
    assert ask("POST", "regions/us-central1/addresses", body={"name": "out"}, expect=409) == "alreadyExists"
    for name in addresses:
        regional.delete(project=PROJECT, region="us-central1", address=name).execute()
    google.globalAddresses().delete(project=PROJECT, address="all").execute()
    assert "items" not in ask("GET", "regions/us-central1/addresses", "AddressList")


def _boot(**changes: Any) -> list[compute_v1.AttachedDisk]:
    return [compute_v1.AttachedDisk(**{"boot": True, "auto_delete": True, **changes})]


def _put_file(cloud: Cloud, name: str) -> Path:
    home = cloud.running.state / "vms" / name / "home"
    eventually(home.exists)
    return home


def test_a_disk_that_is_kept_brings_its_files_to_the_next_vm(cloud: Cloud, ask: Any) -> None:
    cloud.create("w0", disks=_boot(auto_delete=False, device_name="boot"))
    (_put_file(cloud, "w0") / "kept").write_text("data", encoding="utf-8")
    assert ask("DELETE", f"zones/{ZONE}/disks/w0", expect=400) == "resourceInUseByAnotherResource"
    cloud.delete("w0")
    disk = ask("GET", f"zones/{ZONE}/disks/w0", "Disk")
    assert "users" not in disk
    with pytest.raises(exceptions.Conflict, match="disks/w0"):
        cloud.insert("w0")
    cloud.create("w1", disks=_boot(source=f"zones/{ZONE}/disks/w0"))
    assert (_put_file(cloud, "w1") / "kept").read_text(encoding="utf-8") == "data"
    with pytest.raises(exceptions.BadRequest, match="already being used by"):
        cloud.insert("w2", disks=_boot(source=disk["selfLink"]))
    cloud.delete("w1")
    assert ask("GET", f"zones/{ZONE}/disks/w0", expect=404) == "notFound"
    assert not list((cloud.running.state / "contents/disks").iterdir())


def test_an_image_of_a_disk_makes_vms_like_the_first(cloud: Cloud, google: Any, ask: Any) -> None:
    cloud.create("w0", disks=_boot(disk_size_gb=20))
    (_put_file(cloud, "w0") / "baked").write_text("in", encoding="utf-8")
    body = {"name": "own-1", "sourceDisk": f"zones/{ZONE}/disks/w0", "family": "own", "labels": {"a": "b"}}
    assert ask("POST", "global/images", body=body, expect=400) == "resourceInUseByAnotherResource"
    operation = google.images().insert(project=PROJECT, body=body, forceCreate=True).execute()
    google.globalOperations().wait(project=PROJECT, operation=operation["name"]).execute()
    image = ask("GET", "global/images/own-1", "Image")
    assert (image["status"], image["diskSizeGb"], image["labels"]) == ("READY", "20", {"a": "b"})
    source = compute_v1.AttachedDiskInitializeParams(source_image="global/images/family/own")
    instance = cloud.create("w1", disks=_boot(initialize_params=source))
    assert (_put_file(cloud, "w1") / "baked").read_text(encoding="utf-8") == "in"
    assert instance.disks[0].disk_size_gb == 20
    assert ask("GET", f"zones/{ZONE}/disks/w1", "Disk")["sourceImageId"] == image["id"]
    small = compute_v1.AttachedDiskInitializeParams(source_image=image["selfLink"], disk_size_gb=10)
    with pytest.raises(exceptions.BadRequest, match="cannot be smaller"):
        cloud.insert("w2", disks=_boot(initialize_params=small))
    copy = google.images().insert(project=PROJECT, body={"name": "own-2", "sourceImage": "global/images/own-1",
                                                         "family": "own"}).execute()  # fmt: skip
    google.globalOperations().wait(project=PROJECT, operation=copy["name"]).execute()
    newest = google.images().getFromFamily(project=PROJECT, family="own")
    assert newest.execute()["name"] == "own-2"
    ask("POST", "global/images/own-2/deprecate", body={"state": "DEPRECATED", "replacement": image["selfLink"]})
    assert newest.execute()["name"] == "own-1"
    assert ask("GET", "global/images/own-2", "Image")["deprecated"]["state"] == "DEPRECATED"
    ask("PATCH", "global/images/own-2", body={"description": "old"})
    stale = {"labels": {}, "labelFingerprint": "AAAA"}
    assert ask("POST", "global/images/own-2/setLabels", body=stale, expect=412) == "conditionNotMet"
    for name in ("own-1", "own-2"):
        google.images().delete(project=PROJECT, image=name).execute()
    with pytest.raises(HttpError) as gone:
        newest.execute()
    assert gone.value.resp.status == 404
    assert not list((cloud.running.state / "contents/images").iterdir())
    public = f"/compute/v1/projects/debian-cloud/global/images/{_public(cloud.running.url)}"
    status, refusal = http_request(cloud.running.url, "DELETE", public)
    assert (status, refusal_faults(status, refusal)) == (403, [])


def _public(url: str) -> str:
    query = "filter=family%20eq%20debian-12&orderBy=creationTimestamp%20desc"
    (image,) = http_request(url, "GET", f"/compute/v1/projects/debian-cloud/global/images?{query}")[1]["items"]
    return image["name"]


def test_disks_of_ones_own(cloud: Cloud, google: Any, ask: Any) -> None:
    disks = google.disks()
    where = {"project": PROJECT, "zone": ZONE}
    body = {"name": "data", "sizeGb": "30", "type": f"zones/{ZONE}/diskTypes/pd-ssd", "labels": {"run": "1"}}
    disks.insert(**where, body=body).execute()
    blank = {"name": "plain", "description": "from an image"}
    image = "projects/debian-cloud/global/images/family/debian-12"
    disks.insert(**where, body=blank, sourceImage=image).execute()
    assert ask("GET", f"zones/{ZONE}/disks/plain", "Disk")["sizeGb"] == "10"
    quotas = ask("GET", "regions/us-central1", "Region")["quotas"]
    assert {each["metric"]: each["usage"] for each in quotas}["SSD_TOTAL_GB"] == 30
    cloud.create("w0")
    instances = google.instances()
    attached = {"source": f"zones/{ZONE}/disks/data", "deviceName": "data"}
    instances.attachDisk(**where, instance="w0", body=attached).execute()
    assert ask("GET", f"zones/{ZONE}/disks/data", "Disk")["users"] == [f"{_SELF}/zones/{ZONE}/instances/w0"]
    assert [each.device_name for each in cloud.get("w0").disks] == ["persistent-disk-0", "data"]
    instances.detachDisk(**where, instance="w0", deviceName="data").execute()
    disks.resize(**where, disk="data", body={"sizeGb": "40"}).execute()
    assert ask("POST", f"zones/{ZONE}/disks/data/resize", body={"sizeGb": "5"}, expect=400) == "invalid"
    found = ask("GET", "aggregated/disks?filter=labels.run=1", "DiskAggregatedList")["items"][f"zones/{ZONE}"]["disks"]
    assert [(each["name"], each["sizeGb"]) for each in found] == [("data", "40")]
    for name in ("data", "plain"):
        disks.delete(**where, disk=name).execute()
    assert [each["name"] for each in ask("GET", f"zones/{ZONE}/disks", "DiskList")["items"]] == ["w0"]


@pytest.mark.slow
def test_what_can_be_changed_of_a_vm(cloud: Cloud, google: Any, ask: Any) -> None:
    cloud.create("w0", metadata={"startup-script": "echo boot >> $HOME/boots"})
    instance, where = f"zones/{ZONE}/instances/w0", {"project": PROJECT, "zone": ZONE, "instance": "w0"}
    instances = google.instances()
    tags = ask("GET", instance, "Instance")["tags"]["fingerprint"]
    instances.setTags(**where, body={"items": ["ps"], "fingerprint": tags}).execute()
    assert ask("POST", f"{instance}/setTags", body={"fingerprint": tags}, expect=412) == "conditionNotMet"
    assert ask("POST", f"{instance}/suspend", expect=400) == "unsupportedOperation"
    assert ask("POST", f"{instance}/resume", expect=400) == "invalid"
    assert ask("POST", f"{instance}/setMachineType", body={"machineType": "n1-standard-2"}, expect=400)
    limit = {"maxRunDuration": {"seconds": "1"}, "instanceTerminationAction": "DELETE"}
    for settled in ({"preemptible": False}, limit):
        assert ask("POST", f"{instance}/setScheduling", body=settled, expect=400) == "invalid"
    boots = cloud.running.state / "vms/w0/home/boots"
    eventually(lambda: text_of(boots) == "boot\n")
    cloud.wait(cloud.instances.reset_unary(**where))
    eventually(lambda: text_of(boots) == "boot\nboot\n")
    instances.setDeletionProtection(project=PROJECT, zone=ZONE, resource="w0", deletionProtection=True).execute()
    assert ask("DELETE", instance, expect=400) == "invalid"
    instances.setDeletionProtection(project=PROJECT, zone=ZONE, resource="w0", deletionProtection=False).execute()
    cloud.wait(cloud.instances.stop_unary(**where))
    wrong = {"machineType": f"zones/{ZONE}/machineTypes/n1-standard-96"}
    assert ask("POST", f"{instance}/setMachineType", body=wrong, expect=400) == "invalid"
    right = {"machineType": f"{_SELF}/zones/{ZONE}/machineTypes/n1-standard-8"}
    ask("POST", f"{instance}/setMachineType", body=right)
    ask("POST", f"{instance}/setScheduling", body=limit)
    changed = ask("GET", instance, "Instance")
    assert changed["machineType"].endswith("/n1-standard-8")
    assert changed["tags"]["items"] == ["ps"]
    ask("POST", f"{instance}/setDiskAutoDelete?autoDelete=false&deviceName=persistent-disk-0")
    cloud.wait(cloud.instances.start_unary(**where))
    eventually(lambda: cloud.names() == set())
    assert ask("GET", f"zones/{ZONE}/disks/w0", "Disk")["status"] == "READY"
    assert (cloud.running.state / "contents/disks").exists()
    ask("DELETE", f"zones/{ZONE}/disks/w0")


def test_what_every_zone_offers(ask: Any) -> None:
    for collection, kind in (("machineTypes", "MachineType"), ("acceleratorTypes", "AcceleratorType"),
                             ("diskTypes", "DiskType")):  # fmt: skip
        ask("GET", f"aggregated/{collection}?{_GCLOUD}", f"{kind}AggregatedList")
        listed = ask("GET", f"zones/{ZONE}/{collection}", f"{kind}List")["items"]
        ask("GET", f"zones/{ZONE}/{collection}/{listed[0]['name']}", kind)
        assert ask("GET", f"zones/{ZONE}/{collection}/nothing", expect=404) == "notFound"


def test_an_image_family_is_also_seen_from_a_zone(running: Running) -> None:
    view = "/compute/v1/projects/debian-cloud/zones/us-central1-c/imageFamilyViews/debian-12"
    status, content = http_request(running.url, "GET", view)
    assert (status, faults("ImageFamilyView", content)) == (200, [])
    assert content["image"]["family"] == "debian-12"


def test_quotas_count_what_exists(cloud: Cloud, ask: Any) -> None:
    cloud.create("w0", disks=_boot(disk_size_gb=25))
    usage = {each["metric"]: each["usage"] for each in ask("GET", "", "Project")["quotas"]}
    assert (usage["CPUS_ALL_REGIONS"], usage["GPUS_ALL_REGIONS"], usage["NETWORKS"]) == (4, 1, 1)
    assert usage["FIREWALLS"] == 4
    region = ask("GET", "regions/us-central1", "Region")
    usage = {each["metric"]: each["usage"] for each in region["quotas"]}
    assert (usage["DISKS_TOTAL_GB"], usage["INSTANCES"]) == (25, 1)


def test_advice_is_plausible_and_always_the_same(running: Running, ask: Any) -> None:
    gpu = [{"acceleratorType": "nvidia-tesla-v100", "acceleratorCount": 1}]
    selection = {"one": {"machineTypes": ["n1-standard-8"], "guestAccelerators": gpu}}
    place = "regions/us-central1/advice"

    def beta(path: str, schema: str, body: Any) -> Any:
        status, content = http_request(running.url, "POST", f"{_BASE.replace('/v1/', '/beta/')}/{path}", body)
        assert (status, faults(schema, content)) == (200, [])
        return content

    def asked(size: int, model: str) -> dict[str, Any]:
        return {
            "size": size, "instanceFlexibilityPolicy": {"instanceSelections": selection},
            "instanceProperties": {"scheduling": {"provisioningModel": model}},
        }  # fmt: skip

    def capacity(size: int, model: str = "SPOT") -> dict[str, Any]:
        return beta(f"{place}/capacity", "CapacityAdviceResponse", asked(size, model))["recommendations"][0]

    few, many, safe = capacity(1), capacity(200), capacity(1, "STANDARD")
    assert few == capacity(1)
    assert many["scores"]["obtainability"] < few["scores"]["obtainability"] < safe["scores"]["obtainability"]
    assert sum(shard["instanceCount"] for shard in many["shards"]) == 200
    assert "estimatedUptime" not in safe["scores"]
    body: dict[str, Any] = {
        "types": ["PRICE", "PREEMPTION"], "locationPolicy": {"location": f"zones/{ZONE}"},
        "instanceProperties": {"machineType": "n1-standard-8", "scheduling": {"provisioningModel": "SPOT"}},
    }  # fmt: skip
    found = beta(f"{place}/capacityHistory", "CapacityHistoryResponse", body)
    assert len(found["preemptionHistory"]) == 30
    assert all(0 <= each["preemptionRate"] <= 1 for each in found["preemptionHistory"])
    assert found["priceHistory"][0]["listPrice"]["currencyCode"] == "USD"
    assert ask("POST", f"{place}/capacityHistory", body=body, expect=400) == "invalid", "version 1 takes no SPOT"
    assert ask("POST", f"{place}/capacity", body=asked(1, "SPOT"), expect=400) == "invalid"
    assert ask("POST", f"{place}/capacity", "CapacityAdviceResponse", asked(1, "STANDARD"))["recommendations"] == [safe]
    body["instanceProperties"]["scheduling"]["provisioningModel"] = "STANDARD"
    assert ask("POST", f"{place}/capacityHistory", body=body, expect=400) == "invalid"
    assert ask("POST", "regions/moon-central1/advice/capacity", body={}, expect=404) == "notFound"
    assert ask("POST", f"{place}/capacity", body={}, expect=400) == "required"


def test_answers_can_be_cut_down_to_some_fields(running: Running, ask: Any) -> None:
    path = f"{_BASE}/zones?fields=items(name,region),nextPageToken&maxResults=1&prettyPrint=false"
    status, content = http_request(running.url, "GET", path)
    assert status == 200
    assert set(content) == {"items", "nextPageToken"}
    assert [set(each) for each in content["items"]] == [{"name", "region"}]
    assert http_request(running.url, "GET", f"{_BASE}?fields=quotas/metric")[1]["quotas"][0].keys() == {"metric"}
    assert ask("GET", "zones?fields=items(", expect=400) == "invalid"
    assert ask("GET", "zones?filter=name+eq+x+AND+id=1", expect=400) == "invalid"
    assert ask("GET", "zones?pageToken=%25", expect=400) == "invalid"
    assert ask("GET", "zones?maxResults=x", expect=400) == "invalid"
    assert ask("GET", "zones?orderBy=size", expect=400) == "invalid"


def test_every_refusal_is_written_as_google_writes_it(ask: Any) -> None:
    zone, region = f"zones/{ZONE}", "regions/us-central1"
    missing = [
        f"{zone}/instances/no", f"{zone}/disks/no", f"{zone}/operations/no", "zones/no", "regions/no",
        f"{region}/subnetworks/no", f"{region}/addresses/no", f"{region}/operations/no", "global/operations/no",
        "global/networks/no", "global/firewalls/no", "global/images/no", "global/images/family/no",
        "global/addresses/no", "zones/no/instances", "zones/no/disks", "regions/no/addresses", "no",
        f"{zone}/instances/no/serialPort", f"{zone}/instances/no/getGuestAttributes",
    ]  # fmt: skip
    for path in missing:
        assert ask("GET", path, expect=404) == "notFound", path
    for action in (
        "stop", "start", "reset", "suspend", "resume", "simulateMaintenanceEvent", "setLabels", "setMetadata",
        "setTags", "setScheduling", "setMachineType", "attachDisk", "detachDisk",
    ):  # fmt: skip
        assert ask("POST", f"{zone}/instances/no/{action}", body={}, expect=404) == "notFound", action
    for path in (f"{zone}/instances", f"{zone}/disks", "global/images", "global/networks", "global/firewalls",
                 f"{region}/addresses", f"{region}/subnetworks", "global/addresses"):  # fmt: skip
        assert ask("POST", path, body={}, expect=400) == "required", path
        assert ask("POST", path, body=[], expect=400) == "parseError", path
        assert ask("POST", f"{path}?requestId=1", body={"name": "x"}, expect=400) == "invalid", path
    assert ask("PUT", "zones", expect=405) == "httpMethodNotAllowed"
    for path in (f"{zone}/instances/bulkInsert", f"{region}/instances/bulkInsert"):
        assert ask("POST", path, body={}, expect=400) == "invalid"


def test_many_requests_go_in_one_batch(cloud: Cloud, google: Any) -> None:
    answers: dict[str, Any] = {}

    def note(identity: str, answer: Any, error: HttpError | None) -> None:
        answers[identity] = answer or error

    where = {"project": PROJECT, "zone": ZONE}
    view = "projects/debian-cloud/zones/-/imageFamilyViews/debian-12"
    batch = BatchHttpRequest(note, f"{cloud.running.url}/batch/compute/v1")
    for name in ("w1", "w2"):
        disk = {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": view}}
        body = {"name": name, "machineType": f"zones/{ZONE}/machineTypes/n1-standard-1", "disks": [disk],
                "networkInterfaces": [{}]}  # fmt: skip
        batch.add(google.instances().insert(**where, body=body), request_id=name)
    batch.add(google.instances().get(**where, instance="nobody"), request_id="no")
    batch.execute()
    assert [fault for name in ("w1", "w2") for fault in faults("Operation", answers[name])] == []
    assert answers["no"].resp.status == 404
    batch = BatchHttpRequest(note, f"{cloud.running.url}/batch/compute/v1")
    for name in ("w1", "w2"):
        batch.add(google.zoneOperations().wait(**where, operation=answers[name]["name"]), request_id=name)
    batch.execute()
    assert {answers[name]["status"] for name in ("w1", "w2")} == {"DONE"}
    assert cloud.names() == {"w1", "w2"}


@pytest.mark.slow
def test_what_a_project_has_survives_the_death_of_the_emulator(state: Path) -> None:
    first = start(state)

    def ask(method: str, path: str, body: Any = None) -> Any:
        status, content = http_request(first.url, method, f"{_BASE}/{path}", body)
        assert status == 200, content
        return content

    ask("DELETE", "global/firewalls/default-allow-rdp")
    ask("POST", f"zones/{ZONE}/disks", {"name": "data"})
    ask("POST", "regions/us-central1/addresses", {"name": "out"})
    disk = {"boot": True, "autoDelete": False}
    ask("POST", f"zones/{ZONE}/instances",
        {"name": "w0", "machineType": "n1-standard-1", "disks": [disk], "networkInterfaces": [{}],
         "metadata": {"items": [{"key": "ssh-keys", "value": f"u:{KEY.export_public_key().decode().strip()}"}]}},
    )  # fmt: skip
    before = [ask("GET", "global/firewalls"), ask("GET", f"zones/{ZONE}/disks"), ask("GET", "aggregated/addresses")]
    first.process.kill()
    first.process.wait()
    second = start(state)
    assert before == [
        ask("GET", "global/firewalls"), ask("GET", f"zones/{ZONE}/disks"), ask("GET", "aggregated/addresses")
    ]  # fmt: skip
    assert [each["name"] for each in before[1]["items"]] == ["data", "w0"]
    assert "default-allow-rdp" not in [each["name"] for each in before[0]["items"]]
    second.process.terminate()
    assert second.process.wait(60) == 0
