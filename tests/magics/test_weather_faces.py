"""The weather's three faces: the magic, the program, and the handle; all say what the emulator says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from transient_magics import Declaration, emulator, places
from transient_magics.client import Cluster
from transient_magics.client.declaring import specify
from transient_magics.errors import ClusterError, DeclarationError, TransientError
from transient_magics.journal import Journal, events
from transient_magics.magics.completion import candidates


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of our own, with a short path; an emulator that was started there is ended."""
    folder = Path(tempfile.mkdtemp(prefix="tm-"))
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(folder))
    yield folder
    if url := emulator.running():
        os.kill(emulator.about(url)["pid"], signal.SIGTERM)
        while emulator.running():
            time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def declared(name: str, **more: str) -> Cluster:
    """A cluster that is declared and that nobody provisions: its weather does not need a VM."""
    directory = places.private(places.cluster(name))
    spec = specify(Declaration("v100x2", name=name, **more))  # type: ignore[arg-type]
    (directory / "spec.json").write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    return Cluster(name)


def shown(shell: InteractiveShell, line: str) -> str:
    result = shell.run_cell(line)
    result.raise_error()
    return repr(result.result)


@pytest.fixture
def shell(home: Path) -> Iterator[InteractiveShell]:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics")
    yield shell
    shell.run_cell("%unload_ext transient_magics")
    assert "transient_weather" not in shell.magics_manager.magics["line"]


@pytest.mark.slow
def test_one_weather_has_three_faces(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = declared("c1")
    declared("c2")
    assert shown(shell, "%transient_weather c1").startswith("Fair weather: no revocations, no refusals")
    said = shown(
        shell,
        "%transient_weather c1 --revocations published --hours-per-minute 60 --stockout us-west1-b:k80 "
        "us-east1-c,for=10m --stockout us-east1-d --quota v100=4 --api-errors 0.05 "
        "--boot 2s --notice scaled --gpu-speed published --seed 7 # so be it",
    )  # fmt: skip
    assert "An hour passes in 1 s (60 h per minute)" in said
    assert "time limits; the work takes its time." in said
    assert "VMs are taken 30 s of emulated time after the notice, 8.33ms here." in said
    assert "us-west1-b has no VMs with a K80." in said
    assert "us-east1-c has no VMs for 10 min." in said
    assert "At most 4 V100 in each region" in said
    assert "5% of API requests fail" in said
    weather = cluster.weather()
    assert (weather.rate, weather.settings["seed"], weather.settings["boot"]) == (3600.0, 7, "2s")
    assert len(weather.settings["stockout"]) == 3
    told = subprocess.run(
        [sys.executable, "-m", "transient_magics.cli.program", "weather", "c2", "--stockout", "none"],
        capture_output=True, text=True, timeout=150, encoding="utf-8",
    )  # fmt: skip
    assert "has no VMs" not in told.stdout
    assert "An hour passes in 1 s" in told.stdout, "all clusters share one weather"
    with pytest.raises(DeclarationError, match=r"Unknown value 'publishd' \(--revocations\). Did you mean"):
        cluster.weather(revocations="publishd")
    assert str(cluster.weather(reset=True)).startswith("Fair weather")
    shell.run_cell("%transient_weather -h")
    assert "--hours-per-minute HOURS" in capsys.readouterr().out


@pytest.mark.slow
def test_a_file_of_revocations_is_read_here_and_understood_there(home: Path, tmp_path: Path) -> None:
    cluster, file = declared("c1"), tmp_path / "revocations.csv"
    file.write_text("lifetime_hours\n1\nx\n", encoding="utf-8")
    with pytest.raises(DeclarationError, match=r"revocations\.csv, line 3: lifetime_hours must be a number"):
        cluster.weather(revocations=str(file))
    file.write_text("lifetime_hours\n1\n2\n", encoding="utf-8")
    assert "by the 2 rows of revocations.csv" in str(cluster.weather(revocations=file))
    with pytest.raises(DeclarationError, match=r"nowhere\.csv cannot be read: No such file"):
        cluster.weather(revocations="nowhere.csv")


def test_in_a_project_the_weather_is_googles(shell: InteractiveShell) -> None:
    declared("c1", project="my-own")
    error = shell.run_cell("%transient_weather c1 --revocations published").error_in_exec
    assert isinstance(error, ClusterError)
    assert str(error).startswith("c1 runs in project my-own, where there is no emulated weather.")
    assert not emulator.running()


def test_no_emulator_is_started_for_a_cluster_that_is_deleted(home: Path) -> None:
    cluster = declared("c1")
    spec = json.loads((cluster.directory / "spec.json").read_text(encoding="utf-8"))
    journal = Journal(cluster.directory / "journal.jsonl")
    journal.append(events.ClusterDeclared(spec=spec))
    journal.append(events.ClusterDeleted())
    with pytest.raises(TransientError, match="c1 is deleted, and the emulator is not running"):
        cluster.weather()
    assert not emulator.running()


def test_options_and_their_values_are_completed(home: Path) -> None:
    declared("c1")
    assert candidates("transient_weather", "", "") == ["c1"]
    assert "--hours-per-minute" in candidates("transient_weather", "c1 ", "--h")
    assert candidates("transient_weather", "c1 --revocations ", "") == ["none", "published", "every=60s"]
    assert candidates("transient_weather", "c1 --gpu-speed ", "") == ["equal", "published"]
    assert "us-west1-b" in candidates("transient_weather", "c1 --stockout ", "")
