"""Names of buckets and of places in them: what the user typed, the project's own bucket, and each run's place."""

from __future__ import annotations

import hashlib
import re
import time

from ..errors import DeclarationError
from .cluster import ClusterSpec

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
_PATH = re.compile(r"[A-Za-z0-9_.=-]+(/[A-Za-z0-9_.=-]+)*")


def parse_bucket(text: str, where: str) -> str:
    """`name` or `name/path` of `NAME`, `gs://NAME` or `gs://NAME/path`. DeclarationError for what cannot be one."""
    wanted = text.strip().removeprefix("gs://").rstrip("/")
    name, slash, path = wanted.partition("/")
    if not _NAME.fullmatch(name) or name.startswith("goog") or "google" in name or ".." in name:
        fix = "A name has 3 to 63 lower-case letters, digits, dashes, dots: NAME or gs://NAME/FOLDER, or none."
        raise DeclarationError(f"Invalid bucket name '{text}'", where=where, fix=fix)
    if slash and (not _PATH.fullmatch(path) or ".." in path.split("/")):
        what = f"'{path}' is no folder in a bucket"
        raise DeclarationError(what, where=where, fix="Use letters, digits, dashes and slashes.")
    return wanted


def parse_records(text: str, spec: ClusterSpec | None) -> str:
    """`gs://name/path` of where a problem's records are. DeclarationError for what is no folder of a bucket.

    The VMs of `spec` will be able to read all of it, so no cluster's results may be in it.
    """
    place, where = f"gs://{parse_bucket(text, '--data-dir')}", "--data-dir"
    fix = "Name a folder of its own for the records: gs://NAME/FOLDER."
    if place.count("/") < 3:
        raise DeclarationError(f"'{text}' is a whole bucket, and the VMs could read all of it", where=where, fix=fix)
    if f"{spec and cluster_store(spec)}/".startswith(f"{place}/"):
        raise DeclarationError(f"'{text}' is where clusters keep their results", where=where, fix=fix)
    return place


def own_bucket(project: str, region: str) -> str:
    """The bucket that is made for a project in a region where the user names none. The same answer every time."""
    plain = re.sub(r"[^a-z0-9-]+", "-", project.lower())
    name = f"tm-{plain}-{region}"
    return name if len(name) <= 63 else f"tm-{hashlib.sha256(plain.encode()).hexdigest()[:12]}-{region}"


def cluster_store(spec: ClusterSpec) -> str | None:
    """Where in its bucket a cluster's results are; None for a cluster without a bucket.

    A cluster's name may be used again after it, or by somebody else; its moment of declaration and its id are not.
    What its VMs may reach follows from this place, so no other cluster's may begin with it.
    """
    if spec.bucket is None:
        return None
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(spec.declared_at))
    return f"gs://{spec.bucket}/{spec.name}-{moment}-{spec.id or f'{int(spec.declared_at * 1e6) % 10**6:06d}'}"


def run_store(spec: ClusterSpec, run: str) -> str | None:
    """Where in the cluster's bucket a run's checkpoints and results are; None for a cluster without a bucket."""
    return f"{cluster_store(spec)}/{run}" if spec.bucket else None
