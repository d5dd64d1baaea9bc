"""How VMs without an external address reach anything: Cloud NAT to the internet, Private Google Access to Google.

A VM that installs its software needs the internet; one with a baked image needs Google's own services alone (the
bucket). Compute Engine gives such a VM neither by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import CloudError, GoneError
from ..calling.calls import PLAIN, Calls
from ..values import VmRequest

if TYPE_CHECKING:
    from google.cloud import compute_v1

_ALL = ("ALL_SUBNETWORKS_ALL_IP_RANGES", "ALL_SUBNETWORKS_ALL_PRIMARY_IP_RANGES")


def place_of(network: str, project: str) -> tuple[str, str]:
    """Project and name of a network, or subnetwork, that is called by its name or by a URL."""
    parts = network.split("/")
    return (parts[parts.index("projects") + 1] if "projects" in parts else project), parts[-1]


async def way_out(calls: Calls, project: str, region: str, requests: Sequence[VmRequest]) -> str:
    """How these VMs of a region, which have no external address, get out. Raises CloudError where they cannot."""
    owner, network = place_of(requests[0].network or "default", project)
    subnet = await _subnetwork(calls, owner, region, network, requests[0].subnet)
    if await _nat(calls, owner, region, network, subnet):
        return "by Cloud NAT"
    if any(not each.image for each in requests):
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
    return "to Google's services by Private Google Access" if subnet is not None else "not known: no subnetwork is told"


async def _subnetwork(calls: Calls, owner: str, region: str, network: str, asked: str) -> compute_v1.Subnetwork | None:
    """The subnetwork that VMs of a region get; None where the network has none there, or it cannot be told which."""
    if asked:
        owner, name = place_of(asked, owner)
    else:
        networks = calls.clients.networks
        found = await calls.call(network, lambda: networks.get(project=owner, network=network, **PLAIN))
        here = [each for each in found.subnetworks if f"/regions/{region}/" in each]
        if len(here) != 1:
            return None
        name = here[0].rpartition("/")[2]
    clients, place = calls.clients.subnetworks, {"project": owner, "region": region, "subnetwork": name}
    try:
        return await calls.call(name, lambda: clients.get(**place, **PLAIN))
    except GoneError as error:
        fix = "`gcloud compute networks subnets list` shows those that there are."
        raise CloudError(f"Network {network} has no subnetwork {name} in {region}", fix=fix) from error


async def _nat(calls: Calls, owner: str, region: str, network: str, subnet: compute_v1.Subnetwork | None) -> bool:
    routers = calls.clients.routers
    found = await calls.call(f"routers of {region}", lambda: list(routers.list(project=owner, region=region, **PLAIN)))
    nats = [nat for router in found if router.network.rpartition("/")[2] == network for nat in router.nats]
    return any(nat.source_subnetwork_ip_ranges_to_nat in _ALL or _lists(nat, subnet) for nat in nats)


def _lists(nat: compute_v1.RouterNat, subnet: compute_v1.Subnetwork | None) -> bool:
    return subnet is not None and any(each.name.rpartition("/")[2] == subnet.name for each in nat.subnetworks)
