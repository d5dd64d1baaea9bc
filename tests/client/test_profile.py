"""A traced step: what a VM may send of one, and what other programs read of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.runtime import programs
from transient_magics.client.results.profile import chrome, shifts, written, xplane
from transient_magics.protocol import step_parts as form
from transient_magics.protocol.step_parts import Operation, Trace, packed, unpacked
from transient_magics.runtime.parameter_server.chief.speed_alarm import Slow, SpeedAlarm

WORKER, SERVER = "/job:worker/replica:0/task:3/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"
PULL = f"edge_7_w/read from {SERVER} to {WORKER}"
PUSH = f"edge_9_gradient from {WORKER} to {SERVER}"


def step(ahead: float = 0.0) -> Trace:
    """A step whose parameter server's clock is so many microseconds ahead."""
    return Trace(
        "worker-3", 40, 1.7e9, 0.001, (WORKER, SERVER),
        (
            Operation(1, "w/read", "Identity", 10 + ahead, 5), Operation(0, "RecvTensor", "RecvTensor", 5, 25, PULL),
            Operation(0, "gradient", "MatMul", 30, 400), Operation(0, "loss", "Mean", 40, 10),
            Operation(1, "RecvTensor", "RecvTensor", 420 + ahead, 30, PUSH),
            Operation(1, "apply<b>", "AssignSub", 455 + ahead, 20),
        ),
    )  # fmt: skip


def test_a_trace_is_what_perfetto_reads() -> None:
    found = chrome(unpacked(packed(step())))
    assert (
        json.loads(written(step(), "step.json")) == json.loads(gzip.decompress(written(step(), "a.json.gz"))) == found
    )
    names = {each["pid"]: each["args"]["name"] for each in found["traceEvents"] if each["name"] == "process_name"}
    assert names == {0: "worker-3 CPU:0", 1: "ps-0 CPU:0"}
    drawn = {each["args"]["name"]: each for each in found["traceEvents"] if each["ph"] == "X"}
    assert (drawn["gradient"]["ts"], drawn["gradient"]["dur"]) == (30, 400)
    assert drawn["gradient"]["tid"] != drawn["loss"]["tid"], "what overlaps is in lanes of its own"
    assert drawn["RecvTensor"]["cat"] == "transfer"
    assert found["otherData"]["clocks"] == {}


READ = """
import json, sys
from pathlib import Path
from tensorflow.tsl.profiler.protobuf import xplane_pb2

space = xplane_pb2.XSpace.FromString(Path(sys.argv[1]).read_bytes())
events = [
    [space.planes[1].event_metadata[each.metadata_id].name, each.offset_ps, each.duration_ps]
    for line in space.planes[1].lines
    for each in line.events
]
first = space.planes[0].lines[0].timestamp_ns
print(json.dumps({"planes": [plane.name for plane in space.planes], "events": events, "first": first}))
"""


@pytest.mark.training
def test_a_trace_is_what_tensorflows_own_classes_read(tmp_path: Path) -> None:
    (tmp_path / "step.xplane.pb").write_bytes(xplane(step()))
    seen = json.loads(programs.run(READ, tmp_path / "step.xplane.pb", own=True))
    assert seen["planes"] == ["/host:CPU", "/device:CUSTOM:ps-0 CPU:0"]
    assert ["AssignSub:apply<b>", 455_000_000, 20_000_000] in seen["events"]
    assert seen["first"] == pytest.approx(1.7e18)


def test_another_vms_clock_is_moved_only_as_far_as_transfers_say() -> None:
    assert shifts(step()) == [0, 0]
    for ahead in (250_000.0, -3_600e6):
        moved = shifts(step(ahead))
        assert moved[0] == 0, "the worker's clock counts"
        assert -ahead - 20 <= moved[1] <= -ahead + 20
    assert chrome(step(250_000.0))["otherData"]["clocks"].keys() == {"ps-0 CPU:0"}


def changed(**values: object) -> bytes:
    told = json.loads(gzip.decompress(packed(step())))
    return gzip.compress(json.dumps({**told, **values}).encode())


@pytest.mark.parametrize(
    "content",
    [
        lambda: b"", lambda: b"{}", lambda: gzip.compress(b"[]"), lambda: gzip.compress(b"[" * 100_000),
        lambda: gzip.compress(b"{}"), lambda: changed(operations=[[0, "a", "b", 1.0, 1.0]]),
        lambda: changed(operations=[[2, "a", "b", 1.0, 1.0, ""]]),
        lambda: changed(operations=[[True, "a", "b", 1.0, 1.0, ""]]),
        lambda: changed(operations=[[0, "a" * 401, "b", 1.0, 1.0, ""]]),
        lambda: changed(operations=[[0, "a", "b", 1e300, 1.0, ""]]),
        lambda: changed(operations=[[0, "a", "b", 1.0, -1.0, ""]]),
        lambda: changed(operations={"0": 1}), lambda: changed(devices=["x"] * 257), lambda: changed(step="40"),
        lambda: changed(worker=None), lambda: gzip.compress(b" " * (form.MOST_PLAIN + 2)),
        lambda: b"x" * (form.MOST_BYTES + 1),
    ],
    ids=lambda _: "content",
)  # fmt: skip
def test_what_is_no_trace_is_refused(content: Callable[[], bytes]) -> None:
    """Made in the test, not as it is collected: the largest is 64 MiB before it is compressed."""
    with pytest.raises(ValueError, match=r"\w"):
        unpacked(content())


@pytest.mark.parametrize("value", ["{}", "[]", '{"":0}', "[[[]]]", "0"])
def test_a_small_trace_becomes_no_gigabytes_of_objects(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = f'{{"operations":[{f"{value}," * form.MOST_VALUES}0]}}'
    monkeypatch.setattr(form.json, "loads", lambda _: pytest.fail("it is parsed"))
    with pytest.raises(ValueError, match="more than 1,000,000 values"):
        unpacked(gzip.compress(plain.encode(), compresslevel=1))


@given(st.binary(max_size=200))
@examples(50)
def test_no_bytes_raise_anything_else(content: bytes) -> None:
    for each in (content, gzip.compress(content)):
        with pytest.raises(ValueError, match=r"\w"):
            unpacked(each)


def test_a_traced_step_makes_no_run_slow() -> None:
    def told(*, traced: bool) -> list[Slow]:
        alarm, said = SpeedAlarm(0.8, 3.0), []
        for second in range(60):
            late = 7 if second > 20 else 0  # so many tenths of a second went into traced steps
            line = {"steps": 10 - late, "samples": 10 - late, "compute_seconds": (10 - late) / 10}
            alarm.add_metrics("worker-0", {**line, "traced_seconds": late / 10 if traced else 0.0}, float(second))
            said.append(alarm.check(["worker-0"], float(second)))
        return [each for each in said if isinstance(each, Slow)]

    assert told(traced=False), "as slow as that it would be told"
    assert not told(traced=True)
