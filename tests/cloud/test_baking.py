"""Baking an image, against every refusal: whatever fails, the VM is deleted. And which image a cluster boots from."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from scripted_api import PROJECT, ZONE, Answer, Api, forever, instance, operation, refusal

from tests.emulator.discovery import faults
from transient_magics import places
from transient_magics.client.text import event_words
from transient_magics.cloud import ComputeEngine
from transient_magics.cloud.images import image_url
from transient_magics.controller.programs.bake import Baking
from transient_magics.controller.programs.preflight import first_requests
from transient_magics.controller.record import Recorder
from transient_magics.controller.setup import Setup
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.lookup import choose_image
from transient_magics.controller.vms.machines import vm_request
from transient_magics.controller.vms.startup import image_script, lock_hash, startup_script
from transient_magics.errors import AccessError, AlreadyExistsError, CloudError, GoneError
from transient_magics.journal import Journal, events, read, replay
from transient_magics.spec import PURPOSES, ClusterSpec, ImageSpec, PriceLine, WorkerGroup

SPEC = ImageSpec("stack", ZONE, declared_at=1e9, project=PROJECT, id="1a2b3c4d")
VM = f"zones/{ZONE}/instances/image-stack-1a2b3c4d"
ITSELF = f"zones/{ZONE}/instances/4711"
LOST = refusal(403, "forbidden", "Required 'compute.images.create' permission")


class Google:
    """A Compute Engine on which a build succeeds, but for what a test changes."""

    def __init__(self, api: Api, *told: str) -> None:
        self.api, self.status, self.labels = api, "", {}
        api.on("GET", "", {"name": PROJECT})
        api.on("POST", f"zones/{ZONE}/instances", self.insert)
        api.on("GET", VM, self.vm)
        api.on("GET", f"{VM}/getGuestAttributes", *(attribute(each) for each in told))
        api.on("GET", f"{VM}/serialPort", {"contents": "one\ntwo\nno space left on device\n"})
        api.on("POST", f"{VM}/stop", self.changes("TERMINATED"))
        api.on("DELETE", ITSELF, self.delete)
        api.on("POST", "global/images", operation())
        api.on("POST", f"zones/{ZONE}/operations/operation-1/wait", operation())
        api.on("POST", "global/operations/operation-1/wait", operation(targetId="815"))

    async def insert(self) -> dict[str, Any]:
        ((_, body),) = self.api.asked("POST", f"zones/{ZONE}/instances")
        self.status, self.labels = "RUNNING", body["labels"]
        return operation()

    def changes(self, status: str) -> Answer:
        async def answer() -> dict[str, Any]:
            self.status = status
            return operation()

        return answer

    async def vm(self) -> Any:
        return instance(SPEC.vm, status=self.status, labels=self.labels) if self.status else gone()

    async def delete(self) -> Any:
        self.status, before = "", self.status
        return operation() if before else gone()


def gone() -> tuple[int, dict[str, Any]]:
    return refusal(404, "notFound", "The VM was not found")


def attribute(text: str) -> dict[str, Any]:
    return {"queryValue": {"items": [{"namespace": "transient-magics", "key": "image", "value": text}]}}


async def bake(engine: ComputeEngine, spec: ImageSpec = SPEC, **more: float) -> list[str]:
    said: list[str] = []
    assert await Baking(spec, engine, said.append, **more).run() == "815"
    return said


@pytest.mark.parametrize("ahead", [0.0, -7 * 3600.0])
async def test_a_vm_installs_the_stack_and_its_disk_becomes_the_image(
    api: Api, engine: ComputeEngine, ahead: float
) -> None:
    api.ahead = ahead
    google = Google(api, "step: installing Python 3.11", "ready: TensorFlow 2.21.0")
    said = await bake(engine)
    assert said[1:] == [
        "installing Python 3.11", "stopping the VM", "making the image from its disk", "deleting the VM and its disk",
    ]  # fmt: skip
    ((_, vm),) = api.asked("POST", f"zones/{ZONE}/instances")
    assert vm["scheduling"]["instanceTerminationAction"] == "DELETE"
    end = datetime.fromisoformat(vm["scheduling"]["terminationTime"]).timestamp()
    assert end == pytest.approx(time.time() + 3600 + ahead, abs=60), "an hour of Compute Engine's clock"
    assert vm["labels"]["transient-magics-image"] == "stack"
    assert "ssh-keys" not in {item["key"] for item in vm["metadata"]["items"]}
    assert vm["disks"][0]["autoDelete"]
    ((_, image),) = api.asked("POST", "global/images")
    assert faults("Instance", vm) == faults("Image", image) == []
    assert (image["family"], image["sourceDisk"]) == ("transient-magics", f"zones/{ZONE}/disks/image-stack-1a2b3c4d")
    assert image["labels"]["transient-magics-lock"] == lock_hash(with_gpu=True) != lock_hash(with_gpu=False)
    assert image["description"].startswith("TensorFlow 2.21.0, NVIDIA driver, on projects/debian-cloud")
    assert not google.status


async def test_an_image_for_jobs_has_a_family_of_its_own_and_no_tensorflow(api: Api, engine: ComputeEngine) -> None:
    Google(api, "ready: Dask 2026.8.0")
    await bake(engine, replace(SPEC, purpose="jobs"))
    ((_, vm),) = api.asked("POST", f"zones/{ZONE}/instances")
    (script,) = [item["value"] for item in vm["metadata"]["items"] if item["key"] == "startup-script"]
    assert "starting Dask once" in script
    assert "tensorflow" not in script.lower()
    ((_, made),) = api.asked("POST", "global/images")
    assert (made["family"], made["labels"]["transient-magics-for"]) == ("transient-magics-jobs", "jobs")
    assert made["labels"]["transient-magics-lock"] == lock_hash(with_gpu=True, purpose="jobs")


@pytest.mark.parametrize(
    ("method", "path", "answer", "error", "words"),
    [
        ("POST", f"zones/{ZONE}/instances", refusal(404, "notFound", "no such base"), CloudError, "does not exist"),
        ("POST", f"{VM}/stop", refusal(400, "invalid", "cannot be stopped"), CloudError, "cannot be stopped"),
        ("POST", "global/images", LOST, AccessError, "roles/compute.storageAdmin"),
        ("POST", "global/operations/operation-1/wait",
         operation(error={"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'IMAGES' exceeded."}]}),
         CloudError, "IMAGES"),
        ("GET", f"{VM}/getGuestAttributes", attribute("failed: installing TensorFlow"), CloudError,
         r"(?s)failed at: installing TensorFlow \(image-stack-1a2b3c4d\).*no space left on device"),
    ],
)  # fmt: skip
async def test_whatever_fails_the_vm_is_deleted(
    api: Api, engine: ComputeEngine, method: str, path: str, answer: Answer, error: type[CloudError], words: str
) -> None:
    google = Google(api, "ready: TensorFlow 2.21.0")
    api.on(method, path, answer)
    with pytest.raises(error, match=words):
        await bake(engine)
    assert not google.status


async def test_a_script_that_never_ends_is_given_up(api: Api, engine: ComputeEngine) -> None:
    google = Google(api, "step: installing the NVIDIA driver")
    with pytest.raises(CloudError, match=r"has not ended after 0.5 s, at: installing the NVIDIA driver"):
        await bake(engine, patience=0.5)
    assert not google.status


@pytest.mark.parametrize("path", [f"{VM}/getGuestAttributes", f"{VM}/stop", "global/images"])
async def test_an_interrupted_build_deletes_its_vm(api: Api, engine: ComputeEngine, path: str) -> None:
    google = Google(api, "ready: TensorFlow 2.21.0")
    method = "GET" if path.endswith("Attributes") else "POST"
    api.on(method, path, forever)
    task = asyncio.ensure_future(bake(engine))
    await api.until_asked(method, path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not google.status


async def test_a_vm_that_is_still_being_made_is_waited_for_and_deleted(api: Api, engine: ComputeEngine) -> None:
    google, answers = Google(api, "ready: TensorFlow 2.21.0"), asyncio.Event()

    async def slowly() -> dict[str, Any]:
        await answers.wait()
        return await google.insert()

    api.on("POST", f"zones/{ZONE}/instances", slowly)
    task = asyncio.ensure_future(bake(engine))
    await api.until_asked("POST", f"zones/{ZONE}/instances")
    task.cancel()
    asyncio.get_running_loop().call_later(0.2, answers.set)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert len(api.asked("DELETE", ITSELF)) == 1
    assert not google.status


async def test_a_vm_of_its_name_that_somebody_else_made_is_left_alone(api: Api, engine: ComputeEngine) -> None:
    google = Google(api, "ready: TensorFlow 2.21.0")
    google.status, google.labels = "RUNNING", {"team": "production"}
    api.on("POST", f"zones/{ZONE}/instances", refusal(409, "alreadyExists", "The VM already exists"))
    with pytest.raises(AlreadyExistsError, match="The name is in use"):
        await bake(engine)
    assert (google.status, api.asked("DELETE", ".*")) == ("RUNNING", [])


async def test_a_vm_that_cannot_be_deleted_is_told(api: Api, engine: ComputeEngine) -> None:
    Google(api, "ready: TensorFlow 2.21.0")
    api.on("DELETE", ITSELF, refusal(403, "forbidden", "Required 'compute.instances.delete' permission"))
    with pytest.raises(
        CloudError, match="The image stack was built, but its VM image-stack-1a2b3c4d could not be deleted"
    ):
        await bake(engine)


async def test_an_image_of_that_name_is_left_alone_and_no_vm_is_made(api: Api, engine: ComputeEngine) -> None:
    Google(api)
    api.on("GET", "global/images/stack", {"name": "stack"})
    with pytest.raises(AlreadyExistsError, match="The image stack already exists"):
        await bake(engine)
    assert not api.asked("POST", ".*")


async def test_images_are_listed_and_deleted(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "global/images", {"items": [image("new", 2), image("old", 1), image("other", 3, family="x")]})
    listed = await engine.images.list()
    assert [(each.name, each.stored_gb, each.with_gpu) for each in listed] == [("old", 3.5, True), ("new", 3.5, True)]
    ours = "family = transient-magics OR family = transient-magics-jobs"
    assert api.asked("GET", "global/images")[0][0]["filter"] == ours
    with pytest.raises(GoneError):
        await engine.images.delete("old")
    api.on("DELETE", "global/images/old", LOST)
    with pytest.raises(AccessError, match=r"roles/compute\.storageAdmin"):
        await engine.images.delete("old")


def image(name: str, day: int, *, gpu: str = "yes", lock: str = "", **more: Any) -> dict[str, Any]:
    labels = {"transient-magics-lock": lock or lock_hash(with_gpu=gpu == "yes"), "transient-magics-gpu": gpu}
    return {
        "name": name, "family": "transient-magics", "status": "READY", "diskSizeGb": "50", "labels": labels,
        "id": f"90{day}", "archiveSizeBytes": "3500000000", "creationTimestamp": f"2026-01-0{day}T03:04:05.678-08:00",
    } | more  # fmt: skip


@pytest.fixture
def built_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine built the images of the second and the third day."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    for name, number in (("second", "902"), ("bare", "903")):
        with Journal(places.private(places.build(name)) / "journal.jsonl") as journal:
            journal.append(events.ImageBuilt(image=name, seconds=1.0, image_id=number))


def cluster(*gpus: str, **more: Any) -> ClusterSpec:
    price = PriceLine("n1-standard-4", 1.0, 3.0, "test")
    return ClusterSpec(
        name="c1", groups=tuple(WorkerGroup(gpu) for gpu in gpus), zones=(ZONE,), project=PROJECT, declared_at=1e9,
        prices={"t4": price, "cpu": price, "parameter-server": price}, **more,
    )  # fmt: skip


async def test_a_cluster_boots_from_the_newest_image_that_carries_its_packages(
    api: Api, engine: ComputeEngine, built_here: None
) -> None:
    there = [image("first", 1), image("second", 2), image("bare", 3, gpu="no"), image("foreign", 4, lock="0" * 12),
             image("half", 5, status="PENDING"), image("strangers", 6),
             image("older", 2, lock=lock_hash(with_gpu=False))]  # fmt: skip
    api.on("GET", "global/images", {"items": there})
    chosen = await choose_image(cluster("t4"), engine)
    assert len(api.asked("GET", "global/images")) == 1
    assert (chosen.image, chosen.gpu) == ("second", True)
    requests = first_requests(cluster("t4"), chosen)
    assert {each.image for each in requests} == {"second"}
    assert not any("pip install" in each.metadata["startup-script"] for each in requests)
    api.on("GET", "global/images", {"items": there[3:5]})
    chosen = await choose_image(cluster("t4"), engine)
    assert chosen.image == ""
    assert "%transient_image build" in chosen.why
    api.on("GET", "global/images", {"items": [image("second", 6)]})
    chosen = await choose_image(cluster("t4"), engine)
    assert chosen.image == "", "one of that name that somebody else made"
    assert "was not built from here: --image second" in chosen.why
    assert all("pip install" in each.metadata["startup-script"] for each in first_requests(cluster("t4"), chosen))


async def test_a_cluster_without_gpus_takes_images_with_and_without_their_libraries(
    api: Api, engine: ComputeEngine, built_here: None
) -> None:
    for there in (image("second", 2), image("bare", 3, gpu="no")):
        api.on("GET", "global/images", {"items": [there]})
        assert (await choose_image(cluster("cpu"), engine)).image == there["name"]


async def test_workers_with_gpus_do_not_boot_from_an_image_without_a_driver(
    api: Api, engine: ComputeEngine, built_here: None
) -> None:
    api.on("GET", "global/images", {"items": [image("bare", 3, gpu="no")]})
    assert (await choose_image(cluster("t4"), engine)).image == ""
    chosen = await choose_image(cluster("cpu"), engine)
    assert (chosen.image, chosen.gpu) == ("bare", False)
    state = replay([events.ClusterDeclared(spec=cluster("cpu").to_dict()), chosen])
    wanted = {"vm": "worker-0", "role": "worker", "slot": 0, "zone": ZONE, "machine_type": "n1-standard-4",
              "provisioning_model": "spot", "hourly": 1.0, "on_demand_hourly": 3.0}  # fmt: skip
    assert state.spec
    plain = vm_request(state.spec, events.VmRequested(accelerator="cpu", **wanted), "")
    with_gpu = vm_request(state.spec, events.VmRequested(accelerator="t4", **wanted), "")
    assert (plain.image, with_gpu.image) == ("bare", "")
    assert "nvidia-kernel-dkms" in with_gpu.metadata["startup-script"]
    own = vm_request(replace(state.spec, image_for_gpus=True), events.VmRequested(accelerator="t4", **wanted), "")
    assert own.image == "bare"
    assert "nvidia-smi -L" in own.metadata["startup-script"]
    assert "nvidia" not in plain.metadata["startup-script"]


async def test_the_controller_chooses_once_and_its_journal_says_which(
    api: Api, engine: ComputeEngine, tmp_path: Path, built_here: None
) -> None:
    api.on("GET", "global/images", {"items": [image("second", 2)]})
    access = cast(Access, SimpleNamespace(engine=engine))
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, replay([]))
        opening = Setup(tmp_path, recorder, access)
        recorder.record(events.ClusterDeclared(spec=cluster("t4").to_dict()))
        await opening.prepare()
        await opening.prepare()
    assert [path for _, path, _, _ in api.requests] == ["v1/services/6F81-5844-456A/skus", "global/images"]
    state = replay(read(tmp_path / "journal.jsonl"))
    assert state.spec
    assert state.spec.image == "second"
    assert event_words(read(tmp_path / "journal.jsonl")[-1]) == "VMs boot from second: it carries the stack already"


async def test_a_cluster_for_jobs_boots_from_an_image_of_its_own_kind_and_the_others_from_theirs(
    api: Api, engine: ComputeEngine, built_here: None
) -> None:
    light = image("second", 2, family="transient-magics-jobs", lock=lock_hash(with_gpu=True, purpose="jobs"))
    light["labels"]["transient-magics-for"] = "jobs"
    api.on("GET", "global/images", {"items": [light, image("bare", 3, gpu="no")]})
    for kind, purpose in (("second", "jobs"), ("bare", "training")):
        chosen = await choose_image(cluster("cpu", purpose=purpose), engine)
        assert chosen.image == kind
    assert [each.purpose for each in await engine.images.list()] == ["jobs", "training"]
    api.on("GET", "global/images", {"items": [image("bare", 3, gpu="no")]})
    chosen = await choose_image(cluster("cpu", purpose="jobs"), engine)
    assert "%transient_image build --for jobs bakes" in chosen.why
    for each in first_requests(cluster("cpu", purpose="jobs"), chosen):
        script = each.metadata["startup-script"]
        assert "distributed==" in script
        assert "tensorflow" not in script


async def test_who_may_not_list_images_goes_without(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "global/images", refusal(403, "forbidden", "Required 'compute.images.list' permission"))
    assert "compute.images.list" in (await choose_image(cluster("t4"), engine)).why


async def test_the_examination_says_which_image(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "", {"name": PROJECT})
    api.on("GET", "global/images/family/mine", image("second", 2))
    findings = await engine.examine(first_requests(cluster("t4", image="family/mine")))
    said = {each.subject: each.text for each in findings}
    assert said["image"] == f"second of project {PROJECT}, which carries the stack for training"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("stack", "global/images/stack"),
        ("family/stack", "global/images/family/stack"),
        ("global/images/stack", "global/images/stack"),
        ("projects/p/global/images/family/f", "projects/p/global/images/family/f"),
        ("https://www.googleapis.com/compute/v1/projects/p/global/images/i",) * 2,
    ],
)
def test_images_of_the_project_have_short_names(text: str, url: str) -> None:
    assert image_url(text) == url


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("with_gpu", [True, False])
def test_the_scripts_are_bash_and_install_the_stack_in_one_way(with_gpu: bool, purpose: str) -> None:
    shared = []
    for script in (write(with_gpu=with_gpu, purpose=purpose) for write in (startup_script, image_script)):
        assert script.startswith("#!/bin/bash\n")
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False, encoding="utf-8").returncode == 0
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", "-"], input=script, text=True, check=True, encoding="utf-8")
        shared.append(script[script.index("install_stack() {") : script.index("if ! stack_is_there")])
        assert ("nvidia-kernel-dkms" in script) == with_gpu
        assert ("tensor" in script.lower()) == (purpose == "training")
        assert "distributed==" in script
        assert len(script.encode()) < 256 * 1024
    assert shared[0] == shared[1]


@pytest.mark.slow
def test_the_scripts_tell_how_far_they_are_and_how_they_failed(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            told.append((self.path, self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    # A Python that can tell, and that has no TensorFlow.
    python = tmp_path / "transient-python"
    python.write_text(
        f'#!/bin/sh\n[ "$#" = 2 ] && exec {sys.executable} -S "$@"\necho "no TensorFlow" >&2; exit 1\n',
        encoding="utf-8",
    )
    python.chmod(0o700)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"}
        ended, booted = (
            subprocess.run(
                ["bash"], input=script, text=True, capture_output=True, env=environment, check=False, encoding="utf-8"
            )
            for script in (image_script(with_gpu=True), startup_script(with_gpu=False))
        )
        server.shutdown()
    assert ended.returncode == 1
    assert "no TensorFlow" in ended.stderr
    assert booted.returncode == 0, booted.stderr
    place = "/computeMetadata/v1/instance/guest-attributes/transient-magics"
    assert told == [
        (f"{place}/image", "step: starting TensorFlow once"),
        (f"{place}/image", "failed: starting TensorFlow once"),
        (f"{place}/boot", "ready: the training stack"),
    ]
