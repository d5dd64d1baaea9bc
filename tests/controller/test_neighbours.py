"""Two users in one project: nobody's VMs, rules, builds and images are touched by another's cluster.

Both are homes of this user's on one emulator, with everything real: its API, Google's client, detached controllers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import transient_magics as tm
from tests.homes import own_home
from transient_magics import emulator, places
from transient_magics.client import commands, declare, specify
from transient_magics.cloud import ComputeEngine, Vm, VmRequest, rules
from transient_magics.controller.programs.bake import BUILD_LABEL
from transient_magics.controller.programs.preflight import examine
from transient_magics.controller.programs.sweep import Here, _delete, _why, _why_rule, clusters_here
from transient_magics.controller.vms.access import to_project
from transient_magics.controller.vms.machines import (
    ID_LABEL,
    LABEL,
    MACHINE_LABEL,
    OWNER_LABEL,
    firewall_rules,
    labels,
    login_name,
    owner_labels,
    rule_description,
)
from transient_magics.errors import AlreadyExistsError, CloudError, ClusterError, DeclarationError
from transient_magics.spec import EMULATED_PROJECT, IAP_RANGE

pytestmark = pytest.mark.slow

ZONE = "us-central1-a"
STRANGER = VmRequest("x", ZONE, "n1-standard-4", "", provisioning_model="standard", labels={"team": "production"})
PATIENCE = 200.0


@pytest.fixture(scope="module")
def alice() -> Iterator[Path]:
    """Her home, in which this process lives."""
    with own_home() as folder:
        yield folder


@pytest.fixture
def bob(alice: Path, tmp_path: Path) -> Callable[[str], str]:
    """Runs a program of his in a home of his own, and gives what it prints."""
    own = {"TRANSIENT_MAGICS_HOME": str(tmp_path), "TRANSIENT_MAGICS_EMULATOR": str(places.emulator())}

    def run(code: str) -> str:
        command = [
            sys.executable,
            "-c",
            f"import transient_magics as tm\nfrom transient_magics.errors import *\n{code}",
        ]
        environment = {**os.environ, **own}
        ended = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False, encoding="utf-8"
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
async def engine(alice: Path) -> AsyncIterator[ComputeEngine]:
    async with ComputeEngine(EMULATED_PROJECT, emulator.ensure(linger=PATIENCE)) as opened:
        yield opened


async def test_a_second_cluster_of_a_name_is_refused_and_touches_nothing(
    engine: ComputeEngine, bob: Callable[[str], str]
) -> None:
    hers = replace(specify(tm.Declaration("cpu", name="shared")), id="1a2b3c4d")
    marks = {LABEL: "shared", **labels(hers), **await owner_labels(engine)}
    await engine.insert(VmRequest(**{**vars(STRANGER), "name": "shared-worker-0", "labels": marks}))
    before = await engine.list(labels(hers))
    said = await asyncio.to_thread(
        bob,
        "his = tm.declare(tm.Declaration('cpu', name='shared'))\n"
        "try: his.wait(120)\nexcept ClusterError as error: print(error)\n"
        "his.wait(120, until='deleted')\n",
    )
    assert "There is another cluster shared" in said
    assert "--name" in said
    (vm,) = await engine.list(labels(hers))
    assert [vm] == before

    # Not even one that had passed that question would find or delete what is hers, whatever it has heard of.
    await engine.delete(vm.zone, vm.name, {ID_LABEL: "0badcafe"})
    assert [found.id for found in await engine.list(labels(hers))] == [vm.id]
    await engine.delete(vm.zone, vm.name, vm.labels)


async def test_a_name_whose_vms_are_somebody_elses_is_refused(engine: ComputeEngine) -> None:
    vm = await engine.insert(VmRequest(**{**vars(STRANGER), "name": "web-worker-7"}))
    with pytest.raises(ClusterError, match="The name web is taken by a VM that is not ours, web-worker-7"):
        declare(tm.Declaration("cpu", name="web")).wait(PATIENCE)
    assert await engine.get(ZONE, "web-worker-7") == vm
    findings, _ = await examine(specify(tm.Declaration("cpu", name="web")))
    assert [each.subject for each in findings if not each.good] == ["name web"]
    await engine.delete(ZONE, vm.name, STRANGER.labels)
    tm.cluster("web").wait(PATIENCE, until="deleted")


async def test_a_sweep_shows_what_was_made_from_this_home_and_deletes_only_that(
    engine: ComputeEngine, bob: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    mine = await owner_labels(engine)
    his, elsewhere = {**mine, OWNER_LABEL: "0" * 16, MACHINE_LABEL: "1" * 16}, {**mine, MACHINE_LABEL: "2" * 16}
    marks = {
        "left-worker-0": {**mine, LABEL: "left", ID_LABEL: "1a2b3c4d"},
        "image-x-1a2b3c4d": {**mine, BUILD_LABEL: "x", ID_LABEL: "1a2b3c4d"},
        "thesis-worker-0": {**his, LABEL: "thesis", ID_LABEL: "5e6f7a8b"},
        "image-y-5e6f7a8b": {**his, BUILD_LABEL: "y", ID_LABEL: "5e6f7a8b"},
        "laptop-worker-0": {**elsewhere, LABEL: "laptop", ID_LABEL: "9c0d1e2f"},
        "early-worker-0": {OWNER_LABEL: login_name(), LABEL: "early"},
    }
    wanted = [VmRequest(**{**vars(STRANGER), "name": name, "labels": labels}) for name, labels in marks.items()]
    await asyncio.gather(*map(engine.insert, wanted))
    hers = ["image-x-1a2b3c4d", "left-worker-0"]
    assert bob("print(tm.sweep(yes=True, all_machines=True).names)") == "[]\n", "not even of the same login, young"
    shown = await asyncio.to_thread(tm.sweep)
    assert shown.names == hers
    assert {each.why for each in shown.orphans} == {
        "no process builds the image x any more", "its cluster left has no folder on this machine",
    }  # fmt: skip
    assert "Nothing was deleted. Add --yes" in str(shown)
    assert len(await engine.list({})) == len(marks)
    await asyncio.to_thread(InteractiveShell().run_cell, "%load_ext transient_magics\n%transient_cluster sweep --yes")
    assert "They are deleted." in capsys.readouterr().out
    left = await engine.list({})
    assert sorted(vm.name for vm in left) == sorted(marks.keys() - set(hers))
    for vm in left:
        await engine.delete(vm.zone, vm.name, vm.labels)


async def test_a_sweep_finds_the_rules_of_a_cluster_whose_vms_are_all_gone(engine: ComputeEngine, named: Any) -> None:
    mine = await owner_labels(engine)
    left = replace(specify(tm.Declaration("cpu", name="forgotten")), id="1a2b3c4d")
    living = replace(specify(tm.Declaration("cpu", name="living")), id="5e6f7a8b")
    for spec in (left, living):
        await engine.firewall.ensure(firewall_rules(spec, mine))
    folder = places.private(places.cluster("living"))
    (folder / "spec.json").write_text(json.dumps(living.to_dict()), encoding="utf-8")
    marks = {LABEL: "forgotten", **labels(left), **mine}
    vm = await engine.insert(VmRequest(**{**vars(STRANGER), "name": "forgotten-worker-0", "labels": marks}))
    for key, value in ((OWNER_LABEL, "0" * 16), (MACHINE_LABEL, "1" * 16)):
        (rule, *_) = firewall_rules(replace(left, id=value[:8]), {**mine, key: value})
        await asyncio.to_thread(named.insert, rule)
    await asyncio.to_thread(named.insert, {"name": "transient-magics-elses", "allowed": [{"I_p_protocol": "all"}]})
    assert [*(await asyncio.to_thread(tm.sweep, all_machines=True)).rules] == [], "they go with their VMs"
    await engine.delete(vm.zone, vm.name, vm.labels)
    rules = [rule["name"] for rule in firewall_rules(left)]
    shown = await asyncio.to_thread(tm.sweep, all_machines=True)
    assert [(each.name, each.why) for each in shown.rules] == [
        (name, "its cluster forgotten has no folder on this machine") for name in sorted(rules)
    ]
    assert "FIREWALL RULE" in str(shown)
    before = await asyncio.to_thread(named.names)
    assert (await asyncio.to_thread(tm.sweep, yes=True)).rules == shown.rules
    assert before - await asyncio.to_thread(named.names) == set(rules)
    shutil.rmtree(folder)


def test_of_another_machine_only_rules_that_are_old_are_swept() -> None:
    spec = replace(specify(tm.Declaration("cpu", name="c")), id="1a2b3c4d")
    (rule, *_) = firewall_rules(spec, {OWNER_LABEL: "me", MACHINE_LABEL: "there"})
    old, young = ({**rule, "created": datetime.now(UTC) - timedelta(hours=hours)} for hours in (25, 23))
    assert "has no folder on this one of your machines" in _why_rule(old, "here", Here())
    assert not _why_rule(young, "here", Here()), "a cluster may wait for its first VM"
    assert not _why_rule(young, "there", Here({"1a2b3c4d": False})), "a cluster here waits for it"
    assert not _why_rule(young, "there", Here(broken={"c": True})), "its controller is at work"
    assert _why_rule(young, "there", Here({"1a2b3c4d": True})) == "its cluster c is over"


def test_of_other_machines_only_what_is_old_and_without_a_controller_is_swept() -> None:
    def vm(hours: float, **labels: str) -> Vm:
        made = datetime.now(UTC) - timedelta(hours=hours)
        named = {LABEL: "c", ID_LABEL: "1a2b3c4d", MACHINE_LABEL: "there"} | labels
        return Vm("c-worker-0", ZONE, "1", "RUNNING", "", "", named, made, True, made)

    old, young = vm(2), vm(0.5)
    assert "has no folder on this one of your machines" in _why(old, "here", Here(), ())
    assert not _why(young, "here", Here(), ())
    assert not _why(old, "here", Here(), {"1a2b3c4d"}), "its controller runs on a VM"
    assert not _why(old, "here", Here({"1a2b3c4d": False}), ()), "it is looked after here"
    assert "only followed from here" in _why(old, "here", Here(followed={"1a2b3c4d"}), ())
    assert not _why(old, "here", Here(followed={"1a2b3c4d"}), {"1a2b3c4d"}), "its controller runs on a VM"
    assert _why(old, "here", Here({"1a2b3c4d": True}), ()) == "its cluster c is over"
    assert _why(young, "there", Here({"5e6f7a8b": False}), ()), "another cluster of that name is no reason to keep it"


def test_a_cluster_that_is_only_followed_from_here_is_not_looked_after_here(home_of_nobody: Path) -> None:
    """Else nobody could end it from here once its controller's VM and the machine that declared it are gone."""
    folder = places.cluster("followed")
    folder.mkdir(parents=True)
    spec = replace(specify(tm.Declaration("cpu", name="followed")), id="1a2b3c4d")
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    assert clusters_here().over == {"1a2b3c4d": False}
    (folder / "attached").touch()
    assert clusters_here() == Here(followed={"1a2b3c4d"})


@pytest.fixture
def home_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One where nothing was declared."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    return tmp_path


async def test_a_sweep_leaves_the_rules_of_what_it_spares_and_one_failure_stops_no_other_deletion() -> None:
    made = datetime.now(UTC)
    vms = [
        Vm(f"{name}-worker-0", ZONE, "1", "RUNNING", "", "", {LABEL: name, ID_LABEL: name * 8}, made, True, made)
        for name in "abc"
    ]
    done: list[str] = []

    async def delete(_: str, name: str, labels: Any) -> None:
        if name == failing:
            raise CloudError("not now")
        await asyncio.sleep(0)
        done.append(name)

    async def find(chosen: Callable[[str], bool]) -> list[str]:
        every = [rule_description(name, name * 8) for name in "abc"]
        return [*filter(chosen, [each + marks for each in every for marks in ("", "; owner x, machine y")])]

    async def remove(found: list[str]) -> None:
        done.extend(found)

    firewall = SimpleNamespace(find=find, remove=remove)
    access: Any = SimpleNamespace(engine=SimpleNamespace(delete=delete, firewall=firewall))
    failing = "a-worker-0"
    with pytest.raises(CloudError, match="not now"):
        await _delete(access, vms, ())
    assert done == ["b-worker-0", "c-worker-0"]
    failing = ""
    done.clear()
    await _delete(access, vms, {"bbbbbbbb"})
    assert [each.partition("(")[2] for each in done[3:]] == [
        "aaaaaaaa)", "aaaaaaaa); owner x, machine y", "cccccccc)", "cccccccc); owner x, machine y",
    ]  # fmt: skip


@pytest.fixture
def named(engine: ComputeEngine) -> Iterator[Any]:
    """Google's own client for rules, and none left of those that a test made."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    client = compute_v1.FirewallsClient(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": engine.endpoint}
    )

    def insert(rule: dict[str, Any], **changes: Any) -> None:
        client.insert_unary(project=EMULATED_PROJECT, firewall_resource=compute_v1.Firewall({**rule, **changes}))

    def get(rule: dict[str, Any]) -> compute_v1.Firewall:
        return client.get(project=EMULATED_PROJECT, firewall=rule["name"])

    def names() -> set[str]:
        return {each.name for each in client.list(project=EMULATED_PROJECT)}

    yield SimpleNamespace(insert=insert, get=get, names=names)
    for each in client.list(project=EMULATED_PROJECT):
        if not each.name.startswith("default-"):
            client.delete_unary(project=EMULATED_PROJECT, firewall=each.name)


TAMPERED = [
    {"source_ranges": ["0.0.0.0/0"]},
    {"source_tags": ["anything"]},
    {"target_tags": ["another"]},
    {"disabled": True},
    {"priority": 65000},
    {"allowed": [{"I_p_protocol": "all"}]},
    {"source_service_accounts": ["robot@elsewhere"], "target_tags": [], "target_service_accounts": ["robot@here"]},
]


@pytest.mark.parametrize("changes", TAMPERED, ids=lambda changes: next(iter(changes)))
async def test_a_rule_of_ours_that_says_something_else_is_mended(
    engine: ComputeEngine, named: Any, changes: dict[str, Any]
) -> None:
    _, ssh, _ = wanted = rules("transient-magics-1a2b3c4d", "", ["10.0.0.0/8"], "ours")
    await asyncio.to_thread(named.insert, ssh, **changes)
    await engine.firewall.ensure(wanted)
    found = await asyncio.to_thread(named.get, ssh)
    assert (list(found.source_ranges), list(found.source_tags), list(found.target_tags)) == (
        ["10.0.0.0/8"], [], ssh["target_tags"],
    )  # fmt: skip
    assert (found.priority, found.disabled, list(found.source_service_accounts)) == (ssh["priority"], False, [])
    assert [(each.I_p_protocol, list(each.ports)) for each in found.allowed] == [("tcp", ["22"])]


@pytest.mark.parametrize(
    "changes",
    [
        {"network": "global/networks/elsewhere"},
        {"description": "Bob's"},
        {"denied": [], "allowed": [{"I_p_protocol": "all"}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
async def test_a_rule_that_cannot_be_made_ours_is_refused_and_left(
    engine: ComputeEngine, named: Any, changes: dict[str, Any]
) -> None:
    await asyncio.to_thread(_make_network, engine, "elsewhere")
    *_, deny = wanted = rules("transient-magics-1a2b3c4d", "", ["10.0.0.0/8"], "ours")
    await asyncio.to_thread(named.insert, deny, **changes)
    before = await asyncio.to_thread(named.get, deny)
    with pytest.raises(AlreadyExistsError, match="a firewall rule transient-magics-1a2b3c4d-deny of another owner"):
        await engine.firewall.ensure(wanted)
    assert await asyncio.to_thread(named.get, deny) == before
    if "description" in changes:
        await engine.firewall.remove(wanted)
        assert await asyncio.to_thread(named.get, deny) == before, "only our own rules are removed"


def _make_network(engine: ComputeEngine, name: str) -> None:
    from google.api_core.exceptions import Conflict
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    options = {"api_endpoint": engine.endpoint}
    client = compute_v1.NetworksClient(credentials=AnonymousCredentials(), client_options=options)
    with contextlib.suppress(Conflict):
        network = compute_v1.Network(name=name, auto_create_subnetworks=True)
        client.insert_unary(project=EMULATED_PROJECT, network_resource=network)


async def test_a_cluster_whose_rules_cannot_be_made_ends_before_its_first_vm(
    engine: ComputeEngine, named: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "0badcafe")
    (members, *_) = rules("transient-magics-0badcafe", "", ["10.0.0.0/8"], "Bob's")
    await asyncio.to_thread(named.insert, members)
    with pytest.raises(ClusterError, match="a firewall rule transient-magics-0badcafe-members of another owner"):
        await asyncio.to_thread(declare(tm.Declaration("cpu", name="closed")).wait, PATIENCE)
    tm.cluster("closed").wait(PATIENCE, until="deleted")
    assert tm.cluster("closed").state.vms == {}
    assert (await asyncio.to_thread(named.get, members)).description == "Bob's"


def test_ssh_comes_in_from_where_it_was_said_and_else_through_the_proxy_alone(
    monkeypatch: pytest.MonkeyPatch, alice: Path
) -> None:
    def sources(**more: Any) -> tuple[bool, set[str]]:
        spec = specify(tm.Declaration("t4", name="c", project="some-project", **more))
        return spec.through_proxy, {each for rule in firewall_rules(spec) for each in rule.get("source_ranges", ())
                                    if "allowed" in rule}  # fmt: skip

    assert sources() == (True, {IAP_RANGE})
    assert sources(ssh_from=("203.0.113.7/32",)) == (False, {"203.0.113.7/32"})
    assert sources(ssh_from=("0.0.0.0/0",)) == (False, {"0.0.0.0/0"}), "the world, only where that was typed"
    assert sources(external_ip=False) == (True, {IAP_RANGE})
    assert not specify(tm.Declaration("t4", name="c", project="some-project", firewall=False)).through_proxy
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DeclarationError, match=r"gcloud.* is not installed.*--ssh-from RANGE"):
        declare(tm.Declaration("t4", name="c", project="some-project"))
    assert not places.cluster("c").exists()


async def test_what_has_no_id_goes_on_and_deletes_no_more_than_it_asked_for(engine: ComputeEngine) -> None:
    spec = replace(specify(tm.Declaration("cpu", name="former")), id="")
    folder = places.private(places.cluster("former"))
    places.private(folder / "runs")
    (folder / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    another = {LABEL: "former", OWNER_LABEL: login_name()}
    vm = await engine.insert(VmRequest(**{**vars(STRANGER), "name": "former-worker-9", "labels": another}))
    commands.start_controller(folder)
    cluster = tm.cluster("former")
    await asyncio.to_thread(cluster.wait, PATIENCE)
    assert {each.name for each in await engine.list(labels(spec))} == {
        "former-ps-0",
        "former-worker-0",
        "former-worker-9",
    }
    await asyncio.to_thread(cluster.delete)
    assert await engine.list(labels(spec)) == [vm], "another cluster's of the name, of the same login"
    await engine.delete(vm.zone, vm.name, another)


async def test_no_proxy_is_asked_for_the_emulator(alice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with to_project(None) as access:
        await access.reopen()
        assert access.isolated in (True, False)


def test_all_are_deleted_though_one_cannot_be_and_that_is_told_in_the_end(
    alice: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = places.private(places.cluster("broken"))
    (folder / "spec.json").write_text("{", encoding="utf-8")
    try:
        declare(tm.Declaration("cpu", name="living"))
        done = InteractiveShell().run_cell("%load_ext transient_magics\n%transient_cluster delete --all")
        assert "broken" in str(done.error_in_exec)
        assert "living is deleted" in capsys.readouterr().out
    finally:
        shutil.rmtree(folder)
