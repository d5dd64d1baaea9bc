"""The doctor's report shows nobody's names, and tells what happened all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.client.checkup import report
from transient_magics.client.checkup.diagnosis import Line
from transient_magics.client.checkup.names import Names

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{7}[a-z0-9]", fullmatch=True), min_size=5, max_size=5, unique=True)
ADDRESSES = st.tuples(*[st.integers(11, 254)] * 4).map(lambda parts: ".".join(map(str, parts)))
KEYS = st.text(f"{LETTERS}{LETTERS.upper()}0123456789+/", min_size=40, max_size=68)
NUMBERS = st.integers(10**11, 10**12 - 1).map(str)


@st.composite
def everybodys(draw: st.DrawFn) -> dict[str, str]:
    """The names of one person in one project, each another, none a part of another."""
    project, user, domain, bucket, host = draw(NAMES)
    return {
        "project": project, "user": user, "account": f"{user}@{domain}.example", "bucket": bucket, "host": host,
        "address": draw(ADDRESSES), "key": f"AAAAC3NzaC1lZDI1NTE5{draw(KEYS)}", "number": draw(NUMBERS),
        "domain": f"{domain}.example",
    }  # fmt: skip


def written(who: dict[str, str]) -> dict[str, Any]:
    """A report about this person, whose names stand in it wherever Google and this machine write them."""
    known = {
        "project": [who["project"]], "account": [who["account"]], "bucket": [who["bucket"]], "host": [who["host"]],
        "user": [who["user"]], "home": [f"/home/{who['user']}/data"],
    }  # fmt: skip
    said = (
        f"{who['account']} of {who['project'].upper()} ({who['number']}) may not use gs://{who['bucket']}/x from "
        f"{who['address']}: /home/{who['user']}/data/key on {who['host']}.{who['domain']}, "
        f"{quote(who['account'], safe='')}, ssh-ed25519 {who['key']} {who['user']}@{who['host']}"
    )
    lines = [Line(f"project {who['project']}", "bad", said, f"gcloud x --project {who['project']}", 3.0, {"a": said})]
    exchange = {
        "at": 1.0, "host": "compute.googleapis.com", "method": "POST",
        "path": f"/compute/v1/projects/{who['project']}/zones/us-central1-a/instances/4{who['number']}",
        "query": {"filter": f"labels.owner = {who['user']}"}, "status": 403,
        "asked": {"labels": {"transient-magics-user": who["user"], who["project"]: who["host"]},
                  "metadata": {"items": [{"key": "ssh-keys", "value": f"transient:ssh-ed25519 {who['key']}"}]}},
        "answered": {"error": {"message": repr(said), "code": 403}},
    }  # fmt: skip
    again = {**exchange, "at": 2.0}
    return report.make(known, {"project": who["project"]}, lines, [], [exchange, again], 0.0)


@given(everybodys(), everybodys())
@examples(60)
def test_no_name_survives_and_nothing_else_depends_on_names(who: dict[str, str], other: dict[str, str]) -> None:
    first, second = written(who), written(other)
    shown = (json.dumps(first) + report.as_text(first)).lower()
    assert [name for name in who.values() if name.lower() in shown] == []
    assert first == second, "what a report says follows from what happened, not from who it happened to"
    assert first["exchanges"][0]["times"] == 2
    assert first["exchanges"][0]["route"].endswith("/zones/{zone}/instances/{instance}")


def test_short_names_go_where_they_stand_alone_and_common_addresses_stay() -> None:
    names = Names({"user": ["root"], "host": ["db1", "me"], "project": ["a-project"]})
    told = names.conceal(
        "root@db1: me, roots of /home/root; A-PROJECT, 0.0.0.0/0, 127.0.0.1, 35.235.240.0/20 and 10.1.2.3"
    )
    assert told == (
        "USER-1@HOST-1: me, roots of /home/USER-1; PROJECT-1, 0.0.0.0/0, 127.0.0.1, 35.235.240.0/20 and ADDRESS-1"
    )
    assert names.conceal("Bearer abc.def, ya29.a0_b-c and 2001:db8::7 at 12:34:56") == (
        "TOKEN-1, TOKEN-2 and ADDRESS-2 at 12:34:56"
    )


def test_a_line_that_a_killed_program_tore_is_passed_over(tmp_path: Path) -> None:
    record = tmp_path / "record"
    whole = json.dumps({"at": 2.0, "path": "/b"})
    record.write_text(f'{whole}\n{{"at": 1.0, "path": "/a"}}\n{whole[:9]}', encoding="utf-8")
    assert [each["path"] for each in report.read_exchanges(record)] == ["/a", "/b"]
    assert report.read_exchanges(tmp_path / "none") == []
