"""Traces of availability: read as they are written, refused in a sentence where they are broken."""

from __future__ import annotations

import pytest

from transient_magics.catalog.traces import read_traces
from transient_magics.errors import DeclarationError

HEADER = "zone,gpu,gpus_per_vm,seconds,available\n"


def test_a_file_tells_what_each_zone_had_and_begins_again_at_its_end() -> None:
    near, far = read_traces(HEADER + "a,v100,1,0,0\na,v100,1,600,3\na,v100,1,900,\nb,K80,8,0,1\nb,K80,8,60,\n", "f.csv")
    assert [near.at(second) for second in (0, 599, 600, 899, 900, 1500)] == [0, 0, 3, 3, 0, 3]
    assert (far.zone, far.gpu, far.gpus_per_vm, far.end, far.name) == ("b", "k80", 8, 60, "b:k80x8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zone,gpu,seconds,available\na,v100,0,1\n", "the column 'gpus_per_vm' is missing"),
        (HEADER.replace("available", "free") + "a,v100,1,0,1\n", "unknown column 'free'"),
        (HEADER, "no rows"),
        (HEADER + "a,v100,1,0,1\na,v100,1,60,\na,v100,1,120,1\na,v100,1,180,\n", "row 3: the trace of a has an empty"),
        (HEADER + "a,v100,1,0,1\na,v100,1,60,0\n", "the trace of a has no end"),
        (HEADER + "a,v100,1,5,1\na,v100,1,60,\n", "must begin at 0 s, not at 5 s"),
        (HEADER + "a,v100,1,0,1\na,v100,1,60,0\na,v100,1,60,\n", "row 4: seconds must increase, but 60 follows 60"),
        (HEADER + "a,v100,1,0,1.5\na,v100,1,60,\n", "row 2: available must be a whole number, not '1.5'"),
        (HEADER + "a,v100,1,nan,1\na,v100,1,60,\n", "row 2: seconds must be a number of at least 0, not 'nan'"),
        (HEADER + "a,v100,1,0\n", "row 2 does not have 5 values"),
        (HEADER + "a,v100,1,0,1,9\n", "row 2 does not have 5 values"),
        (HEADER + "a,v,1,0,1\na,v,1,9,\nb,v,1,0,1\nb,v,1,9,\na,v,1,0,1\na,v,1,9,\n", "a:vx1 are not consecutive"),
        (HEADER + ",v100,1,0,1\n,v100,1,60,\n", "row 2 has no zone or no GPU"),
    ],
)  # fmt: skip
def test_a_broken_file_is_refused_in_a_sentence_that_names_it_and_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        read_traces(text, "market.csv")
    assert str(refused.value).startswith("market.csv: ")
    assert said in str(refused.value)
