"""The refusals of active organization policies, in Compute Engine's words."""

from __future__ import annotations

from typing import Any

from transient_magics import catalog

from ..rest import wire, wording
from .state import MANAGED, POLICIES, Project

_PAGE = "https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"
_SEE = f"See {_PAGE} for more information."
# The names of list constraints end so. All others are boolean.
_LISTS = ("Access", "Projects", "Locations", "Services", "Seconds", "Restrictions")


def check_instance(state: Project, project: str, zone: str, body: dict[str, Any]) -> None:
    """Check a new VM against all policies.

    Parameters
    ----------
    state
        The policies that are active.
    project, zone, body
        The request of the insert.

    Raises
    ------
    ApiError
        412 if a policy forbids the VM.
    """
    name = f"projects/{project}/zones/{zone}/instances/{body.get('name')}"
    items = (body.get("metadata") or {}).get("items") or ()
    metadata = {item["key"]: item.get("value") for item in items}
    number = wire.fixed_id("projects", project)
    if state.lacks("gcp.resourceLocations") and not _in_europe(catalog.region(zone)):
        raise _violated(
            f"Location ZONE:{zone} violates constraint constraints/gcp.resourceLocations "
            f"on the resource {name}."
        )
    if state.lacks("compute.requireOsLogin") and not _has_os_login(metadata):
        raise _violated(
            f"Constraint constraints/compute.requireOsLogin violated for project {number}. {_SEE}"
        )
    interfaces = body.get("networkInterfaces") or ()
    external = any(interface.get("accessConfigs") for interface in interfaces)
    if state.lacks("compute.vmExternalIpAccess") and external:
        raise _violated(
            f"Constraint constraints/compute.vmExternalIpAccess violated for project {number}. "
            f"Add instance {name} to the constraint to use external IP with it."
        )
    violated = _managed(state, metadata, external)
    if violated:
        reasons = [
            f'"constraints/{constraint}": "{wording.POLICY_ENFORCED}"' for constraint in violated
        ]
        raise _violated(
            f"Operation denied by org policy on resource '{name}': [{', '.join(reasons)}]."
        )
    shielded = (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
    if state.lacks("compute.requireShieldedVm") and not shielded:
        raise _violated(
            "Constraint constraints/compute.requireShieldedVm violated for project "
            f"projects/{project}. Secure Boot is not enabled in the 'shielded_instance_config' "
            f"field. {_SEE}"
        )
    if state.lacks("compute.trustedImageProjects"):
        _check_images(project, number, body)


def _has_os_login(metadata: dict[str, Any]) -> bool:
    """Return whether a VM uses OS Login, unless its metadata turns that off."""
    return str(metadata.get("enable-oslogin", "TRUE")).upper() == "TRUE"


def _check_images(project: str, number: str, body: dict[str, Any]) -> None:
    trusted = POLICIES["compute.trustedImageProjects"]["listPolicy"]["allowedValues"]
    for disk in body.get("disks") or ():
        image = wire.path_of((disk.get("initializeParams") or {}).get("sourceImage") or "")
        if not image:
            continue
        owner = image.split("/")[1] if image.startswith("projects/") else project
        if f"projects/{owner}" not in trusted:
            raise _violated(
                "Constraint constraints/compute.trustedImageProjects violated for project "
                f"{number}. Use of images from project {owner} is prohibited."
            )


def _managed(state: Project, metadata: dict[str, Any], external: bool) -> list[str]:
    """Return the managed constraints that a new VM violates.

    Those about metadata check its keys.
    """
    guest_attributes = str(metadata.get("enable-guest-attributes", "FALSE")).upper() == "TRUE"
    violations = (not _has_os_login(metadata), external, guest_attributes)
    violates = dict(zip(MANAGED, violations, strict=True))
    return [name for name, violated in violates.items() if violated and state.lacks(name)]


def check_guest_attributes(state: Project, project: str) -> None:
    """Raise ApiError 412 if a policy forbids reading guest attributes."""
    if state.lacks("compute.disableGuestAttributesAccess"):
        number = wire.fixed_id("projects", project)
        raise _violated(
            "Constraint constraints/compute.disableGuestAttributesAccess violated for project "
            f"{number}."
        )


def check_bucket(state: Project, location: str) -> None:
    """Raise ApiError 412 if a policy forbids a bucket in this location."""
    if state.lacks("gcp.resourceLocations") and not _in_europe(location.lower()):
        raise _violated(f"'{location}' violates constraint 'constraints/gcp.resourceLocations'")


def effective(state: Project, constraint: str) -> dict[str, Any]:
    """Return the effective policy of `constraints/...`, as Cloud Resource Manager describes it."""
    name = constraint.removeprefix("constraints/")
    if state.lacks(name):
        policy = POLICIES[name]
    elif name.endswith(_LISTS):
        policy = {"listPolicy": {"allValues": "ALLOW"}}
    else:
        policy = {"booleanPolicy": {}}
    return {"constraint": f"constraints/{name}", **policy}


def evaluated(state: Project, project: str, constraint: str) -> dict[str, Any]:
    """Return a constraint's effective policy, as the Organization Policy API v2 describes it."""
    if constraint in MANAGED:
        rule: dict[str, Any] = {"enforce": state.lacks(constraint)}
    else:
        policy = effective(state, constraint)
        if "listPolicy" in policy:
            rule = _rule(policy["listPolicy"])
        else:
            rule = {"enforce": bool(policy["booleanPolicy"])}
    name = f"projects/{wire.fixed_id('projects', project)}/policies/{constraint}"
    return {"name": name, "spec": {"rules": [rule]}}


def _rule(listed: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of v2 for a list policy of v1."""
    match listed.get("allValues"):
        case "ALLOW":
            return {"allowAll": True}
        case "DENY":
            return {"denyAll": True}
    fields = ("allowedValues", "deniedValues")
    return {"values": {field: listed[field] for field in fields if field in listed}}


def _in_europe(region: str) -> bool:
    # The emulated policy allows `in:europe-locations`.
    return region.startswith("europe-")


def _violated(message: str) -> wire.ApiError:
    return wire.ApiError(412, "conditionNotMet", message)
