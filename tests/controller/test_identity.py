"""What a cluster's VMs may do (nothing at Google, but for buckets where the cluster has one), and whose they are."""

from __future__ import annotations

from dataclasses import replace

from transient_magics.cloud.translation import instance_of
from transient_magics.controller.machines import ID_LABEL, LABEL, firewall_rules, labels
from transient_magics.controller.preflight import first_requests
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

LINE = PriceLine("n1-standard-4", 1.0, 3.0, "test")
STORAGE = "https://www.googleapis.com/auth/devstorage.read_write"
SPEC = ClusterSpec(
    name="c", groups=(WorkerGroup("v100", 2),), zones=("us-west1-b",), project="mine",
    prices={"v100": LINE, "parameter-server": LINE}, declared_at=1e9,
)  # fmt: skip


def accounts(spec: ClusterSpec) -> dict[str, list[tuple[str, list[str]]]]:
    """By VM, the service accounts of its request and their scopes."""
    bodies = [instance_of(request) for request in first_requests(spec)]
    return {
        body["name"]: [(each["email"], each["scopes"]) for each in body.get("service_accounts", [])] for body in bodies
    }


def test_without_a_bucket_no_vm_has_a_service_account() -> None:
    assert accounts(SPEC) == {"c-ps-0": [], "c-worker-0": [], "c-worker-1": []}


def test_with_a_bucket_the_parameter_server_may_use_buckets_and_nothing_else() -> None:
    given = accounts(replace(SPEC, bucket="mine-bucket"))
    assert given == {"c-ps-0": [("default", [STORAGE])], "c-worker-0": [], "c-worker-1": []}


def test_a_named_account_may_use_buckets_and_nothing_else() -> None:
    given = accounts(replace(SPEC, service_account="robot@mine"))
    assert set(given) == {"c-ps-0", "c-worker-0", "c-worker-1"}
    assert all(each == [("robot@mine", [STORAGE])] for each in given.values())


def test_every_vm_turns_os_login_off_for_itself() -> None:
    for request in first_requests(SPEC):
        metadata = {item["key"]: item["value"] for item in instance_of(request)["metadata"]["items"]}
        assert (metadata["enable-oslogin"], metadata["block-project-ssh-keys"]) == ("FALSE", "true")


def test_the_clusters_id_is_on_every_vm_disk_rule_and_request() -> None:
    one, other = replace(SPEC, id="1a2b3c4d"), replace(SPEC, id="5e6f7a8b")
    for mine, theirs in zip(first_requests(one), first_requests(other), strict=True):
        body = instance_of(mine)
        assert body["labels"][ID_LABEL] == body["disks"][0]["initialize_params"]["labels"][ID_LABEL] == one.id
        assert (mine.name, mine.labels[LABEL]) == (theirs.name, "c"), "the name stays readable"
        assert mine.request_id != theirs.request_id
        assert mine.tags != theirs.tags
    rules = firewall_rules(one)
    assert all(one.id in rule["name"] and rule["target_tags"] == list(first_requests(one)[0].tags) for rule in rules)
    assert not {rule["name"] for rule in rules} & {rule["name"] for rule in firewall_rules(other)}
    assert labels(one) == {ID_LABEL: one.id}
    assert labels(SPEC)[LABEL] == "c", "what has no id is found by its name and owner"
