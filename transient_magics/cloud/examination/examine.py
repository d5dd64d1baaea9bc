"""Checks before anything is created: can a project have these VMs, and what to type if not.

All questions go to Google, simultaneously. Compute Engine answers about zones, machine types, GPUs,
images, networks and quotas; Cloud Resource Manager and IAM answer about rights and organization
policies. A question that these credentials may not ask is reported as `unknown` without a guess.
Whether a zone has capacity now is not checked.

A VM without an external address reaches the internet by Cloud NAT, and Google by Private Google
Access. A VM that installs its software needs the internet; one with a baked image needs only
Google's own services (the bucket). Compute Engine gives such a VM neither by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
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
from ..values import IMAGE, VmRequest, place_of
from . import policies

if TYPE_CHECKING:
    from google.cloud import compute_v1

_MOST = 100  # permissions in one request


ALL = (
    *permissions_for(set(Purpose) - {Purpose.BAKE, Purpose.ADVICE}),
    *EXTERNAL_ADDRESS,
    *SERVICE_ACCOUNT,
    *OWN_IMAGE,
)
"""All permissions of a user who neither builds images nor asks for advice on capacity."""

_MAKING = ("storage.buckets.create", "storage.buckets.list")


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question.

    Attributes
    ----------
    subject
        What the question is about.
    good
        Whether the planned VMs pass. An unanswered question passes: nothing forbids them.
    text
        The whole answer.
    fix
        The part of the text that tells what to do; '' if there is nothing to do.
    answered
        Whether Google answered. If not, `fix` tells how to get an answer.
    """

    subject: str
    good: bool
    text: str
    fix: str = ""
    answered: bool = True


def bad(subject: str, error: CloudError) -> Finding:
    """Return the finding for an error."""
    return Finding(subject, False, str(error), error.fix)


class _UnknownError(Exception):
    """A question that these credentials may not ask: why (a clause), and what to type."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why, fix)
        self.why = why
        self.fix = fix


_Answer = str | list[Finding]
_Question = Callable[[], Awaitable[_Answer]]


class Examination:
    """The questions about VMs in a project.

    Parameters
    ----------
    calls
        How Google's services are called.
    whole
        The project as Compute Engine describes it.
    project
        Its ID.
    requests
        The VMs.
    firewall
        Whether the cluster creates firewall rules.
    bucket
        The name of the bucket; '' for none.
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
        self._calls = calls
        self._whole = whole
        self._project = project
        self._requests = requests
        self._firewall = firewall
        self._bucket = bucket

    async def findings(self) -> list[Finding]:
        """Return all answers, in the order of interest. Never raises CloudError."""
        questions = self._questions()
        answers = await asyncio.gather(
            *(self._ask(subject, question) for subject, question in questions)
        )
        return [finding for found in answers for finding in found]

    def _questions(self) -> list[tuple[str, _Question]]:
        """Return the subjects with their questions, in the order of interest."""
        requests = self._requests
        questions = list[tuple[str, _Question]]()
        questions.append((f"rights in {self._project}", self._rights))
        accounts = (request.service_account for request in requests if request.service_account)
        for account in dict.fromkeys(accounts):
            questions.append((f"service account {account}", partial(self._account, account)))
        for zone in dict.fromkeys(request.zone for request in requests):
            questions.append((f"zone {zone}", partial(self._zone, zone)))
        for image in dict.fromkeys(request.image or IMAGE for request in requests):
            disks = [
                request.disk_gb
                for request in requests
                if (request.image or IMAGE) == image and request.disk_gb
            ]
            questions.append(("image", partial(self._image, image, disks)))
        for network in dict.fromkeys(request.network or "default" for request in requests):
            questions.append((f"network {network}", partial(self._network, network)))
        regions = {
            region: [request for request in requests if _region(request) == region]
            for region in map(_region, requests)
        }
        for region, here in regions.items():
            if inside := [request for request in here if not request.external_ip]:
                question = partial(self._way_out, region, inside)
                questions.append((f"way out in {region}", question))
        questions.append(("OS Login", self._os_login))
        questions.append(("organization policies", self._policies))
        for region, here in regions.items():
            questions.append((f"quotas in {region}", partial(self._quotas, region, here)))
        questions.append(("quotas of the project", self._quotas_everywhere))
        return questions

    async def _ask(self, subject: str, question: _Question) -> list[Finding]:
        try:
            answer = await question()
        except _UnknownError as unknown:
            text = f"unknown: {unknown.why}. {unknown.fix}"
            return [Finding(subject, True, text, unknown.fix, answered=False)]
        except CloudError as error:
            return [bad(subject, error)]
        if isinstance(answer, str):
            return [Finding(subject, True, answer)]
        return answer

    async def _rights(self) -> str:
        required = needed(self._requests, firewall=self._firewall, bucket=self._bucket)
        try:
            missing = await lacking(self._calls, self._project, required, self._bucket)
        except CloudError as error:
            raise _unasked(error) from error
        # Such a network is used by a right on it, which its own project grants.
        if self._requests and all(
            place_of(request.network, self._project)[0] != self._project
            for request in self._requests
        ):
            missing = [
                permission
                for permission in missing
                if not permission.startswith(("compute.subnetworks.", "compute.networks."))
            ]
        if not missing:
            return f"all {len(required)} permissions that this takes"
        roles = dict.fromkeys(failures.role_of(permission) for permission in missing)
        remedies = [
            f"{failures.NAMES[role]} (`{failures.grant(role, self._project)}`)" for role in roles
        ]
        raise AccessError(
            f"The credentials in use lack {_some(missing)}",
            fix=f"Ask the project's owner for {' and '.join(remedies)}.",
        )

    async def _account(self, named: str) -> str:
        """Return that the credentials may give this service account to a VM, or raise."""
        if named != "default":
            account = named
        else:
            account = self._whole.default_service_account
        if not account:
            fix = (
                "Create one with the commands of docs/accounts.md, and name it with "
                "--service-account."
            )
            raise CloudError(
                f"Project {self._project} has no default service account of Compute Engine",
                fix=fix,
            )
        path = f"/v1/projects/-/serviceAccounts/{account}:testIamPermissions"
        try:
            answer = await ask(
                self._calls, self._project, IAM, path, {"permissions": [failures.ACT_AS]}
            )
        except GoneError as error:
            fix = "Create it with the commands of docs/accounts.md, or name another."
            raise CloudError(f"There is no service account {account}", fix=fix) from error
        except CloudError as error:
            raise _unasked(error) from error
        if failures.ACT_AS in answer.get("permissions", ()):
            return "may be given to the controller's VM"
        raise AccessError(
            f"The credentials in use may not give a VM the service account {account} "
            f"({failures.ACT_AS})",
            fix=f"Type `{failures.let_use(account, self._project)}`, or declare without "
            "--service-account.",
        )

    async def _policies(self) -> _Answer:
        planned = policies.PlannedResources(self._project, self._requests, bool(self._bucket))
        try:
            found, unasked = await policies.forbidden(self._calls, planned)
        except CloudError as error:
            raise _unasked(error, self._project, "roles/orgpolicy.policyViewer") from error
        answers: list[Finding] = []
        for policy in found:
            subject = f"organization policy {policy.constraint}"
            error = AccessError(
                f"The organization policy forbids these VMs: {policy.why}", fix=policy.fix
            )
            answers.append(bad(subject, error))
        if not answers:
            answers.append(Finding("organization policies", True, "no known policy forbids it"))
        if unasked:
            fix = f"Type `{failures.enable(policies.SERVICE, self._project)}` to enable that API."
            text = f"unknown: {', '.join(unasked)} could not be read. {fix}"
            subject = "managed organization policies"
            answers.append(Finding(subject, True, text, fix, answered=False))
        return answers

    async def _way_out(self, region: str, inside: Sequence[VmRequest]) -> str:
        try:
            return await way_out(self._calls, self._project, region, inside)
        except AccessError as error:
            raise _UnknownError(error.what, error.fix) from error

    async def _zone(self, name: str) -> str:
        zone = await self._get(self._calls.clients.zones, zone=name)
        if zone.status != "UP":
            raise CloudError(f"The zone {name} is {zone.status}", fix="Use another zone.")
        here = [request for request in self._requests if request.zone == name]
        machines = {request.machine_type for request in here}
        cards = {request.accelerator for request in here if request.accelerator}
        clients = self._calls.clients
        ends = list[str]()
        for machine in sorted(machines):
            absent = f"{name} has no machine type {machine}"
            what = {"zone": name, "machine_type": machine}
            ends.append(await self._end_of(absent, clients.machine_types, **what))
        for card in sorted(cards):
            absent = f"{name} has no {card}"
            what = {"zone": name, "accelerator_type": card}
            ends.append(await self._end_of(absent, clients.accelerator_types, **what))
        return "; ".join([f"has {', '.join(sorted(machines | cards))}", *filter(None, ends)])

    async def _image(self, text: str, disks: Iterable[int]) -> str:
        """Return the image in words. `disks` are the declared sizes of its disks, in GB."""
        project, name = place_of(text, self._project)
        images = self._calls.clients.images
        fix = "Name an image that `gcloud compute images list` shows."
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
            raise CloudError(f"The image {text} does not exist", fix=fix) from error
        if (least := min(disks, default=0)) and least < found.disk_size_gb:
            what = f"{found.name} does not fit on a disk of {least} GB"
            raise CloudError(what, fix=f"Declare with --disk {found.disk_size_gb}GB or more.")
        purpose = next(
            (purpose for purpose, family in FAMILIES.items() if family == found.family), ""
        )
        carries = ""
        if purpose:
            carries = f", which carries the stack for {purpose}"
        return f"{found.name} of project {project}{carries}"

    async def _network(self, text: str) -> str:
        networks = self._calls.clients.networks
        project, name = place_of(text, self._project)
        if self._firewall and project != self._project:
            raise across_projects(project, name)
        try:
            network = await self._calls.call(
                text, lambda: networks.get(project=project, network=name, **PLAIN)
            )
        except GoneError as error:
            fix = (
                f"Name another with --network, or type `gcloud compute networks create {name} "
                f"--project {project}`."
            )
            raise CloudError(f"Project {project} has no network {name}", fix=fix) from error
        custom = "auto_create_subnetworks" in network and not network.auto_create_subnetworks
        unnamed = any(
            not request.subnet
            for request in self._requests
            if (request.network or "default") == text
        )
        if custom and unnamed:
            fix = "Name one with --subnet: `gcloud compute networks subnets list` shows them."
            raise CloudError(
                f"Network {name} does not create subnetworks automatically, and none is named",
                fix=fix,
            )
        return "is there"

    async def _os_login(self) -> str:
        """Return whether OS Login is on: VMs with it would ignore the cluster's own SSH key."""
        common = {item.key: item.value for item in self._whole.common_instance_metadata.items}
        if common.get("enable-oslogin", "").lower() not in ("true", "1", "yes"):
            return "is off in the project, so VMs accept the cluster's own key"
        # A VM's own metadata overrides the project's.
        return (
            "is on in the project; these VMs turn it off for themselves, which fails if an "
            "organization policy requires OS Login (`gcloud org-policies describe "
            f"{policies.OS_LOGIN} --effective --project "
            f"{self._project}` shows it)"
        )

    async def _quotas(self, name: str, here: Sequence[VmRequest]) -> str:
        region = await self._get(self._calls.clients.regions, region=name)
        return policies.compare(region.quotas, policies.needs(here), f"in {name}", self._project)

    async def _quotas_everywhere(self) -> str:
        required = policies.needs_everywhere(self._requests)
        return policies.compare(
            self._whole.quotas, required, f"of project {self._project}", self._project
        )

    async def _end_of(self, absent: str, client: Any, **what: str) -> str:
        """Return when a resource ends, as Compute Engine announces it; raise if it is absent."""
        try:
            found = await self._get(client, **what)
        except GoneError as error:
            raise CloudError(
                absent, fix="`transient catalog GPU` lists the zones that have a GPU."
            ) from error
        end = end_of(found.name, found.deprecated)
        if found.deprecated.state in WITHDRAWN:
            raise CloudError(f"{absent} any more: {end}", fix="Declare another GPU.")
        return end

    async def _get(self, client: Any, **what: str) -> Any:
        whole: dict[str, Any] = {"project": self._project, **what, **PLAIN}
        return await self._calls.call(next(reversed(what.values())), lambda: client.get(**whole))


def _unasked(error: CloudError, project: str = "", role: str = "") -> _UnknownError:
    """Return the reason why a question has no answer; `role` is the one that permits it."""
    denied = isinstance(error, AccessError) and not isinstance(error, ConsumerError)
    fix = error.fix
    if denied and role:
        fix = f"Type `{failures.grant(role, project)}` to get this right."
    return _UnknownError(error.what, fix)


def _some(missing: Sequence[str]) -> str:
    shown = ", ".join(missing[:3])
    if len(missing) > 3:
        return f"{shown} and {len(missing) - 3} more permissions"
    return shown


def _region(request: VmRequest) -> str:
    return request.zone.rpartition("-")[0]


_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")


async def way_out(calls: Calls, project: str, region: str, requests: Sequence[VmRequest]) -> str:
    """Return how VMs without an external address reach what they need.

    Raises
    ------
    CloudError
        If they cannot: with neither Cloud NAT nor, for baked images, Private Google Access.
    """
    owner, network = place_of(requests[0].network or "default", project)
    subnet = await _subnetwork(calls, owner, region, network, requests[0].subnet)
    if await _nat(calls, owner, region, network, subnet):
        return "by Cloud NAT"
    if any(not request.image for request in requests):
        router = f"--region {region} --project {owner}"
        raise CloudError(
            "VMs without an external address install their software from the internet, and "
            f"network {network} has no "
            f"Cloud NAT in {region}",
            fix=f"Type `gcloud compute routers create transient-nat --network {network} {router} "
            "&& gcloud compute routers nats create transient-nat --router transient-nat "
            f"--auto-allocate-nat-external-ips --nat-all-subnet-ip-ranges {router}` (NAT costs "
            "money), or bake an image (`%transient_image build`).",
        )
    if subnet is not None and not subnet.private_ip_google_access:
        raise CloudError(
            "VMs without an external address cannot reach Google's services from subnetwork "
            f"{subnet.name}: it has "
            "neither Cloud NAT nor Private Google Access",
            fix=f"Type `gcloud compute networks subnets update {subnet.name} --region {region} "
            f"--project {owner} "
            "--enable-private-ip-google-access`.",
        )
    if subnet is not None:
        return "to Google's services by Private Google Access"
    return "unknown: no subnetwork is named"


async def _subnetwork(
    calls: Calls, owner: str, region: str, network: str, asked: str
) -> compute_v1.Subnetwork | None:
    """Return the subnetwork of VMs in a region; None if the network has none, or several."""
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
        fix = "`gcloud compute networks subnets list` shows the subnetworks."
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


# Permissions of a declaration, from the calls that it makes (`calling/permissions.py`).
#
# `lacking` asks Google which of them the credentials have. Rights on a single bucket count; rights
# on a single network or image do not appear in the project's answer.


def needed(requests: Sequence[VmRequest], *, firewall: bool, bucket: str) -> tuple[str, ...]:
    """Return the permissions in the project that these VMs need."""
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


async def lacking(calls: Calls, project: str, required: Sequence[str], bucket: str) -> list[str]:
    """Return the `required` permissions that the credentials lack. Raises CloudError."""
    path = f"/v1/projects/{project}:testIamPermissions"
    granted: set[str] = set()
    for at in range(0, len(required), _MOST):
        answer = await ask(
            calls, project, RESOURCE_MANAGER, path, {"permissions": list(required[at : at + _MOST])}
        )
        granted.update(answer.get("permissions", ()))
    missing = [permission for permission in required if permission not in granted]
    if bucket and (
        stored := [permission for permission in missing if permission.startswith("storage.")]
    ):
        granted |= await _of_bucket(calls, project, bucket, stored)
    return [permission for permission in missing if permission not in granted]


async def _of_bucket(calls: Calls, project: str, bucket: str, required: Iterable[str]) -> set[str]:
    """Return the required permissions that the credentials have in the bucket itself.

    An existing bucket needs no right to create one.
    """
    query = [("permissions", permission) for permission in required if permission not in _MAKING]
    try:
        answer = await ask(
            calls, project, STORAGE, f"/storage/v1/b/{bucket}/iam/testPermissions", query=query
        )
    except CloudError:  # no bucket, or no right to read its policy: the project's answer holds
        return set()
    return {*answer.get("permissions", ()), *_MAKING}


def _elsewhere(image: str) -> bool:
    return "projects/" in image
