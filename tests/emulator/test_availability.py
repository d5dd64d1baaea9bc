"""Measured availability as emulated zones replay it: the reading of what is asked for, and the process by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from transient_emulator.weather.availability import read
from transient_emulator.weather.revocations import Transient
from transient_emulator.weather.weather import Weather
from transient_magics.catalog.traces import read_traces
from transient_magics.client.project.weather import replayed_traces
from transient_magics.errors import DeclarationError

HEADER = "zone,gpu,gpus_per_vm,seconds,available\n"
ONE = HEADER + "far-1,k80,1,0,3\nfar-1,k80,1,600,1\nfar-1,k80,1,900,\n"
TWO = ONE + "far-2,v100,1,0,0\nfar-2,v100,1,60,\n"
PLACES = [("us-west1-b", "k80"), ("us-east1-d", "k80")]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "market.csv"
    path.write_text(TWO, encoding="utf-8")
    return path


def told(**given: str) -> list[dict[str, str]]:
    return [{"zone": "us-west1-b", "gpu": "k80", "name": "market.csv", "csv": ONE, **given}]


def test_a_trace_that_is_written_is_read_as_it_was() -> None:
    traces = read_traces(TWO, "market.csv")
    assert [read_traces(each.to_csv(), "x") for each in traces] == [(each,) for each in traces]


def test_zones_are_named_or_dealt_out_in_the_order_of_the_file(file: Path) -> None:
    def said(text: str) -> list[tuple[str, str, str]]:
        return [
            (each["zone"], each["gpu"], read_traces(each["csv"], "")[0].zone) for each in replayed_traces(text, PLACES)
        ]

    assert said(f"us-east1-b={file}:far-2, us-west1-a:k80={file}:far-1") == [
        ("us-east1-b", "", "far-2"), ("us-west1-a", "k80", "far-1")
    ]  # fmt: skip
    assert said(str(file)) == [("us-west1-b", "k80", "far-1"), ("us-east1-d", "k80", "far-2")]
    assert said(f"us-west1-b={file}:far-2,{file}:far-1") == [
        ("us-west1-b", "", "far-2"),
        ("us-east1-d", "k80", "far-1"),
    ]


def test_capacity_like_googles_of_2025_is_replayed_by_its_name() -> None:
    some = replayed_traces("us-east1-c:k80=google-h100-2025:us-west1-b", PLACES)
    assert [(each["zone"], each["gpu"]) for each in some] == [("us-east1-c", "k80")]
    assert read_traces(some[0]["csv"], "")[0].zone == "us-west1-b"
    assert len(replayed_traces("google-h100-2025", PLACES)) == min(len(PLACES), 9)
    with pytest.raises(DeclarationError, match="google-h100-2025: unknown trace 'nowhere'"):
        replayed_traces("us-east1-c=google-h100-2025:nowhere", PLACES)


def test_what_cannot_be_replayed_is_refused_in_a_sentence(file: Path) -> None:
    for text, why in (
        (f"us-east1-b={file}", "market.csv has 2 traces"), (f"us-east1-b={file}:far-3", "unknown trace 'far-3'"),
        ("us-east1-b=/no/such.csv:far-1", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(DeclarationError, match=why):
            replayed_traces(text, PLACES)
    for given, why in (
        (told(zone="us-west9-b"), "Unknown zone"), (told(gpu="k90"), "Unknown GPU"),
        (told(zone="us-east1-b", gpu="k80"), "us-east1-b has no K80"), (told() + told(), "two traces"),
        (told(csv=ONE.replace("600,1", "600,")), "the trace of far-1 has an empty number"),
        (told(csv=ONE.replace("available", "free")), "unknown column 'free'"), (told(csv=TWO), "only one trace, not 2"),
        ("published", "needs a file"),
    ):  # fmt: skip
        with pytest.raises(DeclarationError, match=why):
            read(given)


def test_as_many_are_taken_as_the_number_falls_by_and_it_begins_again(tmp_path: Path) -> None:
    weather = Weather(tmp_path, 0.0, 0.3, own_network=False)
    weather.change({"availability": told(), "hours_per_minute": 1})
    policy, since = weather.policy(), weather.since
    vms = [Transient(str(number), "us-west1-b", f"w{number}", "k80", since) for number in range(3)]
    others = [Transient("8", "us-west1-b", "v", "v100", since), Transient("9", "us-west1-a", "k", "k80", since)]
    first = policy.due([*vms, *others], since + 1)
    assert first.take == ()
    assert first.again == pytest.approx(since + 10), "600 s of a clock that runs 60 times as fast"
    later = policy.due([*vms, *others], since + 10.01)
    assert len(set(later.take)) == 2
    assert set(later.take) <= set(vms)
    assert later.again == pytest.approx(since + 15)
    assert policy.due(vms, since + 15.01).take == (), "there are three again"
    booting = [Transient("5", "us-west1-b", "b", "k80", None)]
    assert policy.due([*vms[:1], *booting], since + 11).take == tuple(vms[:1]), (
        "one that boots counts, and is not taken"
    )


def test_it_outlives_the_emulator_and_is_said_to_be_no_forecast(tmp_path: Path) -> None:
    Weather(tmp_path, 0.0, 0.3, own_network=False).change({"availability": told()})
    again = Weather(tmp_path, 0.0, 0.3, own_network=False)
    assert again.to_json([])["availability"] == ["us-west1-b:k80=market.csv:far-1:k80x1"]
    (said,) = again.describe([])
    assert said.startswith("us-west1-b has as many transient VMs with a K80 as market.csv says of far-1:k80x1")
    assert "not a forecast" in said
    assert again.sold_out("us-west1-b", "k80", True) is False
    again.change({"availability": "none"})
    assert again.describe([]) == []
