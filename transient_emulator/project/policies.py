"""What organization policies that are on refuse, in the words in which Compute Engine says it."""

from __future__ import annotations

from typing import Any

from transient_magics import catalog

from ..rest import wire, wording
from .state import MANAGED, POLICIES, Project

_PAGE = "https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"
_SEE = f"See {_PAGE} for more information."


def check_instance(state: Project, project: str, zone: str, body: dict[str, Any]) -> None:
    """ApiError 412 where a policy forbids this VM."""
    name = f"projects/{project}/zones/{zone}/instances/{body.get('name')}"
    metadata = {item["key"]: item.get("value") for item in (body.get("metadata") or {}).get("items") or ()}
    number = wire.fixed_id("projects", project)
    if state.lacks("gcp.resourceLocations") and not _in_europe(catalog.region(zone)):
        raise _violated(
            f"Location ZONE:{zone} violates constraint constraints/gcp.resourceLocations on the resource {name}."
        )
    if state.lacks("compute.requireOsLogin") and str(metadata.get("enable-oslogin", "TRUE")).upper() != "TRUE":
        raise _violated(f"Constraint constraints/compute.requireOsLogin violated for project {number}. {_SEE}")
    outside = any(each.get("accessConfigs") for each in body.get("networkInterfaces") or ())
    if state.lacks("compute.vmExternalIpAccess") and outside:
        raise _violated(
            f"Constraint constraints/compute.vmExternalIpAccess violated for project {number}. Add instance {name} to "
            "the constraint to use external IP with it."
        )
    violated = _managed(state, metadata, outside)
    if violated:
        told = ", ".join(f'"constraints/{name}": "{wording.POLICY_ENFORCED}"' for name in violated)
        raise _violated(f"Operation denied by org policy on resource '{name}': [{told}].")
    shielded = (body.get("shieldedInstanceConfig") or {}).get("enableSecureBoot")
    if state.lacks("compute.requireShieldedVm") and not shielded:
        raise _violated(
            f"Constraint constraints/compute.requireShieldedVm violated for project projects/{project}. Secure Boot is "
            f"not enabled in the 'shielded_instance_config' field. {_SEE}"
        )
    if state.lacks("compute.trustedImageProjects"):
        trusted = POLICIES["compute.trustedImageProjects"]["listPolicy"]["allowedValues"]
        for disk in body.get("disks") or ():
            image = wire.path_of((disk.get("initializeParams") or {}).get("sourceImage") or "")
            owner = image.split("/")[1] if image.startswith("projects/") else project
            if image and f"projects/{owner}" not in trusted:
                raise _violated(
                    f"Constraint constraints/compute.trustedImageProjects violated for project {number}. Use of images "
                    f"from project {owner} is prohibited."
                )


def _managed(state: Project, metadata: dict[str, Any], outside: bool) -> list[str]:
    """The managed constraints that a VM violates; those about metadata look at its keys when it is made."""
    os_login = str(metadata.get("enable-oslogin", "TRUE")).upper() == "TRUE"
    guest_attributes = str(metadata.get("enable-guest-attributes", "FALSE")).upper() == "TRUE"
    violates = dict(zip(MANAGED, (not os_login, outside, guest_attributes), strict=True))
    return [name for name, violated in violates.items() if violated and state.lacks(name)]


def check_guest_attributes(state: Project, project: str) -> None:
    """ApiError 412 where a policy forbids to read them."""
    if state.lacks("compute.disableGuestAttributesAccess"):
        number = wire.fixed_id("projects", project)
        raise _violated(f"Constraint constraints/compute.disableGuestAttributesAccess violated for project {number}.")


def check_bucket(state: Project, location: str) -> None:
    """ApiError 412 where a policy forbids a bucket there."""
    if state.lacks("gcp.resourceLocations") and not _in_europe(location.lower()):
        raise _violated(f"'{location}' violates constraint 'constraints/gcp.resourceLocations'")


def effective(state: Project, constraint: str) -> dict[str, Any]:
    """The effective policy of `constraints/...`, as Cloud Resource Manager describes it."""
    name = constraint.removeprefix("constraints/")
    default = {"listPolicy": {"allValues": "ALLOW"}} if name.endswith(_LISTS) else {"booleanPolicy": {}}
    return {"constraint": f"constraints/{name}", **(POLICIES[name] if state.lacks(name) else default)}


def evaluated(state: Project, project: str, constraint: str) -> dict[str, Any]:
    """The effective policy of a constraint, as the Organization Policy API v2 describes it."""
    if constraint in MANAGED:
        rule: dict[str, Any] = {"enforce": state.lacks(constraint)}
    else:
        old = effective(state, constraint)
        rule = _rule(old["listPolicy"]) if "listPolicy" in old else {"enforce": bool(old["booleanPolicy"])}
    name = f"projects/{wire.fixed_id('projects', project)}/policies/{constraint}"
    return {"name": name, "spec": {"rules": [rule]}}


def _rule(listed: dict[str, Any]) -> dict[str, Any]:
    """A rule of v2 for a list policy of v1."""
    match listed.get("allValues"):
        case "ALLOW":
            return {"allowAll": True}
        case "DENY":
            return {"denyAll": True}
    return {"values": {key: listed[key] for key in ("allowedValues", "deniedValues") if key in listed}}


_LISTS = ("Access", "Projects", "Locations", "Services", "Seconds", "Restrictions")


def _in_europe(region: str) -> bool:
    return region.startswith("europe-")


def _violated(message: str) -> wire.ApiError:
    return wire.ApiError(412, "conditionNotMet", message)
