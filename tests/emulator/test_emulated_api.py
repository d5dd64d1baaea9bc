from __future__ import annotations

import uuid

import pytest
from discovery import faults
from emulated_cloud import KEY, PROJECT, ZONE, Cloud, Running, http_request
from google.api_core import exceptions
from google.cloud import compute_v1

_BASE = f"/compute/v1/projects/{PROJECT}"
_IMAGES = "/compute/v1/projects/debian-cloud/global/images"
_DEBIAN = "projects/debian-cloud/global/images/family/debian-12"
_SELF = f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"


@pytest.mark.slow
def test_every_answer_is_what_the_discovery_document_says(cloud: Cloud) -> None:
    operation = cloud.wait(cloud.insert("w0", labels={"run": "r1"}))
    answers = {
        f"zones/{ZONE}/instances/w0": "Instance",
        f"zones/{ZONE}/instances": "InstanceList",
        "aggregated/instances": "InstanceAggregatedList",
        f"zones/{ZONE}/instances/w0/getGuestAttributes?queryPath=hostkeys/": "GuestAttributes",
        f"zones/{ZONE}/instances/w0/getGuestAttributes?variableKey=hostkeys/ssh-ed25519": "GuestAttributes",
        f"zones/{ZONE}/instances/w0/serialPort": "SerialPortOutput",
        f"zones/{ZONE}/operations/{operation.name}": "Operation",
        f"zones/{ZONE}/operations": "OperationList",
        "aggregated/operations": "OperationAggregatedList",
        "global/operations": "OperationList",
        "regions/us-central1/operations": "OperationList",
        f"zones/{ZONE}": "Zone",
        "zones": "ZoneList",
        "regions/us-central1": "Region",
        "regions": "RegionList",
        f"zones/{ZONE}/machineTypes": "MachineTypeList",
        f"zones/{ZONE}/machineTypes/g2-standard-4": "MachineType",
        f"zones/{ZONE}/machineTypes/custom-4-16384": "MachineType",
        "aggregated/machineTypes": "MachineTypeAggregatedList",
        f"zones/{ZONE}/acceleratorTypes": "AcceleratorTypeList",
        f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-k80": "AcceleratorType",
        "aggregated/acceleratorTypes": "AcceleratorTypeAggregatedList",
        "": "Project",
        "global/networks": "NetworkList",
        "global/networks/default": "Network",
        "regions/us-central1/subnetworks/default": "Subnetwork",
        "global/firewalls": "FirewallList",
        f"zones/{ZONE}/disks": "DiskList",
        f"zones/{ZONE}/disks/w0": "Disk",
        "aggregated/disks": "DiskAggregatedList",
    }
    found = {}
    for path, schema in answers.items():
        status, content = http_request(cloud.running.url, "GET", f"{_BASE}/{path}".rstrip("/"))
        found[path] = [] if status == 200 and not faults(schema, content) else [status, *faults(schema, content)]
    for path, schema in {"family/debian-12": "Image", "debian-12-v20260101": "Image", "": "ImageList"}.items():
        _, content = http_request(cloud.running.url, "GET", f"{_IMAGES}/{path}".rstrip("/"))
        found[f"images/{path}"] = faults(schema, content)
    assert not {path: wrong for path, wrong in found.items() if wrong}


def test_another_client_of_the_same_api_is_served(cloud: Cloud) -> None:
    from google.auth.credentials import AnonymousCredentials
    from googleapiclient.discovery import build

    options = {"api_endpoint": f"{cloud.running.url}/compute/v1/"}
    other = build("compute", "v1", static_discovery=True, credentials=AnonymousCredentials(), client_options=options)
    body = {
        "name": "w1", "machineType": f"{_SELF}/zones/{ZONE}/machineTypes/g2-standard-4",
        "scheduling": {"preemptible": True, "automaticRestart": False, "onHostMaintenance": "TERMINATE"},
        "disks": [{"boot": True, "autoDelete": True,
                   "initializeParams": {"sourceImage": _DEBIAN, "diskSizeGb": "50"}}],
        "networkInterfaces": [{"accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}]}],
    }  # fmt: skip
    operation = other.instances().insert(project=PROJECT, zone=ZONE, body=body).execute()
    operation = other.zoneOperations().wait(project=PROJECT, zone=ZONE, operation=operation["name"]).execute()
    assert (operation["status"], operation.get("error")) == ("DONE", None)
    instance = other.instances().get(project=PROJECT, zone=ZONE, instance="w1").execute()
    assert instance["guestAccelerators"][0]["acceleratorType"].endswith("/nvidia-l4")
    assert instance["selfLink"] == f"{_SELF}/zones/{ZONE}/instances/w1"
    assert faults("Instance", instance) == []
    deleted = other.zoneOperations().delete(project=PROJECT, zone=ZONE, operation=operation["name"]).execute()
    assert not deleted


def test_the_same_request_twice_makes_one_vm(cloud: Cloud) -> None:
    request = str(uuid.uuid4())
    first, second = cloud.insert("w2", request_id=request), cloud.insert("w2", request_id=request)
    assert first.name == second.name
    cloud.wait(first)
    with pytest.raises(exceptions.Conflict) as refused:
        cloud.insert("w2", request_id=str(uuid.uuid4()))
    assert refused.value.errors[0]["reason"] == "alreadyExists"


def test_what_does_not_exist_is_said_as_google_says_it(cloud: Cloud) -> None:
    with pytest.raises(exceptions.NotFound) as missing:
        cloud.get("nobody")
    assert missing.value.errors[0]["reason"] == "notFound"
    assert f"The resource 'projects/{PROJECT}/zones/{ZONE}/instances/nobody' was not found" in str(missing.value)
    with pytest.raises(exceptions.NotFound):
        list(cloud.instances.list(project=PROJECT, zone="moon-central1-a"))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"machine_type": f"zones/{ZONE}/machineTypes/n9-standard-4"}, "machineType"),
        ({"machine_type": f"zones/{ZONE}/machineTypes/n1-standard-96"}, "vCPUs"),
        ({"machine_type": f"zones/{ZONE}/machineTypes/e2-standard-4"}, "N1"),
        ({"machine_type": f"zones/{ZONE}/machineTypes/n1-custom-2-65536"}, "machineType"),
        ({"disks": []}, "disks"),
        ({"network_interfaces": []}, "network interface"),
        ({"scheduling__on_host_maintenance": "MIGRATE"}, "live migration"),
        ({"scheduling__termination_time": "soon"}, "terminationTime"),
        ({"labels": {"Run": "1"}}, "labels"),
        ({"name": "Capital"}, "resource.name"),
    ],
)
def test_an_illegal_vm_is_refused(cloud: Cloud, changes: dict, word: str) -> None:
    name = changes.pop("name", "w3")
    with pytest.raises(exceptions.BadRequest, match=word):
        cloud.insert(name, **changes)
    assert cloud.names() == set()


def test_lists_are_filtered_and_paged(cloud: Cloud) -> None:
    operations = [cloud.insert(f"w{number}", labels={"run": "a" if number < 3 else "b"}) for number in range(5)]
    assert cloud.names() == {f"w{number}" for number in range(5)}
    request = compute_v1.ListInstancesRequest(project=PROJECT, zone=ZONE, max_results=2)
    pages = [[each.name for each in page.items] for page in cloud.instances.list(request).pages]
    assert pages == [["w0", "w1"], ["w2", "w3"], ["w4"]]
    everywhere = compute_v1.AggregatedListInstancesRequest(project=PROJECT, filter="labels.run=b", max_results=1)
    found = [each.name for _, scope in cloud.instances.aggregated_list(everywhere) for each in scope.instances]
    assert found == ["w3", "w4"]
    for operation in operations:
        cloud.wait(operation)


def test_labels_and_metadata_can_be_changed(cloud: Cloud) -> None:
    instance = cloud.create("w4", labels={"run": "a"})
    request = compute_v1.InstancesSetLabelsRequest(labels={"run": "b"}, label_fingerprint=instance.label_fingerprint)
    arguments = {"project": PROJECT, "zone": ZONE, "instance": "w4"}
    cloud.wait(cloud.instances.set_labels_unary(**arguments, instances_set_labels_request_resource=request))
    assert dict(cloud.get("w4").labels) == {"run": "b"}
    with pytest.raises(exceptions.PreconditionFailed):
        cloud.instances.set_labels_unary(**arguments, instances_set_labels_request_resource=request)
    key = KEY.export_public_key().decode().strip()
    items = [compute_v1.Items(key="ssh-keys", value=f"transient:{key}"), compute_v1.Items(key="x", value="1")]
    metadata = compute_v1.Metadata(items=items, fingerprint=instance.metadata.fingerprint)
    cloud.wait(cloud.instances.set_metadata_unary(**arguments, metadata_resource=metadata))
    assert {item.key for item in cloud.get("w4").metadata.items} == {"ssh-keys", "x"}


def test_quotas_show_what_is_used(cloud: Cloud) -> None:
    cloud.create("w5")
    region = cloud.client(compute_v1.RegionsClient).get(project=PROJECT, region="us-central1")
    usage = {quota.metric: quota.usage for quota in region.quotas}
    assert (usage["PREEMPTIBLE_NVIDIA_K80_GPUS"], usage["PREEMPTIBLE_CPUS"], usage["NVIDIA_K80_GPUS"]) == (1, 4, 0)


def test_a_web_page_cannot_make_the_browser_ask(running: Running) -> None:
    assert http_request(running.url, "GET", f"{_BASE}/zones", Origin="http://evil.example")[0] == 403
    assert http_request(running.url, "GET", f"{_BASE}/zones", Host="evil.example")[0] == 403
    asked = {site: http_request(running.url, "GET", f"{_BASE}/zones", **{"Sec-Fetch-Site": site})[0]
             for site in ("cross-site", "same-site", "same-origin", "none")}  # fmt: skip
    assert asked == {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}
    assert http_request(running.url, "GET", f"{_BASE}/zones?unknown=1&prettyPrint=false")[0] == 200
    status, refusal = http_request(running.url, "GET", "/compute/v2/nothing")
    assert (status, refusal["error"]["errors"][0]["reason"]) == (404, "notFound")
