"""The weather's processes by themselves, without an emulator: revocations against their own tables, clock, files."""

from __future__ import annotations

import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from transient_emulator.rest import tables
from transient_emulator.weather import files
from transient_emulator.weather.revocations import (
    Due,
    Every,
    FromLifetimes,
    FromSchedule,
    Policy,
    Published,
    Transient,
)
from transient_emulator.weather.settings import Settings
from transient_emulator.weather.weather import Weather, published_startup
from transient_magics.catalog import published
from transient_magics.clock import Clock, rate_of
from transient_magics.errors import DeclarationError

HOUR, DAY = 3600.0, 24 * 3600.0


def vm(number: int, began: float | None = 0.0, zone: str = "us-west1-b", gpu: str = "k80") -> Transient:
    return Transient(str(1000 + number), zone, f"w{number}", gpu, began)


def lived(policy: Published, each: Transient) -> float:
    end = policy.end(each, 0.0, 0.0, DAY)
    return DAY if end is None else end


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "zone"), [("k80", "us-central1-c"), ("p100", "us-east1-c"), ("v100", "us-west1-b")])
@pytest.mark.parametrize("waves", [0.0, 0.25, 1.0])
def test_vms_live_as_their_table_says_whatever_the_waves(gpu: str, zone: str, waves: float) -> None:
    """Kolmogorov-Smirnov: one VM of each of many seeds, so that waves do not tie them together."""
    table = published.lifetimes(gpu, zone.rpartition("-")[0])
    count = 600
    lives = sorted(lived(Published(Clock(), 0.0, seed, waves), vm(0, zone=zone, gpu=gpu)) for seed in range(count))
    revoked = [life for life in lives if life < DAY]
    distance = max(
        max(abs((rank + 1) / count - table.fraction(life)), abs(rank / count - table.fraction(life)))
        for rank, life in enumerate(revoked)
    )
    assert distance < 1.63 / count**0.5, "at the level of 1 %"
    assert len(revoked) / count == pytest.approx(table.fraction(DAY), abs=0.06)


@pytest.mark.slow
def test_vms_that_live_side_by_side_go_in_waves_as_large_as_asked_for() -> None:
    def together(waves: float) -> float:
        """Of the others of a revoked VM's pool, the share that goes within the same five minutes."""
        same = pairs = 0
        for seed in range(80):
            policy = Published(Clock(), 0.0, seed, waves)
            ends = [end for number in range(20) if (end := lived(policy, vm(number, gpu="p100"))) < DAY]
            slices = Counter(int(end // 300) for end in ends)
            same += sum(count * (count - 1) for count in slices.values())
            pairs += len(ends) * 19
        return same / pairs

    assert together(0.0) < 0.02
    assert together(published.WAVES) == pytest.approx(published.WAVES**2, abs=0.03)
    assert together(1.0) == pytest.approx(1.0)


def test_a_preemptible_vm_lives_for_a_day_at_most_and_spot_vms_for_longer() -> None:
    many = [
        Transient(str(number), "us-west1-b", f"w{number}", "v100", 0.0, limited=number < 40) for number in range(80)
    ]
    policy = Published(Clock(), 0.0, 3, 0.0)
    early = {each.identity for each in policy.due(many, DAY - 1).take}
    assert 0 < len(early) < 70
    late = {each.identity for each in policy.due([each for each in many if each.identity not in early], DAY).take}
    assert late == {str(number) for number in range(40)} - early


def test_the_same_seed_gives_the_same_revocations_and_another_others() -> None:
    def ends(seed: int) -> list[float]:
        return [lived(Published(Clock(), 0.0, seed, 0.25), vm(number)) for number in range(30)]

    assert ends(7) == ends(7) != ends(8)


def test_a_vm_that_is_older_than_a_day_goes_on_about_as_in_its_second_half_day() -> None:
    """A little as others with its GPU do: nobody is immortal because none of few went."""
    table = published.lifetimes("k80", "us-central1")
    half, later = table.risk(12 * HOUR, DAY), table.risk(5 * DAY, 5 * DAY + 12 * HOUR)
    assert later == pytest.approx(half, abs=0.1)
    assert later == pytest.approx(table.risk(DAY, DAY + 12 * HOUR)), "at the same rate for ever"
    calm = published.lifetimes("k80", "us-east1")
    assert calm.risk(2 * HOUR, DAY) == 0, "nobody went after the first hour"
    assert 0 < calm.risk(DAY, DAY + 12 * HOUR) < later


def test_what_nobody_published_lives_like_its_nearest() -> None:
    assert published.lifetimes("t4", "us-central1").gpu == "v100"
    assert published.lifetimes("k80", "europe-west4").region == "europe-west1"
    assert published.stand_ins("t4", "us-west1") == "T4 in us-west1 as the V100"
    assert published.stand_ins("k80", "us-west1") == ""
    assert all(published.lifetimes(gpu, region).launched for gpu in ("cpu", "h100", "p4") for region in tables.REGIONS)


def asked(policy: Policy, vms: list[Transient], moments: range) -> list[tuple[float, str]]:
    """Who is taken when, asking at each moment; who is taken is gone."""
    taken: list[tuple[float, str]] = []
    for moment in moments:
        due: Due = policy.due([each for each in vms if each.name not in {name for _, name in taken}], float(moment))
        taken += [(moment, each.name) for each in due.take]
    return taken


def test_every_minute_one_vm_at_random() -> None:
    fleet = [vm(number) for number in range(10)]
    taken = asked(Every(60.0, 0.0, 3, 0.0), [*fleet, vm(10, began=None)], range(400))
    assert [moment for moment, _ in taken] == [60, 120, 180, 240, 300, 360]
    assert len({name for _, name in taken}) == 6
    assert "w10" not in {name for _, name in taken}, "it does not run yet"
    assert taken == asked(Every(60.0, 0.0, 3, 0.0), fleet, range(400))
    assert asked(Every(60.0, 0.0, 3, 300.0), fleet, range(300, 301)) == [], "turns missed while dead are not made up"


def test_lifetimes_of_a_file_are_taken_in_the_order_of_the_inserts() -> None:
    text = "lifetime_hours,gpu\n# the first two\n1,\n,p100\n0.5,k80\n"
    rows: Any = files.read("f.csv", text, tables.ZONES)
    progress: dict[str, Any] = {}
    fleet = [vm(1), vm(0), vm(2, gpu="p100"), vm(3)]
    policy = FromLifetimes(rows, Clock().running_at(60.0, 0.0), progress)
    assert asked(policy, fleet, range(1000)) == [(30, "w1"), (60, "w0")]
    assert progress["rows"] == {"1000": 0, "1001": 2, "1002": 1}
    assert asked(FromLifetimes(rows, Clock(), {"rows": {"999": 0}}), [vm(0)], range(0, 4000, 100)) == [(1800, "w0")]


def test_a_schedule_of_a_file_takes_so_many_at_a_time() -> None:
    rows: Any = files.read("f.csv", "at_hours,count,zone\n1,3,us-west1-b\n0.5,,\n", tables.ZONES)
    fleet = [vm(number) for number in range(5)] + [vm(9, zone="us-east1-c")]
    taken = asked(FromSchedule(rows, Clock(), 0.0, 1, {}), fleet, range(0, 7200, 600))
    assert [moment for moment, _ in taken] == [1800, 3600, 3600, 3600]
    assert len({name for _, name in taken}) == 4
    progress = {"done": [1]}
    assert len(asked(FromSchedule(rows, Clock(), 0.0, 1, progress), fleet, range(0, 7200, 600))) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f.csv has no rows"),
        ("hours\n1\n", "f.csv, line 1: one column must be lifetime_hours or at_hours"),
        (
            "lifetime_hours,zome\n1,a\n",
            "unknown column of a file with lifetime_hours 'zome'. Did you mean zone?",
        ),
        ("lifetime_hours\n\n1\nsoon\n", "line 4: lifetime_hours must be a number of at least 0, not 'soon'"),
        ("lifetime_hours\n-1\n", "line 2: lifetime_hours must be a number of at least 0"),
        ("lifetime_hours,gpu\n1\n", "line 2: the row has 1 values for 2 columns"),
        ("lifetime_hours,gpu\n1,k8\n", "line 2: unknown GPU 'k8'. Did you mean k80?"),
        ("at_hours,zone\n1,us-west1-x\n", "line 2: unknown zone 'us-west1-x'. Did you mean us-west1-c?"),
        ("at_hours,count\n1,0.5\n", "line 2: count must be a whole number"),
        ("at_hours,at_hours\n1,1\n", "line 1: duplicate column"),
        ('at_hours\n"1\n', "line 2: unexpected end of data"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        files.read("f.csv", text, tables.ZONES)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_clock_never_jumps() -> None:
    clock = Clock().running_at(rate_of(60.0), 1000.0).running_at(rate_of(None), 1010.0)
    assert clock.at(1000.0) == 1000.0
    assert clock.at(1010.0) == 1000.0 + 10 * 3600.0
    assert clock.at(1020.0) == clock.at(1010.0) + 10
    assert clock.rate == 1.0
    assert clock.when(clock.at(1015.0)) == pytest.approx(1015.0)
    assert rate_of(1.0) == 60.0


def test_vms_start_as_measured() -> None:
    drawn = [published_startup("us-east1-c", f"w{number}", "k80", True, 1, 1.0) for number in range(300)]
    totals = [each.provisioning + each.staging + each.booting for each in drawn]
    assert statistics.mean(totals) == pytest.approx(80.7, abs=0.8)
    assert statistics.stdev(totals) == pytest.approx(3.4, abs=0.5)
    fast = published_startup("us-east1-c", "w0", "k80", True, 1, 60.0)
    assert fast.staging == pytest.approx(drawn[0].staging / 60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"revocations": "often"}, "Unknown value 'often' (--revocations)"),
        ({"revocations": "every=soon"}, "Invalid duration 'soon' (--revocations every=)"),
        ({"revocatoins": "none"}, "Unknown weather setting 'revocatoins'. Did you mean revocations?"),
        ({"hours_per_minute": 0}, "--hours-per-minute must be greater than 0"),
        ({"hours_per_minute": True}, "--hours-per-minute must be a number, not 'True'"),
        ({"stockout": ["moon-1a"]}, "Unknown zone 'moon-1a'"),
        ({"stockout": "us-west1-b:k8"}, "Unknown GPU 'k8' (--stockout). Did you mean k80?"),
        ({"stockout": "us-west1-b,fro=10m"}, "Unknown stockout setting 'fro=10m'"),
        ({"stockout": ["none", "us-west1-b"]}, "--stockout none cannot be combined"),
        ({"stockout": 3}, "--stockout must be a text or a list of texts, not '3'"),
        ({"quota": "k80"}, "Invalid quota 'k80'"),
        ({"quota": "k80=²"}, "Invalid quota 'k80=²'"),
        ({"quota": "h100=3"}, "Unknown quota 'h100' (--quota)"),
        ({"api_errors": 1.5}, "--api-errors must be a number from 0 to 1, not '1.5'"),
        ({"api_latency": "1s..50ms"}, "the end is before the start"),
        ({"boot": "slow"}, "Invalid duration 'slow' (--boot)"),
        ({"notice": "121s"}, "--notice must be from 0s to 120s, or scaled, not '121s'"),
        ({"notice": "scald"}, "Invalid duration 'scald' (--notice)"),
        ({"gpu_speed": "fast"}, "Unknown value 'fast' (--gpu-speed)"),
        ({"gpu_speed": "k8=2"}, "Unknown GPU 'k8' (--gpu-speed). Did you mean k80?"),
        ({"gpu_speed": "k80=1,p100=0"}, "--gpu-speed must have speeds greater than 0, not 'p100=0'"),
        ({"link": "100"}, "Invalid rate of a link '100'"),
        (
            {"link": "1gbit,far=100mbit/80"},
            "A round trip of 80 is too long (--link). Write a shorter time, such as 30ms",
        ),
        ({"link": "1gbit,far=100mbit/soon"}, "Invalid duration 'soon' (--link)"),
        ({"link": "1gbit,near=100mbit"}, "Unknown link setting 'near=100mbit' (--link)"),
        ({"credentials": "expired,for"}, "--credentials"),
        ({"credentials": "lost"}, "Invalid credentials 'lost' (--credentials)"),
        ({"seed": -1}, "--seed must be a whole number of at least 0, not '-1'"),
        ({"seed": "²"}, "--seed must be a whole number of at least 0, not '²'"),
        ({"waves": "all"}, "--set waves must be a number, not 'all'"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Settings().changed(given)
    assert said in str(refused.value)


def test_settings_come_back_as_they_were_written() -> None:
    given: dict[str, Any] = {
        "revocations": {"name": "f.csv", "csv": "lifetime_hours\n1\n"}, "waves": "0.5", "hours_per_minute": "60",
        "stockout": ["us-west1-b:k80,spot,for=10m", "us-east1-c,delay=0.5s"], "quota": ["k80@us-west1=2", "cpus=96"],
        "api_errors": "0.05", "api_latency": "50ms..400ms", "creation_preemptions": 0.1, "boot": "0.5s", "notice": "0s",
        "credentials": "expired,for=60s", "gpu_speed": "published", "link": "1gbit,far=2.5mbit", "seed": "5",
    }  # fmt: skip
    weather = Settings().changed(given)
    assert Settings().changed(weather.to_store()) == weather
    assert Settings().changed({"gpu_speed": " K80=1, v100=3.5"}).to_json()["gpu_speed"] == "k80=1,v100=3.5"
    late = Settings().changed({"link": "1gbit, far=100mbit/30ms"})
    assert (late.to_json()["link"], late.link and late.link.round_trip) == ("1gbit,far=100mbit/30ms", 0.03)
    assert Settings().changed({"link": "1gbit,far=10gbit/0s"}).to_json()["link"] == "1gbit,far=10gbit/0s"
    assert weather.to_json()["stockout"][1] == "us-east1-c,delay=500ms"
    assert Settings().changed(dict.fromkeys(given)) == Settings()


def test_a_notice_is_as_long_as_the_weather_says(tmp_path: Path) -> None:
    weather = Weather(tmp_path, boot_seconds=1.0, notice_seconds=30.0, own_network=False)
    weather.change({"hours_per_minute": 6})
    assert (weather.notice, weather.to_json([])["notice"]) == (30.0, "30s")
    for said, seconds in (("scaled", 30 / 360), ("0s", 0.0), ("90s", 90.0)):
        weather.change({"notice": said})
        assert weather.notice == pytest.approx(seconds)
        again = Weather(tmp_path, boot_seconds=1.0, notice_seconds=30.0, own_network=False)
        assert (again.notice, again.to_json([])["notice"]) == (weather.notice, said)
    weather.change({"notice": None})
    assert weather.notice == 30.0
