"""Complete requests for VMs, as they leave for Compute Engine, compared with the files in `request_bodies`.

A file is a declaration and the body of every request for a VM that follows from it. The cluster is declared on
2025-01-01 at 00:00 UTC, so a termination time reads as the time for which the cluster may live. Keys and start-up
scripts stand in `<>`. After an intended change, rewrite the files, review their diff, and commit both together.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cloud.scripted_api import PROJECT, refusal, serving
from transient_magics.cli import options
from transient_magics.cli.arguments import parse, split
from transient_magics.client import Declaration, specify
from transient_magics.client.declaring import with_preparation
from transient_magics.cloud import ComputeEngine
from transient_magics.controller.decisions.core import RequestVm, Situation, decide
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.machines import OWNER
from transient_magics.journal import Event, Journal, RunState, events, replay
from transient_magics.journal.declared import agree
from transient_magics.protocol import layout
from transient_magics.remote import generate_key
from transient_magics.spec import EMULATED_PROJECT, ClusterSpec

STORED = Path(__file__).parent / "request_bodies"
REWRITE = "TRANSIENT_TESTS_REWRITE"
DECLARED_AT = datetime(2025, 1, 1, tzinfo=UTC)
WHOSE = {
    "transient-magics-owner": "0123456789abcdef",
    "transient-magics-machine": "fedcba98",
    "transient-magics-user": "ada",
}
IN_PROJECT = "--project a-project --zone us-central1-a --bucket none"
WIDTH = 100
RUN = {"name": "run-1", "train_steps": 100}
NOT_IN_REQUESTS = {"--replace", "--give-up", "--chief", "--idle", "--dry-run", "--wait", "--output"}
"""The options of a declaration from which nothing in these requests follows."""


def unchanged(spec: ClusterSpec) -> ClusterSpec:
    return spec


@dataclass(frozen=True)
class Case:
    """A declaration as it is typed, and what happens before the VMs are requested (`then` in words)."""

    line: str
    then: str = ""
    happened: tuple[Event, ...] = ()
    change: Callable[[ClusterSpec], ClusterSpec] = unchanged


CASES = {
    "plain": Case("k80x2"),
    "max-cost": Case("k80x4 --max-cost 10"),
    "max-hours": Case("k80x4 --max-hours 6"),
    "max-cost-before-max-hours": Case("k80x4 --max-cost 5 --max-hours 6"),
    "max-cost-with-room-for-a-resize": Case("k80x2 --max-cost 10 --max-workers 8"),
    "max-cost-with-a-fallback": Case("k80x2 --max-cost 10 --fallback on-demand=10m"),
    "max-hours-before-max-cost": Case(f"t4x2 {IN_PROJECT} --max-cost 500 --max-hours 36"),
    "several-gpus-and-zones": Case(
        "t4x2@us-central1-a+p100@us-west1-b+v100x2 --zone us-central1-a,us-west1-a --project a-project --bucket none"
    ),
    "on-demand": Case(f"l4x2 {IN_PROJECT} --provisioning-model standard --ssh-from 203.0.113.7/32"),
    "preemptible": Case(f"p100x2 {IN_PROJECT} --provisioning-model preemptible"),
    "two-parameter-servers": Case(f"t4x2 {IN_PROJECT} --ps 2 --ps-cores 8 --ps-zone us-central1-c"),
    "controller-on-a-vm": Case(
        "t4x2 --project a-project --zone us-central1-a --controller cluster --service-account robot"
    ),
    "bucket-and-account-with-a-controller-here": Case(
        "a100 --project a-project --zone us-central1-a --controller local --service-account default "
        "--bucket gs://results/experiments"
    ),
    "own-image-disk-and-machines": Case(
        f"t4x2 {IN_PROJECT} --image family/mine --disk 200GB:ssd --machine-type n1-standard-16 "
        "--ps-machine n2-standard-4"
    ),
    "baked-image-without-a-driver": Case(
        f"t4 {IN_PROJECT}",
        "an image without a driver is chosen",
        (events.ClusterImageChosen(image="transient-training-1", why="it carries the stack already", gpu=False),),
    ),
    "own-network-without-external-addresses": Case(
        f"t4 {IN_PROJECT} --name inside --network own --subnet inner --no-external-ip --no-firewall "
        "--preemption-notice none"
    ),
    "jobs": Case(f"cpux3 {IN_PROJECT} --for jobs"),
    "preparation": Case(
        f"v100 {IN_PROJECT}",
        "a run with --prep cpux3 begins, and two of them are to prepare",
        (
            events.WorkDeclared(of="run", work="run-1", spec={**RUN, "prep": "cpux3"}),
            events.ClusterLeased(ports={"run-1": 0}, workers={"0": "run-1"}),
            events.PreparationScaled(run="run-1", slots=(0, 1)),
        ),
        lambda spec: with_preparation(spec, 3),
    ),
    "deadline": Case(
        "k80x2 --max-workers 6 --max-cost 20",
        "a run with --finish-by takes 3 workers on demand and keeps 2 Spot workers",
        (
            events.WorkDeclared(of="run", work="run-1", spec={**RUN, "finish_by": DECLARED_AT.timestamp() + 3600}),
            events.DeadlineActed(run="run-1", machines=(("k80", "spot", 2), ("k80", "standard", 3)), reason="late"),
        ),
    ),
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))


def declared(case: Case) -> ClusterSpec:
    """Return the specification of the declaration, with its moment and its random id fixed."""
    spec = specify(Declaration(**parse("cluster", split(case.line)).values))
    return replace(case.change(spec), declared_at=DECLARED_AT.timestamp(), id="0123abcd")


async def sent(case: Case, directory: Path) -> list[dict[str, Any]]:
    """Request the cluster's first VMs by the fleet in `directory`, and return what arrives at Compute Engine.

    Every request is refused, so each is sent once and nothing follows from it.
    """
    spec = declared(case)
    happened = (events.ClusterDeclared(spec=spec.to_dict()), *case.happened)
    state = replay([replace(event, time=int(spec.declared_at * 1e9)) for event in happened])
    assert state.spec
    agree(directory, state.spec)
    for run in state.of(RunState).values():
        (directory / layout.RUNS / run.name).mkdir(parents=True)
        (directory / layout.RUNS / run.name / layout.RUN).write_text(json.dumps(run.spec.to_dict()), encoding="utf-8")
    decisions = decide(Situation(spec.declared_at, state))
    (directory / OWNER).write_text(json.dumps(WHOSE), encoding="utf-8")
    with Journal(directory / layout.JOURNAL) as journal:
        async with serving() as api, ComputeEngine(spec.project or EMULATED_PROJECT, api.url, patience=1) as engine:
            api.on("POST", ".*", refusal(403, "forbidden", "Required permission is missing"))
            recorder = Recorder(journal, state)
            access = cast(Access, SimpleNamespace(engine=engine))
            async with asyncio.TaskGroup() as group:
                tasks = Tasks(group, recorder.changed.set, recorder.note)
                fleet = Fleet(directory, recorder, access, tasks, lambda *_: None, lambda _: None)
                fleet.request([decision for decision in decisions if isinstance(decision, RequestVm)])
    key = generate_key(directory / layout.KEY)
    requests = [
        {"url": f"{whole_path(path)}?requestId={query['requestId']}", "body": readable(body, key)}
        for method, path, query, body in api.requests
        if method == "POST"
    ]
    return sorted(requests, key=first_vm)


def whole_path(path: str) -> str:
    """Return the path from the project on, which the scripted server leaves out where it is its own."""
    before, separator, rest = path.partition("projects/")
    return f"projects/{rest}" if separator else f"projects/{PROJECT}/{before}"


def first_vm(request: dict[str, Any]) -> str:
    """Return the first name of the VMs that are requested."""
    body = request["body"]
    return body["name"] if "name" in body else min(body["perInstanceProperties"])


def readable(value: Any, key: str) -> Any:
    """Return the value with sorted fields, and with marks in place of the cluster's key and of start-up scripts."""
    if isinstance(value, dict):
        return {name: readable(value[name], key) for name in sorted(value)}
    if isinstance(value, list):
        return [readable(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return script(value) if value.startswith("#!") else value.replace(key, "<public key of the cluster>")


def script(text: str) -> str:
    """Describe a start-up script: its lines without those of pinned packages, its steps, and its last word."""
    lines = re.sub(r"(<<'LOCK'\n).*?^LOCK$", r"\1LOCK", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    steps = [match[1] for line in lines if (match := re.fullmatch(r" *(?:step|ready) '(.*)'", line))]
    return f"<start-up script, {len(lines)} lines: {'; '.join(steps)}>"


def as_text(case: Case, requests: list[dict[str, Any]]) -> str:
    """Return the text of a file."""
    fields = {"declaration": f"%transient_cluster {case.line}", "then": case.then, "requests": requests}
    return laid_out({name: value for name, value in fields.items() if value}) + "\n"


def laid_out(value: Any, indent: int = 0) -> str:
    """Return the value as JSON. What has room in a line stands in one."""
    text = json.dumps(value)
    if indent + len(text) <= WIDTH or not isinstance(value, dict | list):
        return text
    margin = " " * (indent + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(margin + laid_out(item, indent + 1) for item in value) + f"\n{margin[1:]}]"
    fields = (f"{margin}{json.dumps(name)}: {laid_out(item, indent + 1)}" for name, item in value.items())
    return "{\n" + ",\n".join(fields) + f"\n{margin[1:]}}}"


@pytest.mark.parametrize("name", CASES)
async def test_requests_for_vms_are_those_that_are_stored(name: str, tmp_path: Path) -> None:
    text = as_text(CASES[name], await sent(CASES[name], tmp_path))
    path = STORED / f"{name}.json"
    if os.environ.get(REWRITE):
        path.write_text(text, encoding="utf-8")
        pytest.skip(f"{path.name} is rewritten")
    stored = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != stored:
        difference = "".join(
            difflib.unified_diff(
                stored.splitlines(keepends=True), text.splitlines(keepends=True), f"stored {path.name}", "sent now", n=8
            )
        )
        pytest.fail(
            f"Requests for VMs have changed: %transient_cluster {CASES[name].line}\n{difference}\n"
            "If this is intended, rewrite the stored ones, review their diff, and commit them with the change:\n"
            f"    {REWRITE}=1 .venv/bin/python -m pytest tests/controller/test_request_bodies.py",
            pytrace=False,
        )


def test_each_stored_file_has_a_declaration() -> None:
    assert {path.name for path in STORED.iterdir()} == {f"{name}.json" for name in CASES}


def test_each_option_that_changes_requests_is_in_a_declaration() -> None:
    """A new option belongs in a line of `CASES`, or in `NOT_IN_REQUESTS`."""
    given = {word for case in CASES.values() for word in split(case.line)}
    flags = {option.flags[-1] for option in options.declared("declare") if not given & {*option.spellings}}
    assert flags - {"spec"} == NOT_IN_REQUESTS
