"""How the training stack gets onto a VM: the start-up script itself, with programs that fail as networks do.

The script runs against a folder for a disk. On its path are the programs below, and of this machine's only those that
move text and files: nothing here can change the machine.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from transient_magics.catalog import DRIVER
from transient_magics.controller.vms.startup import account_script, controller_script, startup_script

TOOLS = ("bash", "cat", "chmod", "cp", "grep", "mkdir", "mv", "rm", "sed", "sh", "touch")
PLACES = (
    "/dev/nvidia", "/etc/", "/opt/transient", "/proc/devices", "/run/transient", "/sys/bus", "/usr/local/bin/transient",
    "/var/lib/transient",
)  # fmt: skip
KERNEL, LATEST = "6.1.0-22-cloud-amd64", "6.1.0-56-cloud-amd64"
SOURCES = """\
Types: deb deb-src
Suites: bookworm bookworm-updates
Components: main
"""
APT_GET = """
case "$*" in
*update*) fails update; exit 0 ;;
*--download-only*) fails download; exit 0 ;;
esac
for word; do
  case $word in
  nvidia-kernel-dkms) touch "$ROOT/modules/nvidia" "$ROOT/modules/nvidia-uvm" ;;
  linux-image-cloud-amd64) touch "$ROOT/kernel.installed" ;;
  esac
done
fails install
"""
PYTHON = """
[ "$1 $2 $3" = '-m venv --clear' ]
mkdir -p "$4/bin"
printf '#!/bin/sh\\nexec pip "$@"\\n' > "$4/bin/pip"
chmod 755 "$4/bin/pip"
mkdir -p "$4/lib/python3.11/site-packages/nvidia/cusolver/lib"
"""
# As kmod with what Debian writes into /etc/modprobe.d: `install nvidia modprobe -i nvidia-current $CMDLINE_OPTS`, and
# the same for nvidia-uvm. modinfo knows modules, not such rules.
MODINFO = '[ -e "$ROOT/modules/$1" ]'
MODPROBE = """
fails modprobe
[ -e "$ROOT/modules/$1" ] && exit 0
case $1 in nvidia | nvidia-uvm) [ -e "$ROOT/modules/nvidia-current${1#nvidia}" ] ;; *) exit 1 ;; esac
"""
SMI = 'fails smi; [ "$*" = -L ]; if [ -e "$ROOT/no-device" ]; then echo "No devices found"; else echo "GPU 0: T4"; fi'
# The repository's key, as this file's tests have it: one line with its fingerprint.
CURL = """
fails curl
while [ "$1" != -o ]; do shift; done
cp "$ROOT/key" "$2"
"""
GPG = """
case "$*" in
*--import*) cp "$6" "$2/imported" ;;
*--export*) grep -x "$6" "$2/imported" ;;
esac
"""
PROGRAMS = {
    "apt-get": APT_GET, "apt-cache": '[ "$1" = show ]; grep -qx "${2#linux-headers-}" "$ROOT/headers"',
    "python3.11": PYTHON, "pip": "fails pip", "modinfo": MODINFO, "modprobe": MODPROBE, "nvidia-smi": SMI,
    "ldconfig": "", "systemctl": '[ "$1" != mask ] || fails mask', "uname": '[ "$1" = -r ]; cat "$ROOT/kernel"',
    "sleep": "", "sync": "", "curl": CURL, "gpg": GPG, "mknod": 'touch "$3"',
}  # fmt: skip
NOTED = """#!/bin/sh
set -e
echo "{name} $*" >> "$ROOT/calls"
fails() {{
  left=0
  if [ -e "$ROOT/fails.$1" ]; then read -r left < "$ROOT/fails.$1"; fi
  if [ "$left" -gt 0 ]; then echo $((left - 1)) > "$ROOT/fails.$1"; echo "$1 fails" >&2; exit 100; fi
}}
{text}
"""


class Vm:
    """A VM's disk, what its programs were called with, and how often which of them fails."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (
            "bin",
            "modules",
            "etc/apt/sources.list.d",
            "etc/ld.so.conf.d",
            "sys/bus/pci/devices",
            "dev",
            "opt",
            "proc",
            "run",
            "var/lib",
            "usr/local/bin",
        ):
            (root / folder).mkdir(parents=True)
        for name in TOOLS:
            (root / "bin" / name).symlink_to(str(shutil.which(name)))
        for name, text in PROGRAMS.items():
            path = root / "bin" / name
            path.write_text(NOTED.format(name=name, text=text), encoding="utf-8")
            path.chmod(0o700)
        (root / "etc/os-release").write_text("ID=debian\n", encoding="utf-8")
        (root / "key").write_text(f"{DRIVER.fingerprint}\n", encoding="utf-8")
        (root / "proc/devices").write_text("Character devices:\n195 nvidia\n235 nvidia-uvm\n", encoding="utf-8")
        (root / "etc/apt/sources.list.d/debian.sources").write_text(SOURCES, encoding="utf-8")
        self.kernel(KERNEL, headers=(KERNEL, LATEST))

    def kernel(self, running: str, headers: tuple[str, ...]) -> None:
        (self.root / "kernel").write_text(f"{running}\n", encoding="utf-8")
        (self.root / "headers").write_text("".join(f"{each}\n" for each in headers), encoding="utf-8")

    def fails(self, **times: int) -> None:
        for what, count in times.items():
            (self.root / f"fails.{what}").write_text(f"{count}\n", encoding="utf-8")

    def card(self, vendor: str = "0x10de") -> None:
        device = self.root / "sys/bus/pci/devices/0000:00:04.0"
        device.mkdir()
        (device / "vendor").write_text(f"{vendor}\n", encoding="utf-8")

    def boot(self, script: str) -> subprocess.CompletedProcess[str]:
        (self.root / "calls").write_text("", encoding="utf-8")
        shutil.rmtree(self.root / "run")
        (self.root / "run").mkdir()
        for place in PLACES:
            script = script.replace(place, f"{self.root}{place}")
        environment = {"PATH": f"{self.root}/bin:{self.root}/usr/local/bin", "ROOT": str(self.root)}
        return subprocess.run(
            [str(self.root / "bin/bash")], input=script, text=True, capture_output=True, env=environment, check=False,
            timeout=60, encoding="utf-8",
        )  # fmt: skip

    def called(self, *words: str) -> list[str]:
        """The calls that have all of these words in them."""
        calls = (self.root / "calls").read_text(encoding="utf-8").splitlines()
        return [each for each in calls if all(word in each for word in words)]

    @property
    def ready(self) -> bool:
        return (self.root / "run/transient-booted").exists()


@pytest.fixture
def vm(tmp_path: Path) -> Vm:
    return Vm(tmp_path / "vm")


@pytest.fixture(scope="module")
def with_gpu() -> str:
    return startup_script(with_gpu=True)


def last_step(ended: subprocess.CompletedProcess[str]) -> str:
    return [line for line in ended.stdout.splitlines() if line.startswith(("installing", "loading"))][-1]


def test_a_vm_with_a_card_has_its_driver_loaded_and_libraries_that_fit(vm: Vm, with_gpu: str) -> None:
    vm.card()
    ended = vm.boot(with_gpu)
    assert (ended.returncode, vm.ready) == (0, True), ended.stderr
    assert "GPU 0: T4" in ended.stdout
    (driver,) = vm.called("apt-get", f"linux-headers-{KERNEL}", "nvidia-driver-cuda nvidia-kernel-dkms")[1:]
    assert "--no-install-recommends" in driver
    (pinned,) = vm.called("apt-get", "nvidia-driver-pinning-580")[1:]
    assert "Components: main contrib\n" in (vm.root / "etc/apt/sources.list.d/debian.sources").read_text(
        encoding="utf-8"
    )
    keyring = vm.root / "etc/apt/keyrings/nvidia.gpg"
    assert keyring.read_text(encoding="utf-8") == f"{DRIVER.fingerprint}\n"
    listed = (vm.root / "etc/apt/sources.list.d/nvidia.list").read_text(encoding="utf-8")
    assert listed == f"deb [signed-by={keyring}] {DRIVER.repository}/ /\n"
    assert vm.called("mknod -m 666", "nvidia-uvm c 235 0")
    assert all("DPkg::Lock::Timeout=" in call for call in vm.called("apt-get"))
    calls = vm.called()
    assert calls.index(pinned) < calls.index(driver)
    masked = calls.index("systemctl mask --now apt-daily.timer apt-daily-upgrade.timer")
    assert masked < calls.index(vm.called("apt-get")[0])
    pips = vm.called("pip", "--require-hashes")
    assert len(pips) == len(vm.called("pip ")) == 3
    (cuda,) = vm.called("pip", "cuda.txt")
    assert "--no-deps" in cuda
    assert "nvidia-cudnn-cu12==9." in (vm.root / "opt/transient/cuda.txt").read_text(encoding="utf-8")
    folder = vm.root / "opt/transient/lib/python3.11/site-packages/nvidia/cusolver/lib"
    linker = vm.root / "etc/ld.so.conf.d/transient-cuda.conf"
    assert linker.read_text(encoding="utf-8") == f"{folder}\n"
    assert calls.index("ldconfig ") > calls.index(cuda)
    linker.unlink()
    again = vm.boot(with_gpu)
    assert again.returncode == 0
    assert not vm.called("apt-get"), "what is there is left as it is"
    assert vm.called("modprobe nvidia"), "at every boot"
    assert linker.exists(), "an image may have been baked before this was known"


def test_for_jobs_a_card_has_its_driver_and_no_libraries_of_tensorflow(vm: Vm, with_gpu: str) -> None:
    vm.card()
    script = startup_script(with_gpu=True, purpose="jobs")
    ended = vm.boot(script)
    assert (ended.returncode, vm.ready) == (0, True), ended.stderr
    assert vm.called("modprobe nvidia")
    (pip,) = vm.called("pip ")
    assert "--require-hashes -r" in pip
    assert "scikit-learn==" in (vm.root / "opt/transient/requirements.txt").read_text(encoding="utf-8")
    assert not (vm.root / "opt/transient/cuda.txt").exists()
    vm.boot(script)
    assert not vm.called("pip "), "what is there is left as it is"
    vm.boot(with_gpu)
    assert vm.called("pip ", "tensor2tensor.txt"), "the other stack is not taken for this one"


@pytest.mark.parametrize("vendor", ["", "0x1ae0"])
def test_a_vm_without_a_card_carries_the_driver(vm: Vm, with_gpu: str, vendor: str) -> None:
    if vendor:
        vm.card(vendor)
    assert vm.boot(with_gpu).returncode == 0
    assert vm.called("apt-get", "nvidia-kernel-dkms")
    assert not vm.called("modprobe ")


@pytest.mark.parametrize("broken", ["modprobe", "smi", "no device"])
def test_a_card_that_its_driver_does_not_find_fails_the_boot(vm: Vm, with_gpu: str, broken: str) -> None:
    vm.card()
    (vm.root / "no-device").touch() if broken == "no device" else vm.fails(**{broken: 9})
    ended = vm.boot(with_gpu)
    assert (ended.returncode != 0, vm.ready) == (True, False)
    assert last_step(ended) == "loading the NVIDIA driver"


def test_so_it_is_when_the_image_has_the_driver(vm: Vm) -> None:
    script = account_script(with_gpu=True)
    assert vm.boot(script).returncode == 0
    vm.card()
    ended = vm.boot(script)
    assert (ended.returncode, last_step(ended), vm.ready) == (1, "loading the NVIDIA driver", False)
    for module in ("nvidia", "nvidia-uvm"):  # NVIDIA's own names, as in images of others
        (vm.root / "modules" / module).touch()
    assert (vm.boot(script).returncode, vm.ready) == (0, True)
    (vm.root / "modules" / "nvidia").unlink()
    assert vm.boot(account_script(with_gpu=False)).returncode == 0, "nobody asked for it"


def test_locks_mirrors_and_networks_that_are_away_for_a_moment_are_waited_for(vm: Vm, with_gpu: str) -> None:
    vm.fails(update=3, download=4, pip=2, mask=1)
    ended = vm.boot(with_gpu)
    assert (ended.returncode, vm.ready) == (0, True), ended.stderr
    assert [call.split()[1] for call in vm.called("sleep")] == ["5", "15", "30", "5", "15", "30", "60", "5", "15"]


def test_so_are_they_where_a_controller_alone_is_installed(vm: Vm) -> None:
    vm.fails(update=3, download=4, pip=2, mask=1)
    ended = vm.boot(controller_script())
    assert (ended.returncode, vm.ready) == (0, True), ended.stderr
    assert len(vm.called("sleep")) == 9
    assert all("DPkg::Lock::Timeout=" in call for call in vm.called("apt-get"))
    assert not vm.called("nvidia")


def test_and_not_for_ever(vm: Vm, with_gpu: str) -> None:
    vm.fails(update=99, download=99)
    ended = vm.boot(with_gpu)
    assert (ended.returncode, last_step(ended)) == (100, "installing Python 3.11")
    assert len(vm.called("sleep")) == 8


def test_a_driver_that_does_not_build_is_not_built_again(vm: Vm, with_gpu: str) -> None:
    (vm.root / "bin/apt-get").write_text(
        (vm.root / "bin/apt-get")
        .read_text(encoding="utf-8")
        .replace("fails install", 'case "$*" in *nvidia-kernel-dkms*) exit 100 ;; esac'),
        encoding="utf-8",
    )
    ended = vm.boot(with_gpu)
    assert (ended.returncode, last_step(ended)) == (100, "installing the NVIDIA driver")
    assert len(vm.called("apt-get", "nvidia-kernel-dkms")) == 2, "downloaded once, installed once"


def test_another_key_than_nvidias_is_not_trusted(vm: Vm, with_gpu: str) -> None:
    (vm.root / "key").write_text("0123456789ABCDEF0123456789ABCDEF01234567\n", encoding="utf-8")
    ended = vm.boot(with_gpu)
    assert (ended.returncode, last_step(ended)) == (1, "installing the NVIDIA driver")
    assert "another key" in ended.stderr
    assert not (vm.root / "etc/apt/sources.list.d/nvidia.list").exists()


def test_a_kernel_whose_headers_debian_no_longer_keeps_makes_room_for_the_latest_once(vm: Vm, with_gpu: str) -> None:
    vm.kernel(KERNEL, headers=(LATEST,))
    ended = vm.boot(with_gpu)
    assert (ended.returncode, vm.ready) == (0, False)
    assert vm.called()[-1] == "systemctl reboot"
    assert (vm.root / "kernel.installed").exists()
    assert not vm.called("pip")
    vm.kernel(LATEST, headers=(LATEST,))
    assert vm.boot(with_gpu).returncode == 0
    assert vm.called("apt-get", f"linux-headers-{LATEST}", "nvidia-kernel-dkms")
    assert (vm.ready, vm.called("systemctl reboot")) == (True, [])


def test_a_boot_that_ends_for_its_new_kernel_has_not_failed(vm: Vm, with_gpu: str) -> None:
    vm.kernel(KERNEL, headers=(LATEST,))
    (vm.root / "bin/systemctl").write_text('#!/bin/sh\n[ "$1" != reboot ] || kill -TERM "$PPID"\n', encoding="utf-8")
    ended = vm.boot(with_gpu)
    assert ended.returncode == -signal.SIGTERM
    assert "step: installing the latest kernel" in ended.stderr, "no word of a VM without metadata is told"
    assert "failed: " not in ended.stderr


def test_a_base_that_keeps_booting_its_old_kernel_is_not_booted_for_ever(vm: Vm, with_gpu: str) -> None:
    vm.kernel(KERNEL, headers=(LATEST,))
    assert vm.boot(with_gpu).returncode == 0
    ended = vm.boot(with_gpu)
    assert (ended.returncode, vm.ready, vm.called("systemctl reboot")) == (1, False, [])
    assert f"no headers for kernel {KERNEL}" in ended.stderr


def test_only_of_debian_is_it_known_how_to_get_a_driver(vm: Vm, with_gpu: str) -> None:
    (vm.root / "etc/os-release").write_text("ID=ubuntu\n", encoding="utf-8")
    ended = vm.boot(with_gpu)
    assert (ended.returncode, last_step(ended)) == (1, "installing the NVIDIA driver")
    (vm.root / "modules/nvidia").touch()
    assert vm.boot(with_gpu).returncode == 0, "one that the base brings is left as it is"
    assert not vm.called("apt-get", "nvidia")


def test_without_a_gpu_there_is_no_driver(vm: Vm) -> None:
    vm.card()
    assert vm.boot(startup_script(with_gpu=False)).returncode == 0
    assert vm.ready
    assert not vm.called("nvidia")
    assert not (vm.root / "opt/transient/cuda.txt").exists()
