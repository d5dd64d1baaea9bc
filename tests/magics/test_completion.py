"""What Tab offers in the magics' lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from tests.panels import stories


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    folder = tmp_path / "clusters" / "demo"
    (folder / "runs" / "run-1").mkdir(parents=True)
    (folder / "spec.json").write_text("{}", encoding="utf-8")
    stories.tell(folder / "journal.jsonl", "ready")
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    yield shell
    shell.run_cell("%unload_ext transient_magics")


def offered(shell: InteractiveShell, text: str) -> list[str]:
    with provisionalcompleter():
        found = list(shell.Completer.completions(text, len(text)))
    return [re.split(r"\s", text[: each.start])[-1] + each.text for each in found]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("%transient_cluster st", ["status"]),
        ("%transient_stop d", ["demo"]),
        ("%transient_stop demo r", ["run-1"]),
        ("%transient_cluster k", ["k80"]),
        ("c = %transient_cluster v", ["v100"]),
        ("%transient_cluster k80x2+p1", ["k80x2+p100"]),
        ("%transient_cluster k80x2@us-west1", ["k80x2@us-west1-b"]),
        ("%transient_cluster k80 --max", ["--max-workers", "--max-hours", "--max-cost"]),
        ("%transient_cluster k80 --no-r", ["--no-replace"]),
        ("%transient_cluster k80 --provisioning-model s", ["spot", "standard"]),
        ("%transient_cluster k80 --provisioning-model=pre", ["--provisioning-model=preemptible"]),
        ("%transient_cluster k80 --zone us-west1-b,us-west1", [f"us-west1-b,us-west1-{each}" for each in "abc"]),
        ("%transient_cluster status ", ["demo"]),
        ("%transient_cluster revoke demo worker-", ["worker-0", "worker-1", "worker-2", "worker-3"]),
        ("%transient_cluster revoke demo worker-1 --", ["--in"]),
        ("%transient_cluster delete --a", ["--all"]),
        ("%transient_deflate ", ["demo"]),
        ("%transient_deflate demo worker-", ["worker-0", "worker-1", "worker-2", "worker-3"]),
        ("%transient_deflate demo --reclaim 1cpu --policy ", ["proportional", "priority", "deterministic"]),
        (
            "%transient_deflate demo worker-1 --",
            ["--cpu", "--machine-type", "--network", "--reclaim", "--policy", "--restore"],
        ),
        ("%transient_cluster k80 --give-up ", ["slowest", "youngest", "riskiest", "costliest", "ask"]),
        ("%transient_cluster agree ", ["demo"]),
        ("%transient_weather demo --reclaim ", ["none", "1,within=60s"]),
        ("%%train --mode ", ["async", "sync"]),
        ("%%train --damping ", ["none", "staleness"]),
        ("%%train --lr-policy ", ["active", "slots", "fixed"]),
        ("%%train --checkpoint-every a", ["auto"]),
        ("%%train --cluster d", ["demo"]),
        ("%%transient_train --resume r", ["run-1"]),
        ("%%sweep --sampler ", ["none", "grid", "random", "tpe", "gp"]),
        ("%%transient_sweep --objective ", ["max accuracy", "min loss"]),
        ("%%train --hparams", ["--hparams-set", "--hparams"]),
        ("%transient_help tr", ["train"]),
        ("%transient_help stu", []),
        ("%transient_help cluster res", ["resize"]),
    ],
)
def test_what_may_follow_is_offered(shell: InteractiveShell, line: str, expected: list[str]) -> None:
    assert sorted(offered(shell, line)) == sorted(expected)


def test_an_option_that_was_given_is_not_offered_again(shell: InteractiveShell) -> None:
    assert "--name" not in offered(shell, "%transient_cluster k80 --name a --")


def test_the_body_of_a_cell_is_left_to_python(shell: InteractiveShell) -> None:
    assert "status" not in offered(shell, "%%train --model resnet\nst")
    assert "str" in offered(shell, "%%train --model resnet\nst")
