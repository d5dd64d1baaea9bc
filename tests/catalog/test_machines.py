"""Machine types, their limits per GPU, and the sentences that refuse what Compute Engine would refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import (
    ACCELERATORS,
    MACHINE_TYPES,
    check_machine,
    egress,
    limits,
    machine_type,
    machines_with,
    parameter_server_machine,
    server_machine,
    server_price,
    shapes,
    worker_entry,
    worker_machines,
    zones_with,
)
from transient_magics.errors import DeclarationError

ATTACHED = [name for name, each in ACCELERATORS.items() if each.compute_engine_name and not each.bundled]
BUNDLED = [name for name, each in ACCELERATORS.items() if each.bundled]


@pytest.mark.parametrize("gpu", ACCELERATORS)
def test_every_gpu_has_a_machine_within_limits_in_all_its_zones(gpu: str) -> None:
    entry = ACCELERATORS[gpu]
    for zone in zones_with(gpu):
        machine = check_machine(entry.machine_type, gpu, 1, zone)
        assert (machine.vcpus, machine.memory_gb) == (entry.vcpus, entry.memory_gb)


@pytest.mark.parametrize("gpu", ATTACHED)
def test_more_gpus_allow_no_smaller_machine(gpu: str) -> None:
    allowed = limits(gpu)
    assert list(allowed) == sorted(allowed)
    for smaller, larger in zip(list(allowed.values()), list(allowed.values())[1:], strict=False):
        assert smaller.vcpus <= larger.vcpus
        assert smaller.memory_gb <= larger.memory_gb


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("k80", {1: (8, 52), 2: (16, 104), 4: (32, 208), 8: (64, 208)}),
        ("p100", {1: (16, 104), 2: (32, 208), 4: (96, 624)}),
        ("v100", {1: (12, 78), 2: (24, 156), 4: (48, 312), 8: (96, 624)}),
        ("t4", {1: (48, 312), 2: (48, 312), 4: (96, 624)}),
        ("p4", {1: (24, 156), 2: (48, 312), 4: (96, 624)}),
        ("l4", {}),
        ("cpu", {}),
    ],
)
def test_the_limits_are_compute_engines(gpu: str, expected: dict[int, tuple[int, float]]) -> None:
    assert {count: (most.vcpus, most.memory_gb) for count, most in limits(gpu).items()} == expected


def test_some_zones_have_larger_or_smaller_hosts() -> None:
    assert limits("k80", "us-east1-d")[8].memory_gb == 416
    assert limits("k80", "us-east1-c")[8].memory_gb == 208
    assert limits("p100", "europe-west1-b")[4].vcpus == 64
    assert limits("p100", "us-west1-b")[4].vcpus == 96


@pytest.mark.parametrize("gpu", BUNDLED)
def test_a_bundled_gpu_comes_with_each_of_its_machines(gpu: str) -> None:
    for machine in machines_with(gpu):
        assert check_machine(machine.name, gpu, machine.gpu_count) is machine


@given(st.sampled_from(ATTACHED), st.sampled_from(sorted(MACHINE_TYPES)), st.integers(0, 9), st.booleans())
def test_a_machine_is_taken_exactly_when_it_is_within_limits(gpu: str, name: str, count: int, zoned: bool) -> None:
    zone = zones_with(gpu)[-1] if zoned else ""
    machine, most = MACHINE_TYPES[name], limits(gpu, zone).get(count)
    if most and not machine.gpu and machine.vcpus <= most.vcpus and machine.memory_gb <= most.memory_gb:
        assert check_machine(name, gpu, count, zone) is machine
        return
    with pytest.raises(DeclarationError) as raised:
        check_machine(name, gpu, count, zone)
    assert raised.value.fix


@given(st.integers(-1, 120), st.integers(0, 600).map(lambda steps: steps * 256) | st.integers(0, 100_000))
def test_custom_machines_have_whole_shapes(vcpus: int, megabytes: int) -> None:
    whole = 1 <= vcpus <= 96 and (vcpus == 1 or vcpus % 2 == 0) and megabytes % 256 == 0
    if whole and 0.9 * vcpus <= megabytes / 1024 <= 6.5 * vcpus:
        machine = machine_type(f"n1-custom-{vcpus}-{megabytes}")
        assert (machine.vcpus, machine.memory_gb) == (vcpus, megabytes / 1024)
        return
    with pytest.raises(DeclarationError) as raised:
        machine_type(f"n1-custom-{vcpus}-{megabytes}")
    assert raised.value.fix


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 16, 32])
def test_parameter_servers_have_a_machine(cores: int) -> None:
    assert check_machine(parameter_server_machine(cores)).vcpus == cores


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("n1-standard-16", "v100"), "16 vCPUs and 60 GB, but a VM with 1 V100 can have at most 12 and 78 GB"),
        (("n1-standard-16", "v100"), "Use n1-standard-8, or 2 V100"),
        (("n1-highmem-16", "k80", 8, "us-central1-b"), "K80s are not available in us-central1-b"),
        (("n1-standard-64", "p100", 4, "us-east1-c"), "64 and 208 GB in us-east1-c"),
        (("n1-standard-8", "p100", 3), "A VM can have 1, 2 or 4 P100, not 3. Use 4"),
        (("n1-standard-8", "l4"), "cannot be attached to n1-standard-8. Use g2-standard-4"),
        (("g2-standard-24", "l4"), "g2-standard-24 always has 2 L4, not 1. Use g2-standard-4"),
        (("a2-highgpu-1g", "a100", 3), "not 3. A VM has 1, 2, 4, 8 or 16 A100"),
        (("a2-highgpu-1g", "t4"), "the T4 is attached to N1 machines. Use n1-standard-4"),
        (("g2-standard-4", "cpu"), "has 1 L4, but no GPU is declared"),
        (("n1-standart-4", "t4"), "Did you mean n1-standard-4?"),
        (("n1-custom-3-4096",), "1 vCPU or an even number"),
        (("n1-custom-2-65536",), "0.9 to 6.5 GB per vCPU"),
        (("n1-standard-4", "cpu", 1, "us-east5-a"), "N1 machines are not available in us-east5-a"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_with_a_fix(asked: tuple[str, str, int, str], said: str) -> None:
    with pytest.raises(DeclarationError) as raised:
        check_machine(*asked)
    assert said in str(raised.value)
    assert raised.value.fix
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "vcpus", "gigabytes", "hourly"),
    [  # what SkyPilot's catalog v9 has for us-central1
        ("n2-standard-4", 4, 16, 0.19424), ("n2-highmem-32", 32, 256, 2.09622), ("n2-standard-32", 32, 128, 1.55389),
        ("e2-standard-4", 4, 16, 0.134), ("n1-standard-4", 4, 15, 0.19),
        # Custom ones cost 5% more than their vCPUs and memory in predefined ones, by Google's documentation.
        ("n2-custom-6-24576", 6, 24, 1.05 * 1.5 * 0.19424), ("custom-4-15360", 4, 15, 1.05 * 0.19),
    ],
)  # fmt: skip
def test_a_parameter_server_may_have_a_machine_of_another_line(
    name: str, vcpus: int, gigabytes: float, hourly: float
) -> None:
    machine = server_machine(name)
    assert (machine.vcpus, machine.memory_gb) == (vcpus, gigabytes)
    price = server_price(name, "us-central1-a")
    assert price.on_demand == pytest.approx(hourly, rel=1e-4)
    assert "us-central1" in price.source


@pytest.mark.parametrize(
    ("family", "vcpus", "gigabits"),
    [("n1", 1, 2), ("n1", 4, 10), ("n1", 8, 16), ("n2", 32, 32), ("e2", 4, 8), ("c9", 4, 8)],
)
def test_a_machines_network_carries_so_much(family: str, vcpus: int, gigabits: float) -> None:
    assert egress(family, vcpus) * 8 / 1e9 == gigabits


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("c3-standard-4", "n2-highcpu, e2-standard"), ("g2-standard-4", "n1-standard"),
        ("n2-standard-5", "n2-standard"),
        ("n2-custom-5-16384", "an even number of vCPUs"), ("n2-custom-4-65536", "0.5 to 8 GB"),
        ("n1-custom-4-1", "in steps of 256 MB"),
    ],
)  # fmt: skip
def test_a_machine_that_no_parameter_server_may_have_is_refused_with_those_that_it_may(name: str, said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        server_machine(name)


@pytest.mark.parametrize("gpu", ACCELERATORS)
def test_every_shape_of_a_gpu_is_one_that_compute_engine_takes_and_the_catalogs_is_among_them(gpu: str) -> None:
    found = shapes(gpu)
    assert ACCELERATORS[gpu].machine_type in found
    for name in found:
        entry = worker_entry(gpu, name, zones_with(gpu)[0])
        assert (entry.name, entry.machine_type) == (gpu, name)
    more = [name for name in MACHINE_TYPES if name.startswith("n1-") and name not in found]
    for name in more if gpu in ATTACHED else ():
        with pytest.raises(DeclarationError, match=rf"a VM with 1 {gpu.upper()} can have"):
            worker_entry(gpu, name)


def test_the_machines_of_workers_are_named_for_all_or_by_gpu() -> None:
    assert worker_machines("n1-standard-16", ["t4", "p100"]) == {"t4": "n1-standard-16", "p100": "n1-standard-16"}
    assert worker_machines(" V100=n1-standard-4 , t4=N1-standard-16", ["t4", "v100"]) == {
        "v100": "n1-standard-4", "t4": "n1-standard-16",
    }  # fmt: skip
    assert worker_machines("n1-standard-4", ["t4", "k80"]) == {}, "they have it anyway"
    assert worker_machines("", ["t4"]) == {}
    assert worker_machines("n1-custom-12-79872", ["v100"]) == {"v100": "n1-custom-12-79872"}
    assert worker_machines("e2-standard-8", ["cpu"]) == {"cpu": "e2-standard-8"}


@pytest.mark.parametrize(
    ("text", "kinds", "said"),
    [
        ("n1-standard-16", ["k80"],
         r"a VM with 1 K80 can have at most 8 and 52 GB \(--machine-type\)\. Possible machines: n1-.*n1-highmem-8\.$"),
        ("n1-standard-16", ["t4", "v100"], "a VM with 1 V100 can have at most 12 and 78 GB"),
        ("g2-standard-24", ["l4"], r"has 2 L4, not 1 \(--machine-type\)\. .*g2-standard-32"),
        ("g2-standard-8", ["t4"], "has built-in L4s"),
        ("e2-standard-8", ["t4"], r"Unknown machine type 'e2-standard-8' \(--machine-type\)"),
        ("c3-standard-8", ["cpu"], r"A worker without a GPU cannot have .* \(--machine-type\)"),
        ("n1-standrd-8", ["t4"], r"Did you mean n1-standard-8\?"),
        ("l4=g2-standard-8", ["t4"], r"No declared workers have the GPU 'l4' \(--machine-type\)\. Declared are: t4\."),
        ("n1-standard-8,t4=n1-standard-8", ["t4"], "T4 has two machine types"),
    ],
)  # fmt: skip
def test_a_machine_that_workers_may_not_have_is_refused_with_those_they_may(
    text: str, kinds: list[str], said: str
) -> None:
    with pytest.raises(DeclarationError, match=said):
        worker_machines(text, kinds)
