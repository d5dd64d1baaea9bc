from __future__ import annotations

import pytest

from transient_emulator.rest.filters import parse
from transient_emulator.rest.wire import ApiError

_VM = {
    "name": "w-1", "status": "RUNNING", "labels": {"ray-cluster-name": "clu", "run": "r1"}, "id": "42",
    "scheduling": {"preemptible": True}, "targetLink": "https://x/zones/z/instances/w-1",
    "disks": [{"diskSizeGb": "10"}], "creationTimestamp": "2026-02-01T00:00:00+00:00",
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        "labels.run=r1",
        "((status = RUNNING) OR (status = STAGING)) AND (labels.ray-cluster-name = clu) AND (NOT labels.tpu_cores:*)",
        'status="RUNNING" AND targetLink:instances/w-1',
        "(status=RUNNING) (labels.run=r1)",
        "name=w-*",
        "labels.run:*",
        "labels:run",
        "-labels.other:*",
        "scheduling.preemptible=true",
        "disks.diskSizeGb>5",
        "id != 43",
        "name eq 'w-[0-9]'",
        "name ne x.*",
        r'name eq ".*\bw\-1\b.*"',
        r'name = "w\-1"',
        "status=STAGING OR status=RUNNING AND labels.run=r1",
        'creationTimestamp > "2026-01-01T00:00:00+00:00"',
        "targetLink=https://x/zones/z/instances/w-1",
    ],
)
def test_a_filter_finds_the_vm(text: str) -> None:
    assert parse(text)(_VM)


@pytest.mark.parametrize(
    "text", ["labels.run=r2", "NOT status=RUNNING", "labels.none:*", "name eq w", "id>100", "name=x-*"]
)
def test_a_filter_leaves_the_vm_out(text: str) -> None:
    assert not parse(text)(_VM)


@pytest.mark.parametrize("text", ["status=", "(status=RUNNING", "status RUNNING", "name eq w AND id=42", "=x", "a=b)"])
def test_a_filter_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ApiError, match="filter"):
        parse(text)
