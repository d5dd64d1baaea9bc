"""Run the checks of `transient doctor`: `python -m ...programs.doctor < spec.json`.

Nothing is created. All checks run simultaneously, each with a time limit. Prints one JSON object:
`{"checks": [{name, question, result, found, fix}]}`, in the order in which to fix them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from ... import places
from ...catalog import learned_seconds_ago, region
from ...cloud import ComputeEngine, Finding
from ...cloud.calling import clients
from ...cloud.calling.failures import grant, set_quota_project
from ...cloud.calling.login import SignedIn
from ...errors import (
    AccessError,
    CloudError,
    ConsumerError,
    CredentialsError,
    TransientError,
    reason_of,
)
from ...journal import events
from ...protocol.doctor import BAD, GOOD, NOTE, Check
from ...spec import ClusterSpec, own_bucket
from ..vms import lookup
from ..vms.access import Access
from . import print_answer
from .preflight import first_requests, prepared
from .sweep import sweep

log = logging.getLogger(__name__)

_LIMIT_SECONDS = 20.0
_LONG_SECONDS = 90.0
_LOGIN = "gcloud auth application-default login"
# Google rejects signed tokens if the clock is off by minutes.
_NO_SKEW = 30.0
_MOST_SKEW = 300.0
_LITTLE_BYTES = 1 << 30
_SOME_BYTES = 5 << 30
_GRANTS = (
    "gcloud projects add-iam-policy-binding",
    "gcloud iam service-accounts add-iam-policy-binding",
)
_COMMAND = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcome of one check: its result, what was found, and what fixes it."""

    result: str
    found: str
    fix: str = ""


class Patient:
    """Cluster that is checked, with the access to its project and shared results."""

    def __init__(self, spec: ClusterSpec, access: Access) -> None:
        self.spec = spec
        self.access = access
        self.connected = False
        self._pricing = asyncio.Lock()
        self._login: asyncio.Future[SignedIn | None] | None = None

    @property
    def engine(self) -> ComputeEngine:
        """The client of Compute Engine, once connected."""
        return self.access.engine

    async def login(self) -> SignedIn | None:
        """Return the credentials in use, None on the emulator. Raises CloudError."""
        if self._login is None:
            self._login = asyncio.ensure_future(self.engine.signed_in())
        return await asyncio.shield(self._login)

    @property
    def account(self) -> str:
        """Account of the credentials in use; empty if that is unknown."""
        if self._login is None or not self._login.done() or self._login.exception():
            return ""
        login = self._login.result()
        return login.whose if login else ""

    async def read_prices(self) -> int:
        """Read today's prices once, and return how many are new. Raises CloudError."""
        async with self._pricing:
            return await lookup.refresh_prices(self.engine)


async def check_folder(_: Patient) -> Answer:
    """Check that this machine can keep what is declared, learnt and fetched."""
    home = places.home()
    try:
        places.private(home)
        probe = home / f".doctor.{time.time_ns()}"
        probe.write_bytes(b"it can be written")
        probe.unlink()
        places.sockets()
    except OSError as error:
        found = f"{error.filename or home} cannot be written: {reason_of(error)}."
        return Answer(BAD, found, "export TRANSIENT_MAGICS_HOME=FOLDER")
    free = shutil.disk_usage(home).free
    if free < _LITTLE_BYTES:
        found = f"{home} has {free / 1e6:.0f} MB left, and checkpoints are stored there."
        return Answer(BAD, found, f"df -h {home}")
    if home.stat().st_mode & 0o077:
        found = f"{home} contains the clusters' keys, and other users of this machine can read it."
        return Answer(NOTE, found, f"chmod 700 {home}")
    found = f"{home} can be written, and {free / 1e9:.0f} GB are free."
    if free < _SOME_BYTES:
        return Answer(NOTE, found)
    return Answer(GOOD, found)


async def check_gcloud(patient: Patient) -> Answer | None:
    """Check that gcloud, with its own login, can open tunnels through Identity-Aware Proxy."""
    if not (patient.spec.project and patient.spec.through_proxy):
        return None
    if not shutil.which("gcloud"):
        found = (
            "SSH goes through Identity-Aware Proxy. This requires gcloud, which is not installed."
        )
        return Answer(BAD, found, "transient doctor --ssh-from ADDRESS/32")
    command = [
        "gcloud",
        "auth",
        "list",
        "--filter=status:ACTIVE",
        "--format=value(account)",
        "--quiet",
    ]
    try:
        ended = await asyncio.to_thread(
            subprocess.run,
            command,
            capture_output=True,
            encoding="utf-8",
            timeout=_LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Answer(BAD, "gcloud does not answer.", " ".join(command))
    account = ended.stdout.strip()
    if ended.returncode or not account:
        found = (
            "gcloud has no active login. Tunnels need it in addition to the "
            "application-default login."
        )
        return Answer(BAD, found, "gcloud auth login")
    return Answer(GOOD, f"gcloud opens SSH tunnels through Identity-Aware Proxy, as {account}.")


async def check_clock(patient: Patient) -> Answer:
    """Check the difference between this machine's clock and Google's, or the emulator's."""
    url = clients.GOOGLE
    whose = "Google's"
    emulated = patient.connected and bool(patient.engine.endpoint)
    if emulated:
        url = f"{patient.engine.endpoint}/emulator/v1"
        whose = "the emulator's"
    try:
        least, most = await asyncio.to_thread(clients.clock_offset, url, direct=emulated)
    except (OSError, ValueError) as error:
        # Errors of requests are OSErrors.
        log.info("%s", error)
        found = f"{url} does not answer, so this machine's clock cannot be compared with {whose}."
        return Answer(BAD, found, f"curl -sI {url}")
    away = max(0.0, least, -most)
    found = f"this machine is {_ahead(least, most)} {whose}"
    if away <= _NO_SKEW:
        return Answer(GOOD, f"{found}.")
    why = (
        "Google rejects tokens if a clock is wrong by minutes, and VMs end earlier or later by "
        "this time"
    )
    return Answer(
        BAD if away > _MOST_SKEW else NOTE, f"{found}: {why}.", "sudo timedatectl set-ntp true"
    )


async def check_credentials(patient: Patient) -> Answer:
    """Check which credentials are in use, and which users can read them."""
    return login_answer(await patient.login())


def login_answer(login: SignedIn | None) -> Answer:
    """Describe credentials."""
    if login is None:
        return Answer(GOOD, "the emulator accepts all users of this machine.")
    found = f"{login.kind}, {login.whose}"
    if login.place:
        found += f", found in {login.place}"
    if login.expires:
        until = datetime.fromtimestamp(login.expires, UTC).strftime("%H:%M UTC")
        found += f"; the current token is valid until {until} and renewed automatically"
    if login.exposed:
        return Answer(
            NOTE,
            f"{found}. Other users of this machine can read this file.",
            f"chmod 600 {login.place}",
        )
    return Answer(GOOD, f"{found}.")


async def check_quota_project(patient: Patient) -> Answer | None:
    """Check which project the login charges requests to."""
    return quota_project_answer(await patient.login(), patient.spec.project or "")


def quota_project_answer(login: SignedIn | None, project: str) -> Answer | None:
    """Compare the quota project of a login with `project`."""
    if login is None:
        return None
    if not login.quota_project:
        return Answer(GOOD, "the login has none: requests are counted against --project.")
    if login.quota_project == project:
        return Answer(GOOD, f"the login has {project}, the same as --project.")
    found = (
        f"the login has {login.quota_project}. Requests to Compute Engine and Cloud Storage are "
        f"counted against {project}; other programs use the quota project of the login."
    )
    return Answer(NOTE, found, set_quota_project(project))


async def check_compute(patient: Patient) -> list[Check]:
    """Check that Compute Engine accepts the first VMs, and that they boot ready to train."""
    if not patient.spec.emulated:
        # The check of prices reports it.
        with contextlib.suppress(CloudError):
            await patient.read_prices()
    spec, facts, troubles = await prepared(patient.spec, patient.engine)
    # The examination meets the same errors, and reports them question by question.
    for trouble in troubles:
        log.info("%s", trouble)
    bucket = (spec.bucket or "").partition("/")[0]
    found = await patient.engine.examine(
        first_requests(spec, *facts), firewall=spec.firewall, bucket=bucket
    )
    checks = [_check_of(finding) for finding in found]
    chosen = next((event for event in facts if isinstance(event, events.ClusterImageChosen)), None)
    checks.append(_check("boot", _BOOT, _boot_answer(spec, chosen)))
    return checks


def _boot_answer(spec: ClusterSpec, choice: events.ClusterImageChosen | None) -> Answer:
    image = choice.image if choice else spec.image
    if image:
        return Answer(GOOD, f"VMs boot from {image}, ready to train.")
    if spec.emulated:
        return Answer(
            GOOD, "emulated VMs use the packages of this machine, so they boot ready to train."
        )
    found = (
        "each VM installs TensorFlow at its first boot, in a few minutes (with a GPU: 10 to "
        "15, estimated)."
    )
    return Answer(NOTE, found, f"transient image build{_project_option(spec)}")


async def check_bucket(patient: Patient) -> Answer:
    """Check that the bucket can be used, and report its readers."""
    spec = patient.spec
    access = patient.access
    if not spec.bucket or not access.storage:
        return Answer(NOTE, "none is used. Checkpoints and results are stored on this machine.")
    name = spec.bucket.partition("/")[0]
    location = region(spec.home_zone)
    own = name == own_bucket(access.engine.project, location)
    try:
        warning = await access.storage.check(name, own=own)
    except (CredentialsError, ConsumerError):
        raise
    except AccessError as error:
        return Answer(
            BAD,
            _without(str(error), error.fix),
            grant("roles/storage.admin", access.engine.project),
        )
    if warning is None:
        return Answer(
            GOOD, f"{name} does not exist yet. The first cluster creates it in {location}."
        )
    if warning:
        return Answer(NOTE, f"{warning}.", _commands(warning))
    return Answer(GOOD, f"{name} exists, with uniform access and without public access.")


async def check_tokens(patient: Patient) -> Answer:
    """Check that tokens limited to one folder of the bucket can be made. Raises CloudError."""
    await patient.access.try_token()
    return Answer(
        GOOD, "VMs can get tokens that are restricted to the folder of their run in the bucket."
    )


async def check_prices(patient: Patient) -> Answer:
    """Check that Google's prices of today can be read."""
    spec = patient.spec
    sources = "; ".join(
        dict.fromkeys(line.source for kind, line in spec.prices.items() if "@" not in kind)
    )
    if spec.emulated:
        return Answer(GOOD, f"nothing is billed. The catalog's prices are from: {sources}.")
    try:
        count = await patient.read_prices()
    except CredentialsError:
        raise
    except CloudError as error:
        enable = f"gcloud services enable cloudbilling.googleapis.com --project {spec.project}"
        found = (
            f"the catalog's prices are used ({sources}), because Google's could not be read: "
            f"{error.what}."
        )
        return Answer(NOTE, found, _commands(error.fix) or enable)
    if not count and learned_seconds_ago() == float("inf"):
        return Answer(
            NOTE, f"Google's list has no known prices. The catalog's prices are used: {sources}."
        )
    if count:
        read = f"Google's current list has {count:,} prices"
    else:
        read = "Google's list was read within the last day"
    return Answer(GOOD, f"{read}. They are used instead of the catalog's.")


async def check_leftovers(patient: Patient) -> Answer:
    """Check for the user's left-over VMs and firewall rules that belong to no cluster."""
    try:
        found = await sweep(patient.spec.project, yes=False, all_machines=False)
    except CredentialsError:
        raise
    except AccessError:
        # Other checks report it, with the fix.
        return Answer(NOTE, "unknown: this check needs permissions or an API that are missing.")
    names = [orphan["name"] for orphan in (*found["orphans"], *found["rules"])]
    if names:
        command = f"transient cluster sweep{_project_option(patient.spec)} --yes"
        return Answer(
            BAD, f"these resources of yours belong to no cluster: {', '.join(names)}.", command
        )
    if found["unreadable"]:
        return Answer(NOTE, " ".join(found["unreadable"]))
    return Answer(
        GOOD, "all VMs and firewall rules that you created from this machine belong to a cluster."
    )


Ask = Callable[[Patient], Awaitable[Answer | list[Check] | None]]


@dataclass(frozen=True)
class Question:
    """One check: its name, what it checks, and the function that checks it within `seconds`."""

    name: str
    question: str
    ask: Ask
    seconds: float = _LIMIT_SECONDS


_CREDENTIALS = Question(
    "credentials", "Whose credentials are used, and whether they are valid.", check_credentials
)
_HERE = (
    Question(
        "this machine's folder",
        "Whether clusters, keys and results can be stored on this machine.",
        check_folder,
    ),
    Question(
        "gcloud",
        "Whether gcloud is installed and logged in, for SSH through its tunnels.",
        check_gcloud,
    ),
    Question("clock", "Whether this machine's clock agrees with Google's.", check_clock),
)
_AT_GOOGLE = (
    _CREDENTIALS,
    Question(
        "quota project", "Against which project the login counts requests.", check_quota_project
    ),
    Question(
        "Compute Engine", "Whether the project can create these VMs.", check_compute, _LONG_SECONDS
    ),
    Question("bucket", "Whether the bucket can be used, and has no public access.", check_bucket),
    Question(
        "tokens for VMs",
        "Whether VMs can get tokens for their folder in the bucket.",
        check_tokens,
    ),
    Question("prices", "Whether Google's current prices can be read.", check_prices, _LONG_SECONDS),
    Question(
        "left behind",
        "Whether VMs or firewall rules of yours belong to no cluster.",
        check_leftovers,
    ),
)
_BOOT = "Whether VMs boot from an image with TensorFlow."
_EXAMINED = {
    "project": "Whether the project exists, and Compute Engine's API is enabled.",
    "rights": "Whether the credentials have all permissions that the cluster needs.",
    "service account": "Whether the credentials can assign the service account to a VM.",
    "zone": "Whether the zone has the machine types and GPUs.",
    "image": "Whether the image exists and fits on the disks.",
    "network": "Whether the network exists and has subnetworks.",
    "way out": "Whether VMs without an external address can reach the internet.",
    "OS Login": "Whether VMs accept the SSH key of the cluster.",
    "organization polic": "Whether a policy of the organization forbids the VMs.",
    "managed organization "
    "policies": "Whether a managed policy of the organization forbids the VMs.",
    "quotas": "Whether the quotas are sufficient for the VMs.",
}
"""Checks that the examination of a project covers, by the start of a finding's subject."""


async def examine(spec: ClusterSpec) -> list[Check]:
    """Run all checks. Without credentials only the checks of this machine run."""
    async with Access(spec) as access:
        patient = Patient(spec, access)
        try:
            await access.reopen()
        except CloudError as error:
            checks = await _run(_HERE, patient)
            return [*checks, _failed(_CREDENTIALS, error)]
        patient.connected = True
        checks = await _run((*_HERE, *_AT_GOOGLE), patient)
    return [_for_account(check, patient.account) for check in _once(checks)]


async def _run(questions: Sequence[Question], patient: Patient) -> list[Check]:
    found = await asyncio.gather(*(_answered(question, patient) for question in questions))
    return [check for checks in found for check in checks]


async def _answered(question: Question, patient: Patient) -> list[Check]:
    """Return the checks that result from a question, or the reason why there is no answer."""
    try:
        async with asyncio.timeout(question.seconds):
            found = await question.ask(patient)
    except TransientError as error:
        return [_failed(question, error)]
    except TimeoutError:
        late = Answer(BAD, f"no answer within {question.seconds:.0f} s.", "transient doctor")
        return [_check(question.name, question.question, late)]
    except OSError as error:
        # An error of this machine's disk.
        broken = Answer(BAD, f"{error.filename or 'this machine'}: {reason_of(error)}.")
        return [_check(question.name, question.question, broken)]
    if found is None:
        return []
    if isinstance(found, Answer):
        return [_check(question.name, question.question, found)]
    return found


def _failed(question: Question, error: TransientError) -> Check:
    """Return the check of a question that failed.

    Invalid credentials fail many questions for one reason.
    """
    if isinstance(error, CredentialsError):
        login = Answer(BAD, f"{error.what.rstrip('.')}.", _LOGIN)
        return _check(_CREDENTIALS.name, _CREDENTIALS.question, login)
    failed = Answer(BAD, _without(str(error), error.fix), _commands(error.fix) or error.fix)
    return _check(question.name, question.question, failed)


def _check(name: str, question: str, answer: Answer) -> Check:
    return Check(name, question, answer.result, answer.found, answer.fix)


def _check_of(finding: Finding) -> Check:
    question = next(
        (text for start, text in _EXAMINED.items() if finding.subject.startswith(start)), ""
    )
    result = GOOD if finding.answered else NOTE
    if not finding.good:
        result = BAD
    found = _without(finding.text, finding.fix)
    return Check(finding.subject, question, result, found, _commands(finding.fix) or finding.fix)


def _once(checks: Sequence[Check]) -> list[Check]:
    """Leave out checks that failed for a reason that an earlier check has."""
    first: dict[str, Check] = {}
    for check in checks:
        first.setdefault(check.found, check)
    return list(first.values())


def _for_account(check: Check, account: str) -> Check:
    """Return the check with the placeholder in its command replaced by the account."""
    if not account:
        return check
    if account.endswith("gserviceaccount.com"):
        kind = "serviceAccount"
    else:
        kind = "user"
    return replace(check, fix=check.fix.replace("user:YOU@EXAMPLE.COM", f"{kind}:{account}"))


def _without(text: str, fix: str) -> str:
    """Return the sentence without the remedy after it."""
    if fix:
        return text.removesuffix(fix).rstrip()
    return text


def _commands(text: str) -> str:
    """Return the first command that a remedy names, or its page.

    Return all commands if they grant rights.
    """
    commands = _COMMAND.findall(text)
    grants = [command for command in commands if command.startswith(_GRANTS)]
    if grants:
        return " && ".join(grants)
    if commands:
        return commands[0]
    page = re.search(r"https://\S+[^\s.,]", text)
    if page:
        return page[0]
    return ""


def _project_option(spec: ClusterSpec) -> str:
    if spec.project:
        return f" --project {spec.project}"
    return ""


def _ahead(least: float, most: float) -> str:
    if least > 0 or most < 0:
        word = "ahead of" if least > 0 else "behind"
        near, far = sorted((abs(least), abs(most)))
        return f"between {near:.1f} and {far:.1f} s {word}"
    return f"at most {max(-least, most):.1f} s from"


async def _answer(spec: ClusterSpec) -> dict[str, object]:
    return {"checks": [asdict(check) for check in await examine(spec)]}


def main() -> int:
    """Check the declaration, and return exit code 0: failures are in the checks."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    return print_answer(_answer(ClusterSpec.from_dict(json.load(sys.stdin))))


if __name__ == "__main__":
    sys.exit(main())
