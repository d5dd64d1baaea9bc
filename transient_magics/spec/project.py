"""Names in a Google Cloud project: its ID, its buckets, and the custom roles of docs/accounts.md.

`tests/cloud/test_permissions.py` compares the roles with the calls that the package makes
(`cloud/calling/permissions.py`) and with the page. The emulator enforces them
(`transient emulator project role NAME`).
"""

from __future__ import annotations

import hashlib
import re
import time

from ..errors import DeclarationError
from .cluster import ClusterSpec

_ID = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
"""6 to 30 lower-case letters, digits or hyphens; a letter first, and no hyphen last.

Source: Resource Manager, `Project.projectId`,
cloud.google.com/resource-manager/reference/rest/v3/projects, read 2026-11-27.
"""
_DOMAIN = r"(?:[-a-z0-9]{1,63}\.)+[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN_SCOPED = re.compile(rf"{_DOMAIN}:[a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?")
"""`example.com:my-project`, as Compute Engine accepts it.

Source: parameter `project`, discovery revision 20261106.
"""
_FIX = (
    "An ID has 6 to 30 lower-case letters, digits and hyphens; a project's name may be another. "
    "Type `gcloud projects list`: the ID is in the first column."
)


def parse_project(text: str, where: str = "--project") -> str:
    """Return the ID of a project.

    Raises DeclarationError for a text that cannot be an ID, such as a display name.
    """
    found = text.strip()
    if not (_ID.fullmatch(found) or _DOMAIN_SCOPED.fullmatch(found)):
        raise DeclarationError(
            f"'{text}' is not the ID of a Google Cloud project", where=where, fix=_FIX
        )
    return found


_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
_PATH = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")


def parse_bucket(text: str, where: str) -> str:
    """Return `name` or `name/path` of `NAME`, `gs://NAME` or `gs://NAME/path`.

    Raises DeclarationError for an invalid name or path.
    """
    place = text.strip().removeprefix("gs://").rstrip("/")
    name, slash, path = place.partition("/")
    if not _NAME.fullmatch(name) or name.startswith("goog") or "google" in name or ".." in name:
        fix = (
            "Write NAME or gs://NAME/FOLDER. NAME has 3 to 63 lower-case letters, digits, dashes, "
            "dots and underscores."
        )
        if where == "--bucket":
            fix += " To use no bucket, write --bucket none."
        raise DeclarationError(f"Invalid bucket name '{text}'", where=where, fix=fix)
    if slash and (not _PATH.fullmatch(path) or ".." in path.split("/")):
        what = f"'{path}' is not a folder in a bucket"
        raise DeclarationError(what, where=where, fix="Use letters, digits, dashes and slashes.")
    return place


def parse_records(text: str, spec: ClusterSpec | None) -> str:
    """Return `gs://name/path` of the folder with a problem's records.

    The VMs of `spec` can read all of it, so it must not contain the results of clusters. Raises
    DeclarationError for that, and for a text that is not a folder in a bucket.
    """
    place = f"gs://{parse_bucket(text, '--data-dir')}"
    where = "--data-dir"
    fix = "Name a separate folder for the records: gs://NAME/FOLDER."
    if place.count("/") < 3:
        raise DeclarationError(
            f"'{text}' is a whole bucket, so the VMs could read all of it", where=where, fix=fix
        )
    if f"{spec and cluster_store(spec)}/".startswith(f"{place}/"):
        raise DeclarationError(
            f"'{text}' is the folder in which clusters keep their results", where=where, fix=fix
        )
    return place


def own_bucket(project: str, region: str) -> str:
    """Return the default bucket of a project in a region. The same answer every time."""
    plain = re.sub(r"[^a-z0-9-]+", "-", project.lower())
    name = f"tm-{plain}-{region}"
    if len(name) <= 63:
        return name
    return f"tm-{hashlib.sha256(plain.encode()).hexdigest()[:12]}-{region}"


def cluster_store(spec: ClusterSpec) -> str | None:
    """Return where in its bucket a cluster's results are; None without a bucket.

    A later cluster may reuse the name, so the moment of declaration and the id are part of the
    place. VMs may reach everything below it, so no other cluster's place may begin with it.
    """
    if spec.bucket is None:
        return None
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(spec.declared_at))
    identity = spec.id or f"{int(spec.declared_at * 1e6) % 10**6:06d}"
    return f"gs://{spec.bucket}/{spec.name}-{moment}-{identity}"


def run_store(spec: ClusterSpec, run: str) -> str | None:
    """Return where in the bucket a run's checkpoints and results are; None without a bucket."""
    if spec.bucket:
        return f"{cluster_store(spec)}/{run}"
    return None


def _named(collection: str, verbs: str) -> tuple[str, ...]:
    return tuple(f"{collection}.{verb}" for verb in verbs.split())


CONTROLLER_ROLE = "transientController"
USER_ROLE = "transientUser"
_CONTROLLER = (
    *_named(
        "compute.instances",
        "create delete get list getGuestAttributes getSerialPortOutput setLabels setMachineType "
        "setMetadata setScheduling setTags simulateMaintenanceEvent start stop",
    ),
    *_named("compute.disks", "create setLabels"),
    *_named("compute.images", "useReadOnly"),
    *_named("compute.subnetworks", "use useExternalIp"),
    *_named("compute.zoneOperations", "get list"),
    *_named("compute.projects", "get"),
)
_USER = (
    *_CONTROLLER,
    *_named("compute.instances", "setServiceAccount"),
    *_named("compute.images", "get getFromFamily list"),
    *_named("compute.networks", "get updatePolicy"),
    *_named("compute.subnetworks", "get"),
    *_named("compute.routers", "list"),
    *_named("compute.firewalls", "create delete get list update"),
    *_named("compute.globalOperations", "get"),
    *_named("compute.zones", "get"),
    *_named("compute.regions", "get"),
    *_named("compute.machineTypes", "get list"),
    *_named("compute.acceleratorTypes", "get list"),
    *_named("storage.buckets", "create get list"),
    *_named("storage.objects", "create delete get list"),
)
ROLES: dict[str, tuple[str, ...]] = {CONTROLLER_ROLE: _CONTROLLER, USER_ROLE: _USER}
"""The permissions of each role, by its name."""
BUCKET_ROLE: tuple[str, ...] = _named("storage.objects", "create delete get list update")
"""The permissions that `roles/storage.objectAdmin` on the bucket adds to the controller's account."""
