"""What is recorded of exchanges with Google's services: shapes, and neither secrets nor anything long."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripted_api import PROJECT, ZONE, Api, instance, refusal, succeed

from transient_magics import places
from transient_magics.cloud import ComputeEngine, VmRequest
from transient_magics.cloud.calling.recording import shape, sketch
from transient_magics.errors import AccessError


async def test_exchanges_are_recorded_only_where_that_is_wanted(
    api: Api, wanted: VmRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    succeed(api)
    async with ComputeEngine(PROJECT, api.url, patience=5) as engine:
        await engine.get(ZONE, "c1-worker-1")
    assert not record.exists()
    monkeypatch.setenv(places.RECORD_VARIABLE, str(record))
    api.on("GET", f"zones/{ZONE}/instances/c1-worker-2", refusal(403, "forbidden", "Required 'a' permission"))
    async with ComputeEngine(PROJECT, api.url, patience=5) as engine:
        await engine.insert(wanted)
        with pytest.raises(AccessError):
            await engine.get(ZONE, "c1-worker-2")
    assert record.stat().st_mode & 0o077 == 0
    insert, _, got, refused = map(json.loads, record.read_text(encoding="utf-8").splitlines())
    assert (insert["method"], insert["path"]) == ("POST", f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances")
    assert insert["query"] == {"requestId": wanted.request_id}
    assert insert["asked"]["scheduling"]["provisioningModel"] == "SPOT"
    assert insert["answered"] == {
        "kind": "compute#operation", "name": "operation-1", "status": "DONE", "progress": "<number>",
    }  # fmt: skip
    assert got["answered"]["networkInterfaces"] == [{"networkIP": "<string>", "accessConfigs": [{"natIP": "<string>"}]}]
    assert got["answered"]["labels"] == {"*": "<string>"}
    assert refused["status"] == 403
    assert refused["answered"]["error"]["errors"][0]["reason"] == "forbidden"


def test_a_shape_has_the_fields_of_all_elements_and_no_names_as_keys() -> None:
    scopes = {"zones/a": {"instances": [instance("x", labels={"owner": "me"})]}, "zones/b": {"warning": {"code": "NO"}}}
    found = shape({"items": scopes})["items"]
    assert list(found) == ["*"]
    assert found["*"]["warning"] == {"code": "NO"}
    assert found["*"]["instances"][0]["labels"] == {"*": "<string>"}
    assert shape([{"a": 1}, {"b": None}]) == [{"a": "<number>", "b": "<null>"}]


def test_secrets_and_long_values_are_left_out_of_requests() -> None:
    asked = {"access_token": "ya29.x", "items": [{"key": "startup-script", "value": "x" * 999}], "size": 3}
    assert sketch(asked) == {
        "access_token": "<secret>", "items": [{"key": "startup-script", "value": "<999 characters>"}], "size": 3,
    }  # fmt: skip
