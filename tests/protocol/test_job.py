"""What a job may be declared as: written and read again as the same, refused with the field that is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.works.jobs.spec import JobSpec, folder_or_none

_FOLDERS = st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9_. -]{0,8}[a-z](/[a-z]{1,5}){0,3}/?", fullmatch=True)


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=80).filter(str.strip),
    st.just("") | _FOLDERS,
    st.integers(1, 100),
    st.none() | st.floats(0, 1e6),
    st.dictionaries(
        st.from_regex(r"[A-KM-SU-Z][A-Z_0-9]{0,8}", fullmatch=True), st.text("ab ", max_size=9), max_size=3
    ),
)
def test_what_is_declared_is_read_as_it_was_written(
    command: str, keep: str, workers: int, timeout: float | None, environment: dict[str, str]
) -> None:
    values = {"name": "job-1", "command": command, "keep": keep, "workers": workers, "timeout_seconds": timeout}
    spec = JobSpec.from_dict({**values, "environment": environment})
    assert JobSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    assert not spec.keep.endswith("/")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"command": "  "}, "command: the command is empty"),
        ({"command": "a\0b"}, "command: the command must not contain NUL"),
        ({"keep": "../up"}, "keep: '../up' is not a folder below"),
        ({"keep": "/etc"}, "keep: '/etc' is not a folder below"),
        ({"keep": "/"}, "keep: '/' is not a folder below"),
        ({"keep_seconds": 1.0}, "keep_seconds: must be at least 5.0, not 1.0"),
        ({"workers": 0}, "workers: must be from 1 to 100, not 0"),
        ({"retries": -1}, "retries: must be from 0 to 100, not -1"),
        ({"environment": {"LD_PRELOAD": "x"}}, "environment: LD_PRELOAD cannot be set"),
        ({"environment": {"TRANSIENT_JOB": "x"}}, "environment: TRANSIENT_JOB cannot be set"),
        ({"environment": {"a-b": "x"}}, "environment: 'a-b' is not a name of a variable"),
        ({"name": "No"}, "name: 'No' is not a valid name"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        JobSpec.from_dict({"name": "job-1", "command": "true", **wrong})


def test_a_folder_is_named_in_the_ways_in_which_people_do() -> None:
    assert [folder_or_none(each) for each in ("checkpoints/", "./out", "a/b", "")] == ["checkpoints", "out", "a/b", ""]
