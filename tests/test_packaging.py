"""The wheel holds everything that the package needs, and importing the extension stays light."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.conftest import DURATIONS, TESTS
from tools import package
from transient_magics.version import VERSION

ROOT = Path(__file__).parent.parent
HEAVY = ("google.cloud", "tensorflow", "asyncssh", "aiohttp", "anywidget", "pandas")


@pytest.mark.slow
def test_the_wheel_carries_widgets_templates_and_locks(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"transient_magics/_templates/{path.name}" for path in (ROOT / "templates").iterdir()} <= names
    locks = {name.rpartition("/")[2] for name in names if "/_locks/" in name}
    assert locks == {"training.txt", "light.txt", "controller.txt", "tensor2tensor.txt", "cuda.txt"}
    assert package.problems(wheel) == []
    panels = {name for name in names if "_widgets/" in name}
    assert panels == {
        f"transient_magics/_widgets/{name}"
        for name in ("cluster.js", "declare.js", "plan.js", "stalls.js", "panel.css")
    }
    assert {
        "transient_magics/py.typed",
        "transient_magics/catalog/prices.csv",
        "transient_emulator/__main__.py",
    } <= names


def bundled() -> list[str]:
    """The packages whose code is in the panels: production packages of the lock without the bundler."""
    lock = json.loads((ROOT / "widgets" / "package-lock.json").read_text(encoding="utf-8"))
    names = [
        path.removeprefix("node_modules/") for path, row in lock["packages"].items() if path and not row.get("dev")
    ]
    return [name for name in names if not name.startswith(("esbuild", "@esbuild/"))]


def test_each_bundled_package_has_its_notice_in_the_wheel_and_in_the_bundles() -> None:
    assert bundled() == ["uplot"]
    notices = (ROOT / "THIRD_PARTY.md").read_text(encoding="utf-8")
    for name in bundled():
        text = (ROOT / "widgets" / "node_modules" / name / "LICENSE").read_text(encoding="utf-8")
        assert text.strip() in notices
        holder = re.findall(r"Copyright \(c\) .*", text)[0]
        for path in (ROOT / "widgets" / "dist").iterdir():
            content = path.read_text(encoding="utf-8")
            if name in content.lower():
                assert holder in content, path.name


def test_the_workflows_run_what_exists_and_check_before_they_publish() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    release, docs, check = (
        yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))["jobs"]
        for name in ("release", "docs", "check")
    )
    assert {"run": ".ci/run"} in check["check"]["steps"]
    assert release["check"]["uses"] == "./.github/workflows/check.yml"
    assert release["build"]["needs"] == "check"
    for jobs in (release, docs):
        assert jobs["publish"]["needs"] == "build"
        for step in jobs["build"]["steps"]:
            for target in re.findall(r"^make (\w+)", step.get("run", "")):
                assert target in targets
    assert "startsWith(github.ref, 'refs/tags/')" in release["publish"]["if"]
    assert {"run": "make package"} in release["build"]["steps"]


def test_a_tag_is_released_only_with_its_version_and_a_dated_changelog(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=f"the tag is v9.9, and the version is {VERSION}"):
        package.check_tag("v9.9", ROOT)
    (tmp_path / "transient_magics").mkdir()
    (tmp_path / "transient_magics" / "version.py").write_text('VERSION = "1.2"\n', encoding="utf-8")
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text("## 1.2, not released yet\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="has no heading"):
        package.check_tag("v1.2", tmp_path)
    changes.write_text("## 1.2, 2026-12-01\n", encoding="utf-8")
    package.check_tag("v1.2", tmp_path)


def test_the_start_up_script_is_found_and_fits_into_instance_metadata() -> None:
    from transient_magics.controller.vms.startup import startup_script

    script = startup_script(with_gpu=True)
    assert "tensor2tensor==1.15.7" in script
    assert "nvidia-cudnn-cu12==9." in script
    assert "--hash=sha256:" in script
    assert len(script.encode()) < 256 * 1024
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, encoding="utf-8").returncode == 0


@pytest.mark.slow
def test_a_controllers_vm_installs_what_a_controller_imports_and_no_tensorflow() -> None:
    from transient_magics.controller.vms.startup import controller_script

    script = controller_script()
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, encoding="utf-8").returncode == 0
    pinned = set(re.findall(r"^([a-z0-9-]+)==", script, re.MULTILINE))
    assert not pinned & {"tensorflow", "tensor2tensor"}  # NumPy comes with Optuna, which conducts studies there
    code = (
        "import sys, importlib.metadata as m\n"
        "import transient_magics.controller.__main__, transient_magics.controller.cluster\n"
        "import transient_magics.controller.programs.preflight, transient_magics.cloud as c\n"
        "c.preload()\n"
        "of = m.packages_distributions()\n"
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "print(*{each.lower().replace('_', '-') for name in tops for each in of.get(name, ())})"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    beside = {"transient-magics", "setuptools", "tornado"}  # the last two are imported only where they are
    assert set(ended.stdout.split()) - beside <= pinned


@pytest.mark.slow
def test_the_account_of_users_code_may_do_nothing_as_root(tmp_path: Path) -> None:
    from transient_magics.controller.vms.startup import USER, account_script

    script = account_script(with_gpu=False, sudoers=str(tmp_path))
    plain = {"PATH": os.environ["PATH"]}
    for _ in range(2):  # at every boot
        subprocess.run(["bash"], input=script, text=True, check=True, env=plain, encoding="utf-8")
        (rules,) = tmp_path.iterdir()
        assert rules.name > "google_sudoers", "sudo takes the last rule that fits"
        assert "." not in rules.name, "sudo passes over such files"
        assert (rules.read_text(encoding="utf-8"), rules.stat().st_mode & 0o777) == (
            f"{USER} ALL=(ALL:ALL) !ALL\n",
            0o440,
        )
    rules.unlink()
    subprocess.run(
        ["bash"],
        input=script,
        text=True,
        check=True,
        env={**plain, "GCE_METADATA_HOST": "169.254.169.254"},
        encoding="utf-8",
    )
    assert not list(tmp_path.iterdir()), "an emulated VM has the accounts of the machine that it runs on"


def test_the_extension_imports_nothing_heavy() -> None:
    code = (
        "import sys, IPython; shell = IPython.InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'transient_magics')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert ended.stdout.strip().splitlines()[-1] == "[]"


def test_no_file_names_a_registry_or_a_place_on_one_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    if listed.returncode:
        pytest.skip("this is no checkout, and nobody tells which files are of it")
    assert "README.md" in listed.stdout.split("\0")
    words = ["pypi" + ".org", "files.python" + "hosted", "registry.npm" + "js", "/ro" + "ot/", "/wo" + "rk/"]
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix not in (".png", ".ipynb") and path.exists():
            content = path.read_text(errors="replace", encoding="utf-8")
            assert not [word for word in words if word in content], name


def test_the_files_whose_durations_are_stored_exist() -> None:
    assert [name for name in json.loads(DURATIONS.read_text(encoding="utf-8")) if not (TESTS / name).is_file()] == []
