"""Before anything is made: whether a project can have these VMs, and what to type if not.

All questions are asked of Google itself, all at once: Compute Engine knows its zones, machine
types, GPUs, images, networks and quotas, Cloud Resource Manager and IAM know rights and
organization policies. What nobody may ask here is `not told`, and is not guessed; neither is
whether a zone has capacity now.

A VM without an external address reaches the internet by Cloud NAT, and Google by Private Google
Access. A VM that installs its software needs the internet; one with a baked image needs Google's
own services alone (the bucket). Compute Engine gives such a VM neither by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import AccessError, CloudError, ConsumerError, GoneError
from ...spec.image import FAMILIES
from ..advice import WITHDRAWN, end_of
from ..calling import failures
from ..calling.calls import IAM, PLAIN, RESOURCE_MANAGER, STORAGE, Calls, ask
from ..calling.failures import across_projects
from ..calling.permissions import (
    EXTERNAL_ADDRESS,
    OWN_IMAGE,
    SERVICE_ACCOUNT,
    Purpose,
    permissions_for,
)
from ..values import IMAGE, VmRequest
from . import policies

if TYPE_CHECKING:
    from google.cloud import compute_v1

_MOST = 100  # in one question


ALL = (
    *permissions_for(set(Purpose) - {Purpose.BAKE, Purpose.ADVICE}),
    *EXTERNAL_ADDRESS,
    *SERVICE_ACCOUNT,
    *OWN_IMAGE,
)
"""What a user needs at most who neither builds images nor asks for advice."""

_MAKING = ("storage.buckets.create", "storage.buckets.list")


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question: its `subject`, whether it is `good`, and what there is to say
    about it.

    `said` is the whole text; `fix` the part of it that says what to do, where there is something to
    be done. One that is not `told` could not be answered: it is good, as nothing that is known
    forbids it, and its fix is how to be told.
    """

    subject: str
    good: bool
    said: str
    fix: str = ""
    told: bool = True


def bad(subject: str, error: CloudError) -> Finding:
    """The finding that an error is."""
    return Finding(subject, False, str(error), error.fix)


class _NotTold(Exception):
    """Nobody may be asked that here: why (a clause), and what to type to be told."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why, fix)
        self.why = why
        self.fix = fix


_Answer = str | list[Finding]


class Examination:
    """The questions about the VMs that `requests` ask for, in a project that Compute Engine
    describes as `whole`.
    """

    def __init__(
        self,
        calls: Calls,
        whole: compute_v1.Project,
        project: str,
        requests: Sequence[VmRequest],
        *,
        firewall: bool,
        bucket: str,
    ) -> None:
        """`firewall`: whether there will be firewall rules; `bucket`: the name of the bucket, or
        nothing.
        """
        self._calls = calls
        self._whole = whole
        self._project = project
        self._requests = requests
        self._firewall = firewall
        self._bucket = bucket

    async def findings(self) -> list[Finding]:
        """All answers, in the order in which a reader would ask. Never raises CloudError."""
        requests = self._requests
        asked = list[tuple[str, Callable[[], Awaitable[_Answer]]]]()
        asked.append((f"rights in {self._project}", self._rights))
        for account in dict.fromkeys(
            request.service_account for request in requests if request.service_account
        ):
            asked.append(
                (f"service account {account}", lambda account=account: self._account(account))
            )
        for zone in dict.fromkeys(each.zone for each in requests):
            asked.append((f"zone {zone}", lambda zone=zone: self._zone(zone)))
        for image in dict.fromkeys(each.image or IMAGE for each in requests):
            disks = [
                each.disk_gb for each in requests if (each.image or IMAGE) == image and each.disk_gb
            ]
            asked.append(("image", lambda image=image, disks=disks: self._image(image, disks)))
        for network in dict.fromkeys(each.network or "default" for each in requests):
            asked.append((f"network {network}", lambda network=network: self._network(network)))
        regions = {
            region: [each for each in requests if _region(each) == region]
            for region in map(_region, requests)
        }
        for region, here in regions.items():
            if inside := [each for each in here if not each.external_ip]:
                asked.append(
                    (f"way out in {region}", lambda r=region, i=inside: self._way_out(r, i))
                )
        asked.append(("OS Login", self._os_login))
        asked.append(("organization policies", self._policies))
        for region in regions:
            asked.append(
                (f"quotas in {region}", lambda region=region: self._quotas(region, regions[region]))
            )
        asked.append(("quotas of the project", self._quotas_everywhere))
        answers = await asyncio.gather(
            *(self._ask(subject, question) for subject, question in asked)
        )
        return [finding for found in answers for finding in found]

    async def _ask(self, subject: str, question: Callable[[], Awaitable[_Answer]]) -> list[Finding]:
        try:
            answer = await question()
        except _NotTold as unknown:
            return [
                Finding(
                    subject,
                    True,
                    f"not told: {unknown.why}. {unknown.fix}",
                    unknown.fix,
                    told=False,
                )
            ]
        except CloudError as error:
            return [bad(subject, error)]
        if isinstance(answer, str):
            return [Finding(subject, True, answer)]
        return answer

    async def _rights(self) -> str:
        wanted = needed(self._requests, firewall=self._firewall, bucket=self._bucket)
        try:
            missing = await lacking(self._calls, self._project, wanted, self._bucket)
        except CloudError as error:
            raise _unasked(error) from error
        # A network of another project is used by a right on it, which that project gives.
        if self._requests and all(
            place_of(request.network, self._project)[0] != self._project
            for request in self._requests
        ):
            missing = [
                each
                for each in missing
                if not each.startswith(("compute.subnetworks.", "compute.networks."))
            ]
        if not missing:
            return f"all {len(wanted)} permissions that this takes"
        roles = dict.fromkeys(failures.role_of(each) for each in missing)
        raise AccessError(
            f"The credentials in use lack {_some(missing)}",
            fix="Ask the project's owner for "
            + " and ".join(
                f"{failures.NAMES[role]} (`{failures.grant(role, self._project)}`)"
                for role in roles
            )
            + ".",
        )

    async def _account(self, named: str) -> str:
        """Whether the credentials may give this service account to a VM."""
        if named != "default":
            account = named
        else:
            account = self._whole.default_service_account
        if not account:
            fix = (
                "Make one by the commands of docs/accounts.md, and name it with --service-account."
            )
            raise CloudError(
                f"Compute Engine has no service account of its own in project {self._project}",
                fix=fix,
            )
        path = f"/v1/projects/-/serviceAccounts/{account}:testIamPermissions"
        try:
            answer = await ask(
                self._calls, self._project, IAM, path, {"permissions": [failures.ACT_AS]}
            )
        except GoneError as error:
            fix = "Make it by the commands of docs/accounts.md, or name another."
            raise CloudError(f"There is no service account {account}", fix=fix) from error
        except CloudError as error:
            raise _unasked(error) from error
        if failures.ACT_AS in answer.get("permissions", ()):
            return "may be given to the controller's VM"
        raise AccessError(
            f"The credentials in use may not give a VM the service account {account} ({failures.ACT_AS})",
            fix=f"Type `{failures.let_use(account, self._project)}`, or declare without --service-account.",
        )

    async def _policies(self) -> _Answer:
        wanted = policies.Wanted(self._project, self._requests, bool(self._bucket))
        try:
            found, unasked = await policies.forbidden(self._calls, wanted)
        except CloudError as error:
            raise _unasked(error, self._project, "roles/orgpolicy.policyViewer") from error
        answers: list[Finding] = []
        for policy in found:
            subject = f"organization policy {policy.constraint}"
            answers.append(
                bad(subject, AccessError(f"It stands in the way: {policy.why}", fix=policy.fix))
            )
        if not answers:
            answers.append(Finding("organization policies", True, "no known policy forbids it"))
        if unasked:
            fix = f"Type `{failures.enable(policies.SERVICE, self._project)}` to be told."
            said = f"not told: {', '.join(unasked)} could not be asked. {fix}"
            answers.append(Finding("managed organization policies", True, said, fix, told=False))
        return answers

    async def _way_out(self, region: str, inside: Sequence[VmRequest]) -> str:
        try:
            return await way_out(self._calls, self._project, region, inside)
        except AccessError as error:
            raise _NotTold(error.what, error.fix) from error

    async def _zone(self, name: str) -> str:
        zone = await self._get(self._calls.clients.zones, zone=name)
        if zone.status != "UP":
            raise CloudError(f"The zone {name} is {zone.status}", fix="Choose another.")
        here = [request for request in self._requests if request.zone == name]
        machines = {each.machine_type for each in here}
        cards = {each.accelerator for each in here if each.accelerator}
        clients = self._calls.clients
        ends = list[str]()
        for machine in sorted(machines):
            without = f"{name} has no machine type {machine}"
            ends.append(
                await self._there(without, clients.machine_types, zone=name, machine_type=machine)
            )
        for card in sorted(cards):
            without = f"{name} has no {card}"
            ends.append(
                await self._there(
                    without, clients.accelerator_types, zone=name, accelerator_type=card
                )
            )
        return "; ".join([f"has {', '.join(sorted(machines | cards))}", *filter(None, ends)])

    async def _image(self, text: str, disks: Iterable[int]) -> str:
        """`disks`: in GB, those that are to be made from it with a size of their own."""
        project, name = place_of(text, self._project)
        images = self._calls.clients.images
        fix = "Name one that `gcloud compute images list` shows."
        try:
            if "family" in text.split("/"):
                found = await self._calls.call(
                    text, lambda: images.get_from_family(project=project, family=name, **PLAIN)
                )
            else:
                found = await self._calls.call(
                    text, lambda: images.get(project=project, image=name, **PLAIN)
                )
        except GoneError as error:
            raise CloudError(f"There is no image {text}", fix=fix) from error
        if (least := min(disks, default=0)) and least < found.disk_size_gb:
            what = f"{found.name} does not fit on a disk of {least} GB"
            raise CloudError(what, fix=f"Declare with --disk {found.disk_size_gb}GB or more.")
        purpose = next((each for each, family in FAMILIES.items() if family == found.family), "")
        if purpose:
            carries = f", which carries the stack for {purpose}"
        else:
            carries = ""
        return f"{found.name} of project {project}{carries}"

    async def _network(self, text: str) -> str:
        networks, (project, name) = self._calls.clients.networks, place_of(text, self._project)
        if self._firewall and project != self._project:
            raise across_projects(project, name)
        try:
            network = await self._calls.call(
                text, lambda: networks.get(project=project, network=name, **PLAIN)
            )
        except GoneError as error:
            fix = f"Name another with --network, or type `gcloud compute networks create {name} --project {project}`."
            raise CloudError(f"Project {project} has no network {name}", fix=fix) from error
        custom = "auto_create_subnetworks" in network and not network.auto_create_subnetworks
        if custom and any(
            not request.subnet
            for request in self._requests
            if (request.network or "default") == text
        ):
            fix = "Name one with --subnet: `gcloud compute networks subnets list` shows them."
            raise CloudError(
                f"Network {name} makes no subnetworks by itself, and none is named", fix=fix
            )
        return "is there"

    async def _os_login(self) -> str:
        """Whether VMs take the cluster's own SSH key: with OS Login they would not."""
        common = {item.key: item.value for item in self._whole.common_instance_metadata.items}
        if common.get("enable-oslogin", "").lower() not in ("true", "1", "yes"):
            return "is off in the project, so VMs take the cluster's own key"
        # A VM's own metadata goes before the project's.
        return (
            "is on in the project; these VMs turn it off for themselves, which will be refused if an organization "
            f"policy demands it (`gcloud org-policies describe {policies.OS_LOGIN} --effective --project "
            f"{self._project}` tells)"
        )

    async def _quotas(self, name: str, here: Sequence[VmRequest]) -> str:
        region = await self._get(self._calls.clients.regions, region=name)
        return policies.compare(region.quotas, policies.needs(here), f"in {name}", self._project)

    async def _quotas_everywhere(self) -> str:
        wanted = policies.needs_everywhere(self._requests)
        return policies.compare(
            self._whole.quotas, wanted, f"of project {self._project}", self._project
        )

    async def _there(self, otherwise: str, client: Any, **what: str) -> str:
        """What Compute Engine says of its end, where it is there."""
        try:
            found = await self._get(client, **what)
        except GoneError as error:
            raise CloudError(
                otherwise, fix="`transient catalog GPU` lists the zones that have a GPU."
            ) from error
        end = end_of(found.name, found.deprecated)
        if found.deprecated.state in WITHDRAWN:
            raise CloudError(f"{otherwise} any more: {end}", fix="Declare another.")
        return end

    async def _get(self, client: Any, **what: str) -> Any:
        whole: dict[str, Any] = {"project": self._project, **what, **PLAIN}
        return await self._calls.call(next(reversed(what.values())), lambda: client.get(**whole))


def _unasked(error: CloudError, project: str = "", role: str = "") -> _NotTold:
    """What a question that failed leaves: not an answer. `role`: the one that allows to ask it."""
    denied = isinstance(error, AccessError) and not isinstance(error, ConsumerError)
    if denied and role:
        fix = f"Type `{failures.grant(role, project)}` to be told."
    else:
        fix = error.fix
    return _NotTold(error.what, fix)


def _some(missing: Sequence[str]) -> str:
    shown = ", ".join(missing[:3])
    if len(missing) > 3:
        return f"{shown} and {len(missing) - 3} more permissions"
    return shown


def _region(request: VmRequest) -> str:
    return request.zone.rpartition("-")[0]


_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")


def place_of(network: str, project: str) -> tuple[str, str]:
    """Project and name of a network, or subnetwork, that is called by its name or by a URL."""
    parts = network.split("/")
    return (parts[parts.index("projects") + 1] if "projects" in parts else project), parts[-1]


async def way_out(calls: Calls, project: str, region: str, requests: Sequence[VmRequest]) -> str:
    """How these VMs of a region, which have no external address, get out. Raises CloudError where
    they cannot.
    """
    owner, network = place_of(requests[0].network or "default", project)
    subnet = await _subnetwork(calls, owner, region, network, requests[0].subnet)
    if await _nat(calls, owner, region, network, subnet):
        return "by Cloud NAT"
    if any(not request.image for request in requests):
        router = f"--region {region} --project {owner}"
        raise CloudError(
            f"VMs without an external address install their software from the internet, and network {network} has no "
            f"Cloud NAT in {region}",
            fix=f"Type `gcloud compute routers create transient-nat --network {network} {router} && gcloud compute "
            f"routers nats create transient-nat --router transient-nat --auto-allocate-nat-external-ips "
            f"--nat-all-subnet-ip-ranges {router}` (NAT costs money), or bake an image (`%transient_image build`).",
        )
    if subnet is not None and not subnet.private_ip_google_access:
        raise CloudError(
            f"VMs without an external address reach no service of Google's from subnetwork {subnet.name}: it has "
            "neither Cloud NAT nor Private Google Access",
            fix=f"Type `gcloud compute networks subnets update {subnet.name} --region {region} --project {owner} "
            "--enable-private-ip-google-access`.",
        )
    if subnet is not None:
        return "to Google's services by Private Google Access"
    return "not known: no subnetwork is told"


async def _subnetwork(
    calls: Calls, owner: str, region: str, network: str, asked: str
) -> compute_v1.Subnetwork | None:
    """The subnetwork that VMs of a region get; None where the network has none there, or it cannot
    be told which.
    """
    if asked:
        owner, name = place_of(asked, owner)
    else:
        networks = calls.clients.networks
        found = await calls.call(
            network, lambda: networks.get(project=owner, network=network, **PLAIN)
        )
        here = [
            subnetwork for subnetwork in found.subnetworks if f"/regions/{region}/" in subnetwork
        ]
        if len(here) != 1:
            return None
        name = here[0].rpartition("/")[2]
    clients = calls.clients.subnetworks
    place = {"project": owner, "region": region, "subnetwork": name}
    try:
        return await calls.call(name, lambda: clients.get(**place, **PLAIN))
    except GoneError as error:
        fix = "`gcloud compute networks subnets list` shows those that there are."
        raise CloudError(
            f"Network {network} has no subnetwork {name} in {region}", fix=fix
        ) from error


async def _nat(
    calls: Calls, owner: str, region: str, network: str, subnet: compute_v1.Subnetwork | None
) -> bool:
    routers = calls.clients.routers
    found = await calls.call(
        f"routers of {region}", lambda: list(routers.list(project=owner, region=region, **PLAIN))
    )
    nats = [
        nat
        for router in found
        if router.network.rpartition("/")[2] == network
        for nat in router.nats
    ]
    return any(
        nat.source_subnetwork_ip_ranges_to_nat in _ALL or _lists(nat, subnet) for nat in nats
    )


def _lists(nat: compute_v1.RouterNat, subnet: compute_v1.Subnetwork | None) -> bool:
    return subnet is not None and any(
        subnetwork.name.rpartition("/")[2] == subnet.name for subnetwork in nat.subnetworks
    )


# Which permissions a declaration takes, by the calls that are made for it
# (`calling/permissions.py`).
#
# `lacking` asks Google which of them the credentials in use have. Rights on a single bucket count,
# rights on a single network or image do not show in the project's answer.


def needed(requests: Sequence[VmRequest], *, firewall: bool, bucket: str) -> tuple[str, ...]:
    """The permissions in the project that VMs like these take, with or without firewall rules and a
    bucket.
    """
    own_image = any(request.image and not _elsewhere(request.image) for request in requests)
    purposes = {Purpose.RUN, Purpose.DECLARE}
    if own_image:
        purposes.add(Purpose.IMAGES)
    if any(not request.external_ip for request in requests):
        purposes.add(Purpose.WAY_OUT)
    if firewall:
        purposes.add(Purpose.RULES)
    if bucket:
        purposes.add(Purpose.BUCKET)
    found = list(permissions_for(purposes))
    found += EXTERNAL_ADDRESS if any(request.external_ip for request in requests) else ()
    found += SERVICE_ACCOUNT if any(request.service_account for request in requests) else ()
    found += OWN_IMAGE if own_image else ()
    return tuple(found)


async def lacking(calls: Calls, project: str, wanted: Sequence[str], bucket: str) -> list[str]:
    """Those of the `wanted` permissions that the credentials do not have. Raises CloudError."""
    path = f"/v1/projects/{project}:testIamPermissions"
    granted: set[str] = set()
    for at in range(0, len(wanted), _MOST):
        answer = await ask(
            calls, project, RESOURCE_MANAGER, path, {"permissions": list(wanted[at : at + _MOST])}
        )
        granted.update(answer.get("permissions", ()))
    missing = [each for each in wanted if each not in granted]
    if bucket and (stored := [each for each in missing if each.startswith("storage.")]):
        granted |= await _of_bucket(calls, project, bucket, stored)
    return [each for each in missing if each not in granted]


async def _of_bucket(calls: Calls, project: str, bucket: str, wanted: Iterable[str]) -> set[str]:
    """What of this the credentials have in the bucket itself; one that is there needs not be made."""
    query = [("permissions", each) for each in wanted if each not in _MAKING]
    try:
        answer = await ask(
            calls, project, STORAGE, f"/storage/v1/b/{bucket}/iam/testPermissions", query=query
        )
    except CloudError:  # there is none, or nothing is told of it: what the project says holds
        return set()
    return {*answer.get("permissions", ()), *_MAKING}


def _elsewhere(image: str) -> bool:
    return "projects/" in image
