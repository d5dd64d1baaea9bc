"""The hour that is paid for: from the first VM to the last thing that is left, with the parts that users have.

Clusters are declared, trained on and deleted through their handles, images are built as `transient image build` does;
nothing here has a way of its own to a VM. Each stage has a limit, says how it ended, and does not keep the next ones
from being tried. Whatever happens, what was made is deleted at the end; should this program be killed, the controllers
of its clusters end them (`--idle`), and should those be killed too, Compute Engine deletes every VM at the moment that
it carries.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ...errors import ClusterError, TransientError
from ...journal import ClusterState, events
from ...protocol import layout
from ...spec import ClusterSpec, render_money
from .. import text
from ..declaring import Declaration
from ..handles import Cluster, Run
from ..launching import declare, is_free
from ..programs import ask
from ..project.images import Build, build_image
from ..project.orphans import sweep
from ..training import train
from . import estimate, lesson
from .diagnosis import Line

_BOOT_SLACK, _RUN_SECONDS, _TAKEN_SECONDS, _DELETE_SECONDS = 300.0, 900.0, 240.0, 420.0
_BUILD_SECONDS, _END_SECONDS = 2100.0, 180.0
_HOUR = 3600.0
_CLOCKS_SECONDS = 5.0
_HOPELESS_SECONDS = 120.0
_OVER = "not begun: the hour is over."
Said = tuple[str, str, Mapping[str, Any]]
"""How a stage ended: verdict, sentence, facts."""


@dataclass
class Course:
    """One hour. `say` is told each stage as it ends; `image`: one with the training stack that is there already.

    `mark`: what the names of its clusters end with.
    """

    cpu: Declaration
    gpu: Declaration
    mark: str
    image: str
    folder: Path
    say: Callable[[str], None]
    stages: list[Line] = field(default_factory=list)
    clusters: list[Cluster] = field(default_factory=list)
    builds: list[Build] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def run(self) -> tuple[Line, ...]:
        """All stages. What was interrupted is cleared away, too; then the interruption goes on."""
        try:
            if first := self._cluster("a VM without a GPU", self.cpu, bare=True):
                self._stage("the end of that cluster", lambda: self._deleted(first), clearing=True)
            if not self.image:
                self._stage("an image with the training stack", self._built)
            gpu = replace(self.gpu, image=self.image or self.gpu.image)
            if second := self._cluster("a VM with a GPU", gpu, bare=not self.image):
                self._on_the_gpu(second)
                self._stage("the end of the GPU's cluster", lambda: self._deleted(second), clearing=True)
        finally:
            self._clear_away()
        return tuple(self.stages)

    def _on_the_gpu(self, cluster: Cluster) -> None:
        self._stage("the end that Compute Engine enforces", lambda: self._enforced(cluster))
        runs: list[Run] = []
        self._stage("a step of training", lambda: self._trained(cluster, runs))
        if runs:
            self._stage("driver and TensorFlow", lambda: self._seen(runs[0]))
            self._stage("the checkpoint", lambda: self._shipped(runs[0]))
        self._stage("a notice, as Compute Engine gives it", lambda: self._taken(cluster))

    def _within(self, limit: float) -> float:
        """So many seconds, or what is left of the hour (0: nothing)."""
        return max(0.0, min(limit, self._began + _HOUR - time.monotonic()))

    def _stage(self, subject: str, work: Callable[[], Said], *, clearing: bool = False) -> bool:
        """Do it, and have written down how it ended; whether it went well."""
        began = time.monotonic()
        try:
            verdict, said, facts = work() if clearing or self._within(1.0) else ("bad", _OVER, {})
        except (TransientError, OSError) as error:
            verdict, said, facts = "bad", str(error), {}
        line = Line(subject, verdict, said, seconds=max(0.1, time.monotonic() - began), facts=facts)
        self.stages.append(line)
        self.say(str(line))
        return verdict != "bad"

    def _cluster(self, subject: str, declaration: Declaration, *, bare: bool) -> Cluster | None:
        """A cluster that answers, or None."""
        found: list[Cluster] = []
        name = declaration.name or ""

        def come_up() -> Said:
            try:
                cluster = declare(declaration)
            finally:  # an interruption may come when its folder is made and its controller is not started yet
                if not is_free(name):
                    found.append(Cluster(name))
                    self.clusters.append(found[0])
            spec = _spec(cluster)
            return _ready(cluster, self._within(spec.max_seconds - _BOOT_SLACK if bare else 900.0))

        well = self._stage(subject, come_up)
        if found and not well:
            self._stage("the end of that cluster", lambda: self._deleted(found[0]), clearing=True)
        return found[0] if well else None

    def _built(self) -> Said:
        spec = self.gpu
        emulated = spec.project is None
        build = build_image(
            project=spec.project, zone=spec.zone[0] if spec.zone else None, gpu=not emulated,
            network=spec.network or "", subnet=spec.subnet or "", external_ip=spec.external_ip,
        )  # fmt: skip
        self.builds.append(build)
        build.wait(self._within(_BUILD_SECONDS))
        self.image = build.name
        steps = [(each.what, round(each.time / 1e9 - build.spec.declared_at)) for each in build.events
                 if isinstance(each, events.ImageStep)]  # fmt: skip
        said = f"{build.name} is there; it stays, and clusters that are declared from this machine boot from it."
        return "good", said, {"steps": steps}

    def _enforced(self, cluster: Cluster) -> Said:
        """The moment that Compute Engine has written down for each VM, beside the one that was asked for."""
        spec = _spec(cluster)
        vms = self._testimony(cluster)["vms"]
        told = {vm["name"]: vm["ends_at"] or vm["ends"] for vm in vms}
        facts = {"asked": spec.ends_at, "vms": vms}
        late = [name for name, moment in told.items() if not _near(moment, spec.ends_at)]
        if not told or late:
            return "bad", f"no end, or another one than asked for, is written for {', '.join(late) or 'any VM'}.", facts
        at = text.clock(spec.ends_at)
        return "good", f"Compute Engine deletes {' and '.join(sorted(told))} by itself at {at}.", facts

    def _trained(self, cluster: Cluster, runs: list[Run]) -> Said:
        run = train(
            source=lesson.SOURCE, cluster=cluster, train_steps=lesson.STEPS, checkpoint_steps=lesson.STEPS,
            check=False, name="lesson",
        )  # fmt: skip
        runs.append(run)
        result = run.wait(self._within(_RUN_SECONDS))
        facts = {"seconds": result.seconds, "loss": result.loss, "metrics": result.metrics}
        return "good", f"{result.step} steps, loss {text.number(result.loss)}.", facts

    def _seen(self, run: Run) -> Said:
        found = lesson.seen(run.logs("worker-0", 2000))
        if found is None:
            return "bad", "the code's own words are not in the log of worker-0.", {}
        gpus, driver = found["gpus"], "; ".join(found["driver"])
        if gpus:
            return (
                "good",
                f"TensorFlow {found['tensorflow']} sees {', '.join(gpus)}: {driver or 'no nvidia-smi'}.",
                found,
            )
        if self.gpu.project is None:
            return "good", f"TensorFlow {found['tensorflow']} sees no GPU, which emulated VMs do not have.", found
        return "bad", f"TensorFlow {found['tensorflow']} sees no GPU ({driver or 'nor is there a driver'}).", found

    def _shipped(self, run: Run) -> Said:
        """The checkpoint comes back from the bucket, by the way that users take."""
        place, shipped = run.place, run.state.shipped
        folder = self.folder / "fetched"
        run.fetch(folder)
        here = sorted(path.name for path in (folder / layout.CHECKPOINTS).glob("model.ckpt-*.index"))
        facts = {"shipped_step": run.state.shipped_step, "files": here}
        if not here:
            return "bad", "no checkpoint came home.", facts
        if place is None or not shipped:
            return "note", "it came to this machine; no bucket is used.", facts
        return "good", "it is in the bucket, and came back from there.", facts

    def _taken(self, cluster: Cluster) -> Said:
        """What simulateMaintenanceEvent does: the notice in the VM, the VM's end, and what Compute Engine logs."""
        asked = time.time()
        cluster.revoke("worker-0")
        gone = cluster.follow(lambda state: not state.vms["worker-0"].living, _TAKEN_SECONDS)
        noticed = [each for each in cluster.events("vm.preemption_notice") if getattr(each, "vm", "") == "worker-0"]
        ended = [each for each in cluster.events() if isinstance(each, (events.VmRevoked, events.VmDeleted))
                 and each.vm == "worker-0"]  # fmt: skip
        done = [each for each in self._testimony(cluster)["operations"] if each["target"].endswith("worker-0")]
        facts = {
            "notice_after_seconds": _after(noticed, asked),
            "told_by_the_vm": [bool(getattr(each, "noticed", 0)) for each in noticed],
            "gone_after_seconds": _after(ended, asked),
            "signal": [getattr(each, "signal", each.kind) for each in ended],
            "operations": done,
        }
        logged = any(each["type"] == "compute.instances.preempted" for each in done)
        what = f"{'logged as a preemption' if logged else 'not logged as a preemption'}"
        if gone is None:
            return "bad", f"the VM is still there after {_TAKEN_SECONDS:.0f} s; {what}.", facts
        if not noticed:
            return "bad", f"the VM went {facts['gone_after_seconds'][0]:.0f} s later without a notice; {what}.", facts
        by = "metadata `preempted`" if facts["told_by_the_vm"][0] else "the API alone"
        notice, end = facts["notice_after_seconds"][0], facts["gone_after_seconds"][0]
        return "good", f"the notice came {notice:.0f} s later, by {by}, the end {end:.0f} s later; {what}.", facts

    def _deleted(self, cluster: Cluster) -> Said:
        cluster.delete(_DELETE_SECONDS)
        cost = cluster.cost().total
        return "good", f"no VM is left; its VMs' time cost {render_money(cost)}.", {"dollars": cost}

    def _clear_away(self) -> None:
        """End what goes on, look for what is left, and say what it cost."""
        for build in self.builds:
            if build.state == "building":
                self._stage("the end of the image's build", lambda build=build: _ended(build), clearing=True)
        for cluster in self.clusters:
            if not cluster.state.over:
                self._stage(f"the end of {cluster.name}", lambda cluster=cluster: self._deleted(cluster), clearing=True)
        if self.clusters or self.builds:
            self._stage("what is left", self._left, clearing=True)
            self._stage("the bill", self._bill, clearing=True)
        shutil.rmtree(self.folder / "fetched", ignore_errors=True)

    def _left(self) -> Said:
        found = self._testimony(clear=True)
        swept = sweep(self.gpu.project)
        stray = [*(each["name"] for each in (*found["vms"], *found["disks"])), *found["rules"], *found["objects"]]
        stray += [*swept.names, *(each.name for each in swept.rules)]
        facts = {**found, "swept": swept.names}
        kept = [f"the image {name} (`transient image delete {name}{self._option}`)" for name in found["images"]]
        if self.gpu.project and self.gpu.bucket != "none":
            kept.append("the bucket, empty of what this put there")
        stays = f"; what stays: {' and '.join(kept)}" if kept else ""
        if stray:
            return "bad", f"left: {', '.join(dict.fromkeys(stray))}{stays}.", facts
        return "good", f"no VM, disk, firewall rule or object{stays}.", facts

    def _bill(self) -> Said:
        dollars = sum(cluster.cost().total for cluster in self.clusters)
        for build in self.builds:
            last = build.events[-1].time / 1e9 if build.events else build.spec.declared_at
            seconds = min(max(0.0, last - build.spec.declared_at), estimate.BUILD_SECONDS)
            hourly = estimate.build_hourly(build.spec.zone, external_ip=build.spec.external_ip)
            dollars += hourly * seconds / 3600
        billed = "" if self.gpu.project else ", if it were billed: the emulator bills nothing"
        said = f"{render_money(dollars)}{billed}, by the time of VMs, with their disks and addresses."
        return "good", said, {"dollars": dollars}

    def _testimony(self, cluster: Cluster | None = None, *, clear: bool = False) -> dict[str, Any]:
        chosen = [cluster] if cluster else self.clusters
        zones = {vm.zone for each in chosen for vm in each.state.vms.values() if vm.running_at}
        question = {
            "project": self.gpu.project, "clusters": [_spec(each).to_dict() for each in chosen],
            "zones": sorted(zones),
            "images": [] if cluster else [each.spec.to_dict() for each in self.builds], "clear": clear,
        }  # fmt: skip
        return ask("witness", "Asking Compute Engine", stdin=json.dumps(question))

    @property
    def _option(self) -> str:
        return f" --project {self.gpu.project}" if self.gpu.project else ""


def _ready(cluster: Cluster, limit: float) -> Said:
    """Wait until the cluster answers, or for so long that trouble which does not pass is taken for its answer."""
    trouble: list[float] = []

    def reached(state: ClusterState) -> bool:
        if state.phase in ("deleting", "deleted"):
            raise ClusterError(f"{cluster.name} ended: {state.reason}")
        if not state.trouble:
            trouble.clear()
        elif not trouble:
            trouble.append(time.monotonic())
        return state.phase == "ready"

    def hopeless(state: ClusterState) -> bool:
        """Whether the trouble is none of capacity, which may come, nor of VMs that still boot."""
        last = next((vm for vm in reversed(state.vms.values()) if vm.state == "refused"), None)
        lasting = bool(trouble) and time.monotonic() - trouble[0] > _HOPELESS_SECONDS
        return lasting and (last.cause != "stockout" if last else not any(vm.running_at for vm in state.living))

    deadline = time.monotonic() + limit
    while (state := cluster.follow(reached, min(5.0, limit))) is None:
        now = cluster.state
        if time.monotonic() > deadline or hopeless(now):
            waiting = ", ".join(f"{vm.name} {text.vm_words(now, vm, time.time())}" for vm in now.living) or "no VM"
            raise ClusterError(f"{cluster.name} is not ready: {waiting}", fix=now.trouble)
    spec = _spec(cluster)
    way = "Identity-Aware Proxy" if spec.through_proxy else "the emulator's relay" if spec.emulated else "its address"
    vms = {
        vm.name: {
            "machine": vm.machine_type, "gpu": vm.accelerator, "zone": vm.zone, "model": vm.provisioning_model,
            "running_after_seconds": round(vm.running_at - vm.requested_at, 1),
            "answers_after_seconds": round(vm.ready_at - vm.requested_at, 1),
        }
        for vm in state.vms.values()
    }  # fmt: skip
    refused = [each.reason for each in cluster.events("vm.refused") if isinstance(each, events.VmRefused)]
    slowest = max(vm["answers_after_seconds"] for vm in vms.values())
    said = f"{len(vms)} VMs answer by SSH, through {way}, the last one {slowest:.0f} s after it was asked for."
    return "good", said, {"way": way, "vms": vms, "refused": refused, "price": cluster.cost().source}


def _ended(build: Build) -> Said:
    """The program of a build that is asked to end deletes its VM first."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((build.directory / "controller.lock").read_text(encoding="utf-8")), signal.SIGTERM)
    deadline = time.monotonic() + _END_SECONDS
    while build.state == "building":
        if time.monotonic() > deadline:
            return "bad", f"the build of {build.name} goes on; its VM is deleted within the hour.", {}
        time.sleep(0.5)
    return "good", f"{build}.", {}


def _spec(cluster: Cluster) -> ClusterSpec:
    spec = cluster.state.spec
    if spec is None:
        raise ClusterError(f"{cluster.name} is not declared")
    return spec


def _near(moment: str, asked: float) -> bool:
    """Whether an RFC 3339 moment is the one that was asked for, in whole seconds."""
    return bool(moment) and abs(datetime.fromisoformat(moment).timestamp() - asked) < _CLOCKS_SECONDS


def _after(found: list[Any], asked: float) -> list[float]:
    return [round(each.time / 1e9 - asked, 1) for each in found]
