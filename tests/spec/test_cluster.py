"""What was declared: what its VMs cost where, when its money is spent, and declarations that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from transient_magics.errors import DeclarationError
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup, price_kind

HOME, BESIDE, FAR = "us-west1-b", "us-west1-a", "us-east1-c"
SPEC = ClusterSpec(
    name="one",
    groups=(WorkerGroup("k80", 2), WorkerGroup("t4", 1, FAR)),
    zones=(HOME,),
    prices={
        "k80": PriceLine("n1-standard-4", 0.25, 0.75, "a table", 0.0625),
        f"k80@{BESIDE}": PriceLine("n1-standard-4", 0.5, 1.0, "a table", 0.125),
        "t4": PriceLine("n1-standard-8", 4.0, 8.0, "a table"),
        f"t4@{FAR}": PriceLine("n1-standard-8", 1.0, 2.0, "a table", 0.25),
        "parameter-server": PriceLine("custom-4-16384", 9.0, 0.125, "a table", 0.03125),
        "controller": PriceLine("e2-small", 9.0, 0.0625, "a table", 0.015625),
    },
    candidates={"k80": (BESIDE, HOME)},
    declared_at=1000.0,
)


def test_every_vm_has_the_price_of_its_kind_in_its_zone() -> None:
    kinds = [("worker", "t4"), ("ps", ""), ("controller", ""), ("ps", "t4")]
    assert [price_kind(*each) for each in kinds] == ["t4", "parameter-server", "controller", "t4"]
    assert [SPEC.price("k80", zone).hourly for zone in (HOME, BESIDE, FAR)] == [0.25, 0.5, 0.25]
    assert SPEC.find_price("t4", FAR) == SPEC.prices[f"t4@{FAR}"]
    assert SPEC.find_price("v100", FAR) is None
    with pytest.raises(KeyError, match="v100"):
        SPEC.price("v100", FAR)
    assert SPEC.zones_for("k80") == (BESIDE, HOME)
    assert SPEC.zones_for("t4") == (HOME,)


def test_a_cluster_costs_what_its_groups_do_where_they_are_asked_for_first_and_its_servers_on_demand() -> None:
    assert (SPEC.home_zone, SPEC.worker_count, SPEC.spec) == (BESIDE, 3, f"k80x2+t4@{FAR}")
    assert SPEC.hourly == 2 * 0.5 + 1.0 + 0.125
    assert SPEC.on_demand_hourly == 2 * 1.0 + 2.0 + 0.125
    assert SPEC.extras_hourly == 2 * 0.125 + 0.25 + 0.03125
    own = replace(SPEC, controller="cluster", parameter_servers=2)
    assert (own.controller_vm, SPEC.controller_vm) == (True, False)
    assert own.hourly == 2 * 0.5 + 1.0 + 2 * 0.125 + 0.0625
    assert own.extras_hourly == 2 * 0.125 + 0.25 + 2 * 0.03125 + 0.015625
    assert SPEC.all_zones == (FAR, HOME, BESIDE)
    assert (SPEC.most_hourly, replace(SPEC, fallback_seconds=0.0).most_hourly) == (2.125, 4.125)


def test_the_money_ends_a_cluster_as_if_all_were_there_that_a_resize_may_bring() -> None:
    assert SPEC.ends_at == 1000 + 24 * 3600
    assert replace(SPEC, max_cost=2.125).ends_at == 1000 + 3600
    assert replace(SPEC, max_cost=2.125, fallback_seconds=0.0).ends_at == pytest.approx(1000 + 3600 * 2.125 / 4.125)
    assert replace(SPEC, max_cost=1e9).ends_at == SPEC.ends_at
    assert SPEC.with_end() == replace(SPEC, end_hourly=2.125), "none is reserved"
    assert replace(SPEC, reserved_workers=3).with_end().end_hourly == 2.125
    assert replace(SPEC, reserved_workers=8).with_end().end_hourly == 2.125 + 5 * 1.0, "of the dearest"
    late = replace(SPEC, reserved_workers=8, fallback_seconds=600.0).with_end()
    assert late.end_hourly == 4.125 + 5 * 2.0, "on demand where it may come to that"
    assert replace(SPEC, end_hourly=4.25, max_cost=2.125).ends_at == 1000 + 1800, "and there it stays"
    far = replace(SPEC, candidates={"k80": (HOME, BESIDE)}, groups=SPEC.groups[:1])
    assert (far.hourly, far.most_hourly) == (2 * 0.25 + 0.125, 2 * 0.5 + 0.125), "in the dearest zone where it may be"
    servers = {"parameter-server@us-west1-a": PriceLine("custom-4-16384", 9.0, 0.25, "a table")}
    assert replace(far, prices={**far.prices, **servers}).most_hourly == 2 * 0.5 + 0.25
    assert replace(far, prices={**far.prices, **servers}, parameter_server_zone=HOME).most_hourly == 2 * 0.5 + 0.125
    free = {kind: replace(line, hourly=0.0, on_demand_hourly=0.0) for kind, line in SPEC.prices.items()}
    assert replace(SPEC, prices=free, max_cost=1.0).ends_at == SPEC.ends_at


def test_a_declaration_reads_back_as_itself_and_one_of_a_newer_version_too() -> None:
    full = replace(
        SPEC, max_cost=1.0, transfer_prices={FAR: 0.01}, ssh_from=("10.0.0.0/8",), bucket="b/p", id="abcd0123"
    )
    plain = json.loads(json.dumps(full.to_dict()))
    assert ClusterSpec.from_dict(plain) == full
    assert ClusterSpec.from_dict({**plain, "something_new": [1]}) == full
    assert set(plain) == set(ClusterSpec.__dataclass_fields__)


UNREAD = "The cluster's declaration is invalid: "


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "../.."}, "'../..' is not a valid name"),
        ({"zones": ()}, "zones: must have at least 1 entry, not 0"),
        (
            {"zones": (), "groups": ({"accelerator": "t4", "count": 1, "zone": FAR},)},
            "zones: must have at least 1 entry, not 0",
        ),
        ({"prices": {}}, "it has no zone or price for 'k80'"),
        (
            {"prices": {"k80": SPEC.to_dict()["prices"]["k80"], "t4": SPEC.to_dict()["prices"]["t4"]}},
            "it has no zone or price for 'parameter-server'",
        ),
        ({"max_seconds": "x"}, "max_seconds: must be a number, not 'x'"),
    ],
)
def test_what_is_no_whole_declaration_is_refused_with_what_it_lacks(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        ClusterSpec.from_dict({**SPEC.to_dict(), **changes})
    assert refused.value.what == UNREAD + said
