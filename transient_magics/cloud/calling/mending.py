"""What somebody types so that Google refuses no more: the roles that bring permissions, and the commands of gcloud."""

from __future__ import annotations

ACT_AS = "iam.serviceAccounts.actAs"
LOGIN = "gcloud auth application-default login"
_ROLES = {
    "compute.firewalls.": "roles/compute.securityAdmin",
    "compute.networks.updatePolicy": "roles/compute.securityAdmin",
    "compute.images.create": "roles/compute.storageAdmin",
    "compute.images.delete": "roles/compute.storageAdmin",
    "compute.images.setLabels": "roles/compute.storageAdmin",
    "compute.advice.": "roles/compute.viewer",
    "compute.": "roles/compute.instanceAdmin.v1",
    "storage.": "roles/storage.admin",
    ACT_AS: "roles/iam.serviceAccountUser",
    "serviceusage.services.use": "roles/serviceusage.serviceUsageConsumer",
    "orgpolicy.": "roles/orgpolicy.policyViewer",
}
NAMES = {
    "roles/compute.instanceAdmin.v1": "Compute Instance Admin (v1)",
    "roles/compute.securityAdmin": "Compute Security Admin",
    "roles/compute.storageAdmin": "Compute Storage Admin",
    "roles/compute.viewer": "Compute Viewer",
    "roles/storage.admin": "Storage Admin",
    "roles/iam.serviceAccountUser": "Service Account User",
    "roles/serviceusage.serviceUsageConsumer": "Service Usage Consumer",
    "roles/orgpolicy.policyViewer": "Organization Policy Viewer",
}


def role_of(permission: str) -> str:
    """The predefined role that brings a permission; nothing for one that we need nowhere."""
    return next((role for start, role in _ROLES.items() if permission.startswith(start)), "")


def grant(role: str, project: str) -> str:
    """The command that gives somebody a role in a project."""
    return f"gcloud projects add-iam-policy-binding {project} --member user:YOU@EXAMPLE.COM --role {role}"


def let_use(account: str, project: str) -> str:
    """The command that lets somebody give VMs this service account."""
    return (
        f"gcloud iam service-accounts add-iam-policy-binding {account} --project {project} "
        "--member user:YOU@EXAMPLE.COM --role roles/iam.serviceAccountUser"
    )


def lift(constraint: str, project: str, value: str = "") -> str:
    """What somebody who may change policies types so that one no longer stands in the way (a sentence)."""
    verb = f"allow {constraint} {value}" if value else f"disable-enforce {constraint}"
    return (
        f"An Organization Policy Administrator excepts the project: `gcloud resource-manager org-policies {verb} "
        f"--project {project}`."
    )


def lift_managed(constraint: str, project: str) -> str:
    """Return what mends a managed constraint (a sentence); the older commands of gcloud do not know those."""
    return (
        f"An Organization Policy Administrator excepts the project from {constraint}; `gcloud org-policies describe "
        f"{constraint} --effective --project {project}` shows it."
    )


def enable(service: str, project: str) -> str:
    """The command that enables an API in a project."""
    return f"gcloud services enable {service} --project {project}"


def link_billing(project: str) -> str:
    """Return the command that links a project to a billing account."""
    return f"gcloud billing projects link {project} --billing-account ACCOUNT"


def set_quota_project(project: str) -> str:
    """Return the command that changes the quota project of the application-default login."""
    return f"gcloud auth application-default set-quota-project {project}"
