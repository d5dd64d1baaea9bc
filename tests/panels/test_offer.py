"""What the declare panel offers: the line that choices stand for, its price, and what is wrong with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import ACCELERATORS, continent, zones_with
from transient_magics.cli import arguments
from transient_magics.client import Declaration, preview
from transient_magics.panels.offer import FIRST, MAGIC, declaration, menu, offer, offer_text
from transient_magics.panels.static.panel import offer_html
from transient_magics.spec import PURPOSES

GROUPS = st.sampled_from(sorted(ACCELERATORS)).flatmap(
    lambda gpu: st.fixed_dictionaries(
        {"gpu": st.just(gpu), "count": st.integers(1, 99).map(str), "zone": st.sampled_from(["", *zones_with(gpu)])}
    )
)
CHOICES = st.fixed_dictionaries(
    {"groups": st.lists(GROUPS, min_size=1, max_size=3)},
    optional={
        "ps": st.integers(1, 16).map(str),
        "model": st.sampled_from(["spot", "preemptible", "standard"]),
        "purpose": st.sampled_from(PURPOSES),
        "hours": st.sampled_from(["", "3h", "90m"]),
        "cost": st.sampled_from(["", "2.50"]),
        "disk": st.sampled_from(["", "200GB", "1TB:ssd"]),
        "ps_zone": st.sampled_from(["", "us-central1-b"]),
    },
)


@given(CHOICES)
def test_the_line_typed_declares_what_was_offered(choices):
    shown = offer(choices)
    if choices.get("purpose") == "jobs" and (choices.get("ps", "1") != "1" or choices.get("ps_zone")):
        assert "A cluster for jobs cannot train" in shown["error"]
        assert "Leave out --ps" in shown["error"]
        return
    if choices.get("model") == "standard" and any(ACCELERATORS[each["gpu"]].spot_only for each in choices["groups"]):
        assert "as Spot only" in shown["error"]
        return
    server, zones = choices.get("ps_zone"), {each["zone"] for each in choices["groups"]} - {""}
    if server and any(continent(zone) != continent(server) for zone in zones):
        assert "is on another continent than the workers" in shown["error"]
        return
    assert not shown["error"]
    words = arguments.split(shown["line"].removeprefix(MAGIC))
    typed = Declaration(**arguments.parse("cluster", words).values)
    assert typed == declaration(choices)
    hourly, on_demand = (said for _, said in shown["facts"][:2])
    assert f"\n{hourly} per hour, {on_demand} on demand" in str(preview(typed)), "as a dry run says"


@pytest.mark.parametrize(
    ("groups", "more", "facts"),
    [
        # By Google's lists of 2026: a T4 0.1467 + 0.1086 + 0.0093, the parameter server 0.2157, and so on.
        ([("t4", 2, "us-central1-a")], {}, ["$0.745", "$1.32", "44%"]),
        ([("v100", 2, "us-central1-a")], {"model": "standard"}, ["$5.96", "$5.96", "-"]),
        ([("v100", 1, "us-central1-a"), ("v100", 2, "asia-east1-c")], {"ps": "2"}, ["$3.04", "$9.23", "67%"]),
    ],
)
def test_an_offer_costs_what_its_vms_cost_by_the_price_lists(groups, more, facts):
    chosen = [{"gpu": gpu, "count": str(count), "zone": zone} for gpu, count, zone in groups]
    assert [said for _, said in offer({"groups": chosen, **more})["facts"]] == facts


def test_the_published_cluster_is_offered_with_its_price_and_risk():
    shown = offer({"groups": [{"gpu": "k80", "count": "4"}]})
    assert shown["line"] == "%transient_cluster k80x4"
    assert dict(shown["facts"]) == {
        "per hour": "$1.17",
        "on demand": "$3.03",
        "saved against Google's on-demand price": "62%",
    }
    assert any("4% within 1 h, 17% within 8 h, 23% within 24 h" in note for note in shown["notes"])
    assert "Emulated, nothing is billed." in shown["notes"][-1]
    assert not shown["billed"]
    assert "%transient_cluster k80x4" in offer_text(shown)
    assert "K80 · n1-standard-4" in offer_html(shown)


def test_the_first_offer_is_on_the_menu_and_can_be_rented_at_google():
    (group,) = FIRST["groups"]
    assert group["gpu"] in {gpu["name"] for gpu in menu()["gpus"]}
    shown = offer({**FIRST, "project": "my-project"})
    assert shown["line"] == "%transient_cluster l4x4 --project my-project"
    assert not shown["error"]


def test_workers_on_demand_have_no_risk_and_unmeasured_gpus_say_what_stands_in():
    on_demand = offer({"groups": [{"gpu": "t4", "count": "2"}], "model": "standard"})
    assert not any("Revoked of" in note for note in on_demand["notes"])
    spot = offer({"groups": [{"gpu": "t4", "count": "2", "zone": "us-west1-b"}], "project": "my-project"})
    assert any(note.startswith("No lifetimes of the T4 were published. Of 396 ") for note in spot["notes"])
    assert any(note.startswith("Spot prices are of ") for note in spot["notes"])
    assert spot["billed"]


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"groups": []}, "at least one group"),
        ({"groups": [{"gpu": "k80", "count": "0"}]}, "a count must be from 1 to 1000, not 0"),
        ({"groups": [{"gpu": "k80", "count": "2"}], "project": "my-project"}, "use t4 or l4 instead"),
        ({"groups": [{"gpu": "k80", "count": "2"}], "cost": "much"}, "--max-cost must be a number"),
        ({"groups": [{"gpu": "k80", "count": "2"}], "hours": "-"}, "--max-hours"),
    ],
)
def test_what_cannot_be_declared_is_said_in_the_magics_words(choices, sentence):
    shown = offer(choices)
    assert sentence in shown["error"]
    assert shown["line"].startswith(MAGIC)


def test_values_with_blanks_and_quotes_stay_one_word():
    for project in ("my project", "it's", 'a"b'):
        line = offer({"groups": [{"gpu": "t4", "count": "1"}], "project": project})["line"]
        assert arguments.split(line)[-1] == project


def test_a_cluster_for_jobs_alone_is_offered_with_its_smaller_server():
    shown = offer({"groups": [{"gpu": "cpu", "count": "8"}], "purpose": "jobs"})
    assert shown["line"] == "%transient_cluster cpux8 --for jobs"
    assert (
        offer({"groups": [{"gpu": "cpu", "count": "8"}], "purpose": "training"})["line"] == "%transient_cluster cpux8"
    )


def test_machines_disks_and_the_servers_zone_are_in_the_line_and_in_the_price():
    t4 = {"groups": [{"gpu": "t4", "count": "2", "zone": "us-central1-a"}]}
    plain, hourly = offer(t4), lambda shown: float(dict(shown["facts"])["per hour"].lstrip("$"))
    larger = offer({**t4, "machine": "n1-standard-16", "disk": "200GB:ssd", "ps_zone": "us-west1-b"})
    assert larger["line"].endswith("--machine-type n1-standard-16 --disk 200GB:ssd --ps-zone us-west1-b")
    assert [row[1:3] for row in larger["rows"]] == [
        ["n1-custom-4-16384", "us-west1-b"], ["T4 · n1-standard-16", "us-central1-a"],
    ]  # fmt: skip
    assert hourly(larger) > hourly(offer({**t4, "disk": "200GB:ssd"})) > hourly(plain)
    assert "us-central1-a" in larger["notes"][-2], "traffic between the zones is paid"
    assert "--disk" in offer({**t4, "disk": "2GB"})["error"]
    assert "--machine-type" in offer({**t4, "machine": "n9-huge"})["error"]
    assert "us-west1-b" in menu()["zones"]


def test_the_menu_has_every_gpu_that_google_sells_with_its_zones():
    assert [each["name"] for each in menu()["purposes"]] == list(PURPOSES)
    assert {gpu["name"] for gpu in menu()["gpus"]} == set(ACCELERATORS) - {"k80"}
    assert all(gpu["zones"] for gpu in menu()["gpus"])
