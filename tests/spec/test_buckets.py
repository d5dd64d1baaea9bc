"""Where in buckets a cluster's things are, and where they are not."""

from __future__ import annotations

import pytest

from transient_magics.errors import DeclarationError
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup, parse_records

PRICE = PriceLine("n1-standard-4", 1.0, 3.0, "test")
CLUSTER = ClusterSpec(
    name="c1", id="0123abcd", declared_at=1.8e9, bucket="results/ours", groups=(WorkerGroup("t4"),),
    zones=("us-central1-a",), prices={"t4": PRICE, "parameter-server": PRICE},
)  # fmt: skip


@pytest.mark.parametrize("text", ["gs://results/digits", "gs://results/our", "gs://other/ours/"])
def test_records_have_a_folder_of_their_own(text: str) -> None:
    assert parse_records(text, CLUSTER) == text.rstrip("/")
    assert parse_records(text, None) == text.rstrip("/")


@pytest.mark.parametrize("text", ["gs://results", "gs://other/", "gs://results/ours", "gs://results/ours/"])
def test_no_vm_is_to_read_where_clusters_keep_their_results(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"gs://NAME/FOLDER"):
        parse_records(text, CLUSTER)
