"""Before anything is made: whether a project can have these VMs, and what to type if not.

Every question is asked of Compute Engine itself (its zones, machine types, GPUs, image, network, quotas), all at once.
What the API of Compute Engine cannot tell (rights of a service account, organization policies, whether a zone has
capacity now) is not guessed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CloudError, GoneError
from .calls import PLAIN, Calls
from .failures import REQUIRES_OS_LOGIN
from .images import FAMILY
from .translation import IMAGE
from .values import VmRequest

_SHARED_CORE = ("e2-micro", "e2-small", "e2-medium")
_BAKED_GB = 50  # of an image whose size nobody asked for


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question: its `subject`, whether it is `good`, and what there is to say about it."""

    subject: str
    good: bool
    said: str


class Examination:
    """The questions about the VMs that `requests` ask for."""

    def __init__(self, calls: Calls, project: str, requests: Sequence[VmRequest]) -> None:
        self._calls, self._project, self._requests = calls, project, requests

    async def findings(self) -> list[Finding]:
        """All answers, in the order in which a reader would ask. Never raises CloudError."""
        questions: list[tuple[str, Callable[[], Awaitable[str]]]] = []
        for zone in dict.fromkeys(each.zone for each in self._requests):
            questions.append((f"zone {zone}", lambda zone=zone: self._zone(zone)))
        for image in dict.fromkeys(each.image or IMAGE for each in self._requests):
            questions.append(("image", lambda image=image: self._image(image)))
        for network in dict.fromkeys(each.network or "default" for each in self._requests):
            questions.append((f"network {network}", lambda network=network: self._network(network)))
        questions.append(("OS Login", self._os_login))
        for region in dict.fromkeys(each.zone.rpartition("-")[0] for each in self._requests):
            questions.append((f"quotas in {region}", lambda region=region: self._quotas(region)))
        return list(await asyncio.gather(*(self._ask(subject, question) for subject, question in questions)))

    async def _ask(self, subject: str, question: Callable[[], Awaitable[str]]) -> Finding:
        try:
            return Finding(subject, True, await question())
        except CloudError as error:
            return Finding(subject, False, str(error))

    async def _zone(self, name: str) -> str:
        zone = await self._get(self._calls.clients.zones, zone=name)
        if zone.status != "UP":
            raise CloudError(f"The zone {name} is {zone.status}", fix="Choose another.")
        here = [each for each in self._requests if each.zone == name]
        machines = {each.machine_type for each in here}
        cards = {each.accelerator for each in here if each.accelerator}
        clients = self._calls.clients
        for machine in sorted(machines):
            await self._there(
                f"{name} has no machine type {machine}", clients.machine_types, zone=name, machine_type=machine
            )
        for card in sorted(cards):
            await self._there(f"{name} has no {card}", clients.accelerator_types, zone=name, accelerator_type=card)
        return f"has {', '.join(sorted(machines | cards))}"

    async def _image(self, text: str) -> str:
        parts = text.split("/")
        project = parts[parts.index("projects") + 1] if "projects" in parts else self._project
        images, name = self._calls.clients.images, parts[-1]
        fix = "Name one that `gcloud compute images list` shows."
        try:
            if "family" in parts:
                found: Any = await self._calls.call(
                    text, lambda: images.get_from_family(project=project, family=name, **PLAIN)
                )
            else:
                found = await self._calls.call(text, lambda: images.get(project=project, image=name, **PLAIN))
        except GoneError as error:
            raise CloudError(f"There is no image {text}", fix=fix) from error
        carries = ", which carries the training stack" if found.family == FAMILY else ""
        return f"{found.name} of project {project}{carries}"

    async def _network(self, text: str) -> str:
        networks, name = self._calls.clients.networks, text.rsplit("/", 1)[-1]
        parts = text.split("/")
        project = parts[parts.index("projects") + 1] if "projects" in parts else self._project
        try:
            await self._calls.call(text, lambda: networks.get(project=project, network=name, **PLAIN))
        except GoneError as error:
            fix = "Name another with --network, or type `gcloud compute networks create default`."
            raise CloudError(f"Project {project} has no network {name}", fix=fix) from error
        return "is there"

    async def _os_login(self) -> str:
        """Whether VMs take the cluster's own SSH key: with OS Login they would not."""
        projects = self._calls.clients.projects
        project = await self._calls.call(
            f"project {self._project}", lambda: projects.get(project=self._project, **PLAIN)
        )
        common = {item.key: item.value for item in project.common_instance_metadata.items}
        if common.get("enable-oslogin", "").lower() not in ("true", "1", "yes"):
            return "is off in the project, so VMs take the cluster's own key"
        # A VM's own metadata goes before the project's.
        return (
            "is on in the project; these VMs turn it off for themselves, which will be refused if an organization "
            f"policy demands it (`gcloud org-policies describe {REQUIRES_OS_LOGIN} --effective --project "
            f"{self._project}` tells)"
        )

    async def _quotas(self, name: str) -> str:
        """Compare what is left of each quota with what is wanted."""
        region = await self._get(self._calls.clients.regions, region=name)
        here = [each for each in self._requests if each.zone.rpartition("-")[0] == name]
        left = {quota.metric: (quota.limit - quota.usage, quota.limit) for quota in region.quotas}
        said = []
        for metrics, wanted in needs(here).items():
            known = [(left[metric], metric) for metric in metrics if metric in left]
            if not known:
                continue
            (free, limit), metric = max(known)
            if free < wanted:
                page = f"https://console.cloud.google.com/iam-admin/quotas?project={self._project}"
                raise CloudError(
                    f"The quota {metric} in {name} has {free:g} of {limit:g} left, and {wanted:g} are wanted",
                    fix=f"Declare fewer, choose another region, or ask for more at {page}.",
                )
            said.append(f"{metric} {free:g} free, {wanted:g} wanted")
        return "; ".join(said) or "none that we know of applies"

    async def _there(self, otherwise: str, client: Any, **what: str) -> None:
        try:
            await self._get(client, **what)
        except GoneError as error:
            raise CloudError(otherwise, fix="`transient catalog GPU` lists the zones that have a GPU.") from error

    async def _get(self, client: Any, **what: str) -> Any:
        whole: dict[str, Any] = {"project": self._project, **what, **PLAIN}
        return await self._calls.call(next(reversed(what.values())), lambda: client.get(**whole))


def needs(requests: Sequence[VmRequest]) -> dict[tuple[str, ...], float]:
    """How much of which quota of a region these VMs take; of several metrics the one with most left counts.

    Transient VMs use the preemptible quotas where a project has some, else the ordinary ones.
    """
    wanted: Counter[tuple[str, ...]] = Counter()
    for each in requests:
        transient = each.provisioning_model != "standard"
        if each.accelerator:
            name = each.accelerator.removeprefix("nvidia-").removeprefix("tesla-").replace("-", "_").upper()
            metric = f"NVIDIA_{name}_GPUS"
            wanted[(f"PREEMPTIBLE_{metric}", metric) if transient else (metric,)] += each.accelerator_count or 1
        if (cores := vcpus(each.machine_type)) and each.machine_type.startswith(("n1-", "e2-")):  # they share a quota
            wanted[("PREEMPTIBLE_CPUS", "CPUS") if transient else ("CPUS",)] += cores
        if each.external_ip:
            wanted["IN_USE_ADDRESSES",] += 1
        wanted["SSD_TOTAL_GB",] += each.disk_gb or _BAKED_GB
        wanted["INSTANCES",] += 1
    return {metrics: float(count) for metrics, count in wanted.items()}


def vcpus(machine_type: str) -> int:
    """vCPUs of `n1-standard-4` (4), `n1-custom-4-16384` (4), `e2-small` (2); 0 where the name does not tell."""
    if machine_type in _SHARED_CORE:
        return 2
    parts = machine_type.split("-")
    number = parts[2] if len(parts) > 2 else ""
    return int(number) if number.isdigit() else 0
