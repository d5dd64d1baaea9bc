"""What --pip comes to: wheels gathered once, installed in a run's own folder, or one sentence about what is wrong."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from transient_magics.controller import packages
from transient_magics.controller.packages import gather
from transient_magics.controller.vms.startup import pinned
from transient_magics.errors import DeclarationError, TrainingError
from transient_magics.spec import check_package, without_secrets

PROGRAM = """
import sys
from pathlib import Path
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.usercode import provide_packages
provide_packages(RunFolder(Path(sys.argv[1])))
import tiny_package
print(tiny_package.PLACE)
"""


def imported(folder: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    return Path(done.stdout.strip())


@pytest.mark.slow
async def test_a_package_is_gathered_and_importable_from_the_runs_own_folder(tmp_path: Path, tiny_wheel: Path) -> None:
    await gather([str(tiny_wheel)], tmp_path / "wheels")
    assert [path.name for path in (tmp_path / "wheels").iterdir()] == [tiny_wheel.name]
    for _ in range(2):  # the second process finds it installed
        said = await asyncio.to_thread(imported, tmp_path)
        assert (tmp_path / "packages") in said.parents
    assert not list(tmp_path.glob(".wheels-*"))


@pytest.mark.slow
async def test_a_file_is_found_in_the_runs_folder_wherever_that_went(tmp_path: Path, tiny_wheel: Path) -> None:
    run = tmp_path / "run"
    (run / "pip").mkdir(parents=True)
    shutil.copyfile(tiny_wheel, run / "pip" / tiny_wheel.name)
    await gather([tiny_wheel.name], run / "wheels")
    assert [path.name for path in (run / "wheels").iterdir()] == [tiny_wheel.name]
    outside = tmp_path / "other" / "pip"
    outside.mkdir(parents=True)
    (outside / tiny_wheel.name).symlink_to(tiny_wheel)
    with pytest.raises(TrainingError):
        await gather([tiny_wheel.name], outside.parent / "wheels")


@pytest.mark.slow
async def test_a_name_that_nobody_has_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in every process that a Jupyter kernel starts
    with pytest.raises(
        TrainingError, match=r"^No matching distribution found for no-such-thing \(--pip\)\. Only wheels are"
    ):
        await gather(["no-such-thing"], tmp_path / "wheels")
    assert not list(tmp_path.iterdir())


def test_what_every_vm_has_is_known() -> None:
    there = pinned()
    assert {"tensorflow", "tensor2tensor", "numpy", "keras"} <= set(there)
    assert there["tensor2tensor"] == "1.15.7"
    light = pinned("jobs")
    assert all({"distributed", "numpy", "scikit-learn"} <= set(each) for each in (there, light)), "for bags"
    assert not {"tensorflow", "keras"} & set(light)
    assert all(there[name] == light[name] for name in set(there) & set(light)), "one Dask, whatever a cluster is for"


BACKEND = """
import os, zipfile
from pathlib import Path

Path({marker!r}).write_text(repr(dict(os.environ)))

def build_wheel(folder, config_settings=None, metadata_directory=None):
    about = "sourced-1.0.dist-info"
    with zipfile.ZipFile(Path(folder, "sourced-1.0-py3-none-any.whl"), "w") as wheel:
        wheel.writestr("sourced.py", "")
        wheel.writestr(f"{{about}}/METADATA", "Metadata-Version: 2.1\\nName: sourced\\nVersion: 1.0\\n")
        wheel.writestr(f"{{about}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{about}}/RECORD", "")
    return "sourced-1.0-py3-none-any.whl"
"""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that stands in for an index; no other is asked."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def source(folder: Path, marker: Path) -> Path:
    """A source archive; whatever is done with it but to look at its name writes the file `marker`."""
    path = folder / "sourced-1.0.tar.gz"
    about = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {"pyproject.toml": about, "backend.py": BACKEND.format(marker=str(marker)), "setup.py": "import backend",
             "PKG-INFO": "Metadata-Version: 2.1\nName: sourced\nVersion: 1.0\n"}  # fmt: skip
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"sourced-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def wheel(folder: Path, name: str, *needs: str) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        about = f"{name}-1.0.dist-info"
        lines = [
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            *(f"Requires-Dist: {each}\n" for each in needs),
        ]
        archive.writestr(f"{about}/METADATA", "".join(lines))
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.mark.slow
async def test_no_package_runs_code_here_unless_that_was_said(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker, wheels = tmp_path / "ran", tmp_path / "wheels"
    archive = source(offline, marker)
    (tmp_path / "elsewhere").mkdir()
    hidden = wheel(tmp_path / "elsewhere", "innocent", f"sourced @ {source(tmp_path / 'elsewhere', marker).as_uri()}")
    for words, said in (
        ([str(archive)], "is not a wheel"),
        (["sourced"], r"No matching distribution found for sourced.*--pip-build"),
        ([f"sourced @ {archive.as_uri()}"], "is not a wheel"),
        ([str(hidden)], r"would have to be built.*--pip-build"),
    ):
        with pytest.raises(TrainingError, match=said):
            await gather(words, wheels)
        assert not marker.exists(), words
        assert not wheels.exists()
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/secret.json")
    monkeypatch.setenv("SOME_TOKEN", "hunter2")
    for number, words in enumerate((["sourced"], [str(archive)], [str(hidden)])):
        await gather(words, tmp_path / f"wheels-{number}", build=True)
        assert "sourced-1.0-py3-none-any.whl" in {path.name for path in (tmp_path / f"wheels-{number}").iterdir()}
    assert "hunter2" not in marker.read_text(encoding="utf-8")
    assert "secret.json" not in marker.read_text(encoding="utf-8")


@pytest.mark.slow
async def test_what_is_brought_is_what_was_resolved(
    offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(offline, "outer", "inner")
    wheel(offline, "inner")
    await gather(["outer"], tmp_path / "wheels")
    names = {path.name for path in (tmp_path / "wheels").iterdir()}
    assert names == {"outer-1.0-py3-none-any.whl", "inner-1.0-py3-none-any.whl"}
    pip = packages._pip

    async def meddled(*words: object) -> None:
        if "download" in words:  # what was resolved is known by then
            wheel(offline, "inner", "something-else")
        await pip(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(packages, "_pip", meddled)
    with pytest.raises(TrainingError, match=r"(?i)hash"):
        await gather(["outer"], tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "word",
    [
        "https://me:hunter2@example.com/a-1.0-py3-none-any.whl", "https://hunter2@example.com/a-1.0-py3-none-any.whl",
        "a @ https://me:hunter2@example.com/a-1.0-py3-none-any.whl", "https://example.com/a.whl?token=hunter2",
        "git+https://me:hunter2@example.com/a.git", "a@git+https://hunter2@example.com/a",
    ],
)  # fmt: skip
async def test_a_secret_in_a_url_goes_nowhere(word: str, tmp_path: Path) -> None:
    for build in (False, True):
        with pytest.raises(DeclarationError, match=r"must not contain a user.*pip download") as refused:
            check_package(word, build=build)
        assert "hunter2" not in str(refused.value)
    with pytest.raises(TrainingError) as failed:
        await gather([word], tmp_path / "wheels")
    assert "hunter2" not in str(failed.value)


def test_what_may_be_named() -> None:
    for word in (
        "six",
        "six==1.16",
        "Six >= 1.0, <2",
        "pandas[excel,html]~=2.0",
        "six; python_version > '3'",
        "a.b-c_d",
    ):
        assert check_package(word) == ""
    for word in ("/tmp/what?/a#b/six-1.0-py3-none-any.whl", "https://example.com/six-1.0-py3-none-any.whl#sha256=ab"):
        assert check_package(word) == word
    assert check_package("six @ https://example.com/s.whl ; os_name == 'posix'") == "https://example.com/s.whl"
    for word in ("six.tar.gz", "/tmp/six", "/tmp/six.zip", "https://example.com/six", "file:///tmp/six"):
        with pytest.raises(DeclarationError, match="--pip-build"):
            check_package(word)
        assert check_package(word, build=True)
    for word in ("-r x", "--index-url=https://x", "six\n--index-url https://x", "./six", "", "git+https://x/y", "six x",
                 "six==1 @ https://x"):  # fmt: skip
        with pytest.raises(DeclarationError):
            check_package(word, build=True)
    told = "from https://u:p@example.com/simple/?key=1: 'https://t@h/x?a=b#c'"
    assert without_secrets(told) == "from https://example.com/simple/ 'https://h/x#c'"
