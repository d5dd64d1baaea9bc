"""Sentences of Google's services, word for word."""

from __future__ import annotations

UNDEFINED_LOCAL_SSD = (
    "VM has a Local SSD attached but an undefined value for `discard-local-ssd`. "
    "If using gcloud, please add `--discard-local-ssd=false` or `--discard-local-ssd=true` to your "
    "command."
)
"""Refused stop of a VM (skypilot-org/skypilot#2586, hashicorp/terraform-provider-google#26173)."""
USER_PROJECT_DENIED = (
    "Caller does not have required permission to use project {project}. "
    "Grant the caller the {role} role, or a custom role with the serviceusage.services.use "
    "permission, by visiting "
    "https://console.developers.google.com/iam-admin/iam/project?project={project} and then retry. "
    "Propagation of the new permission may take a few minutes."
)
"""Refused project to charge (GoogleCloudPlatform/pbmm-on-gcp-onboarding#379)."""
BILLING_DISABLED = (
    "This API method requires billing to be enabled. "
    "Please enable billing on project #{number} by visiting "
    "https://console.developers.google.com/billing/enable?project={number} then retry. "
    "If you enabled billing for this project recently, wait a few minutes for the action to "
    "propagate to our systems and retry."
)
"""Missing billing account, in the words of Compute Engine."""
NO_BILLING_ACCOUNT = "The project to be billed is associated with an absent billing account."
"""Missing billing account, in the words of Cloud Storage (DataBiosphere/terra-ui#1147)."""
SERVICE_DISABLED = (
    "{title} has not been used in project {number} before or it is disabled. Enable it by visiting "
    "https://console.developers.google.com/apis/api/{service}/overview?project={number} "
    "then retry. If you enabled this API recently, wait a few minutes for the action to propagate "
    "to our systems and retry."
)
"""Disabled API."""
POLICY_ENFORCED = "The constraint is enforced on this resource."
"""Violated managed constraint, after its name."""
