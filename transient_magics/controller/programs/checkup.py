"""`python -m ...programs.checkup < spec.json`: is all here that this cluster would need?

Nothing is made.

What a cluster's examination (`preflight`) asks, and around it what is asked of this machine, of whose credentials
these are, of the bucket, the tokens, the image, the prices, and of what was left behind before. All questions are
asked at once, and none of them for longer than its own limit.

Prints one JSON object: `{"lines": [{subject, verdict, said, mend}], "spec": the declaration as it would be, "image":
the image that VMs would boot from, "names": {kind: [what a report must not show]}}`. A verdict is `good`, `note` (it
works, or cannot be told, and is worth knowing) or `bad`; `mend` is the one command that helps, where there is one.
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
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from ... import places
from ...catalog import learned_seconds_ago, region
from ...cloud import ComputeEngine, Finding
from ...cloud.calling import clock
from ...cloud.calling.login import SignedIn
from ...cloud.calling.mending import grant, set_quota_project
from ...errors import AccessError, CloudError, ConsumerError, CredentialsError, TransientError
from ...journal import events
from ...spec import ClusterSpec, own_bucket
from ..vms import live_prices
from ..vms.access import Access
from ..vms.startup import lock_hash
from .preflight import first_requests, prepared
from .sweep import sweep

log = logging.getLogger(__name__)

_LIMIT_SECONDS, _LONG_SECONDS = 20.0, 90.0
_STORAGE = "roles/storage.admin"
_LOGIN = "gcloud auth application-default login"
_NO_SKEW, _MOST_SKEW = 30.0, 300.0
_LITTLE_BYTES, _SOME_BYTES = 1 << 30, 5 << 30
_LEFT = "left behind"
_GRANTS = ("gcloud projects add-iam-policy-binding", "gcloud iam service-accounts add-iam-policy-binding")
_COMMAND = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Line:
    """The answer to one question; see the module's docstring."""

    subject: str
    verdict: str
    said: str
    mend: str = ""


Question = Callable[[], Awaitable[Line | Sequence[Line]]]


@dataclass
class Checkup:
    """The questions about one cluster that is not made. `names` gathers what a report must not show."""

    spec: ClusterSpec
    image: str = ""
    names: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    _pricing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def lines(self) -> list[Line]:
        """All answers, in the order in which a reader would ask. Never raises CloudError."""
        async with Access(self.spec) as access:
            here: list[tuple[str, Question]] = [("this machine's folder", self._folder)]
            if self.spec.project and self.spec.through_proxy:
                here.append(("gcloud", self._gcloud))
            try:
                await access.reopen()
            except CloudError as error:  # nothing can be asked of Google
                lines = await self._asked([*here, ("clock", lambda: self._clock(None))])
                return [*lines, _refused("credentials", error)]
            here.append(("clock", lambda: self._clock(access.engine.endpoint)))
            lines = await self._asked([*here, *self._of_cloud(access)])
        return [_signed(each, self.names.get("account", [])) for each in _once(lines)]

    def _of_cloud(self, access: Access) -> list[tuple[str, Question]]:
        return [
            ("credentials", lambda: self._credentials(access.engine)),
            ("Compute Engine", lambda: self._examined(access)),
            ("bucket", lambda: self._bucket(access)),
            ("tokens for VMs", lambda: self._tokens(access)),
            ("prices", lambda: self._prices(access.engine)),
            (_LEFT, self._left_behind),
        ]

    async def _asked(self, questions: Sequence[tuple[str, Question]]) -> list[Line]:
        found = await asyncio.gather(*(_within(subject, ask) for subject, ask in questions))
        return [line for lines in found for line in lines]

    async def _folder(self) -> Line:
        """Whether what is declared, learnt and fetched can be kept here."""
        home, subject = places.home(), "this machine's folder"
        try:
            places.private(home)
            probe = home / f".checkup.{time.time_ns()}"
            probe.write_bytes(b"it can be written")
            probe.unlink()
            places.sockets()
        except OSError as error:
            said = f"{error.filename or home} cannot be written: {error.strerror or error}."
            return Line(subject, "bad", said, "export TRANSIENT_MAGICS_HOME=FOLDER")
        free = shutil.disk_usage(home).free
        said = f"{home} can be written, and {free / 1e9:.0f} GB are free."
        if free < _LITTLE_BYTES:
            return Line(subject, "bad", f"{home} has {free / 1e6:.0f} MB left: checkpoints come here.", f"df -h {home}")
        if home.stat().st_mode & 0o077:
            said = f"{home} holds the clusters' keys, and other accounts of this machine may look into it."
            return Line(subject, "note", said, f"chmod 700 {home}")
        return Line(subject, "good" if free >= _SOME_BYTES else "note", said)

    async def _clock(self, endpoint: str | None) -> Line:
        url = f"{endpoint}/emulator/v1" if endpoint else clock.GOOGLE
        whose = "the emulator's" if endpoint else "Google's"
        try:
            least, most = await asyncio.to_thread(clock.offset, url, direct=bool(endpoint))
        except (OSError, ValueError) as error:  # those of requests are OSErrors
            log.info("%s", error)
            said = f"{url} does not answer, so this machine's clock cannot be compared with {whose}."
            return Line("clock", "bad", said, f"curl -sI {url}")
        away = max(0.0, least, -most)
        said = f"this machine is {_ahead(least, most)} {whose}"
        if away <= _NO_SKEW:
            return Line("clock", "good", f"{said}.")
        why = "Google takes signed tokens from some minutes off at most, and VMs end so much later or earlier than said"
        return Line("clock", "bad" if away > _MOST_SKEW else "note", f"{said}: {why}.", "sudo timedatectl set-ntp true")

    async def _gcloud(self) -> Line:
        """SSH through Identity-Aware Proxy is gcloud's work, with a login of its own."""
        if not shutil.which("gcloud"):
            said = "SSH goes through Identity-Aware Proxy, and the program gcloud, which opens the way, is not here."
            return Line("gcloud", "bad", said, "transient doctor --ssh-from ADDRESS/32")
        command = ["gcloud", "auth", "list", "--filter=status:ACTIVE", "--format=value(account)", "--quiet"]
        try:
            ended = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, encoding="utf-8", timeout=_LIMIT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return Line("gcloud", "bad", "gcloud does not answer.", " ".join(command))
        account = ended.stdout.strip()
        if ended.returncode or not account:
            said = "gcloud is here, and nobody is logged in to it: tunnels need a login besides the credentials."
            return Line("gcloud", "bad", said, "gcloud auth login")
        self._name("account", *account.split())
        return Line("gcloud", "good", f"opens the way to the VMs through Identity-Aware Proxy, as {account}.")

    async def _credentials(self, engine: ComputeEngine) -> Line | list[Line]:
        found = await engine.signed_in()
        if found is None:
            return Line("credentials", "good", "the emulator takes everybody on this machine.")
        return [self._login(found), self._quota_project(found)]

    def _quota_project(self, found: SignedIn) -> Line:
        """Which project the login would have every request charged to."""
        subject, project = "quota project", self.spec.project or ""
        if not found.quota_project:
            said = "the login names none: requests are charged to the project that they are about."
            return Line(subject, "good", said)
        self._name("project", found.quota_project)
        if found.quota_project == project:
            return Line(subject, "good", f"the login names {project}, as --project does.")
        said = (
            f"the login names {found.quota_project}. Requests to Compute Engine and Cloud Storage are charged to "
            f"{project} anyway; other programs use the one of the login."
        )
        return Line(subject, "note", said, set_quota_project(project))

    def _login(self, found: SignedIn) -> Line:
        self._name("account", found.whose)
        until = datetime.fromtimestamp(found.expires, UTC).strftime("%H:%M UTC") if found.expires else ""
        where = f", found in {found.place}" if found.place else ""
        renewed = f"; the token at hand is good until {until} and renewed by itself" if until else ""
        said = f"{found.kind}, {found.whose}{where}{renewed}."
        if found.exposed:
            said = f"{said} Other accounts of this machine may read that file."
            return Line("credentials", "note", said, f"chmod 600 {found.place}")
        return Line("credentials", "good", said)

    async def _examined(self, access: Access) -> list[Line]:
        """What Compute Engine says of the VMs that the controller would ask for first, and of their image."""
        if not self.spec.emulated:
            with contextlib.suppress(CloudError):  # the question about prices says it
                await self._today(access.engine)
        self.spec, known, troubles = await prepared(self.spec, access.engine)
        for trouble in troubles:  # the examination meets the same, and says it question by question
            log.info("%s", trouble)
        spec, bucket = self.spec, (self.spec.bucket or "").partition("/")[0]
        found = await access.engine.examine(first_requests(spec, *known), firewall=spec.firewall, bucket=bucket)
        lines = [_of_finding(each) for each in found]
        chosen = next((each for each in known if isinstance(each, events.ClusterImageChosen)), None)
        with contextlib.suppress(CloudError):  # who may not list images is told so by a line on rights
            lines.append(await self._image(access.engine, chosen))
        return lines

    async def _image(self, engine: ComputeEngine, choice: events.ClusterImageChosen | None) -> Line:
        """Whether VMs boot ready to train."""
        project = f" --project {self.spec.project}" if self.spec.project else ""
        chosen = choice.image if choice else self.spec.image
        if self.spec.emulated:  # such VMs have the stack anyway; one is baked for the sake of the course
            fitting = [each for each in await engine.images.fitting(lock_hash, with_gpu=False) if not each.with_gpu]
            chosen = chosen or (fitting[0].name if fitting else "")
        self.image = chosen or ""
        if chosen:
            return Line("boot", "good", f"VMs boot from {chosen}, ready to train.")
        if self.spec.emulated:
            return Line("boot", "good", "emulated VMs have this machine's packages, so they boot ready to train.")
        said = "VMs install TensorFlow at their first boot: some minutes, with a GPU 10 to 15 by estimate, each time."
        return Line("boot", "note", said, f"transient image build{project}")

    async def _bucket(self, access: Access) -> Line:
        spec = self.spec
        if not spec.bucket or not access.storage:
            return Line("bucket", "note", "none is used: checkpoints and results come to this machine.")
        name, location = spec.bucket.partition("/")[0], region(spec.home_zone)
        own = name == own_bucket(access.engine.project, location)
        self._name("bucket", name)
        try:
            warning = await access.storage.look(name, own=own)
        except (CredentialsError, ConsumerError):
            raise
        except AccessError as error:
            return Line("bucket", "bad", _without(str(error), error.fix), grant(_STORAGE, access.engine.project))
        if warning is None:
            return Line("bucket", "good", f"{name} is not there yet; the first cluster makes it in {location}.")
        if warning:
            return Line("bucket", "note", f"{warning}.", _commands(warning))
        return Line("bucket", "good", f"{name} is there, with uniform access and closed to the public.")

    async def _tokens(self, access: Access) -> Line:
        await access.try_token()
        return Line(
            "tokens for VMs", "good", "VMs can be given tokens that open their run's place in the bucket alone."
        )

    async def _prices(self, engine: ComputeEngine) -> Line:
        first = (line.source for kind, line in self.spec.prices.items() if "@" not in kind)
        sources = "; ".join(dict.fromkeys(first))
        if self.spec.emulated:
            return Line("prices", "good", f"nothing is billed; the catalog has {sources}.")
        enable = f"gcloud services enable cloudbilling.googleapis.com --project {self.spec.project}"
        try:
            count = await self._today(engine)
        except CredentialsError:
            raise
        except CloudError as error:
            said = (
                f"the catalog's dated ones are used ({sources}), for Google's of today could not be read: {error.what}."
            )
            return Line("prices", "note", said, _commands(error.fix) or enable)
        if not count and learned_seconds_ago() == float("inf"):
            return Line("prices", "note", f"Google lists none that we recognise; the catalog's are used: {sources}.")
        told = f"Google's list of today has {count:,}" if count else "Google's list was read within the last day"
        return Line("prices", "good", f"{told}; its prices are used instead of the catalog's.")

    async def _today(self, engine: ComputeEngine) -> int:
        """Today's prices, asked for once however many questions want them; how many are new."""
        async with self._pricing:
            return await live_prices.refresh(engine)

    async def _left_behind(self) -> Line:
        """VMs and rules of this user's from before that nothing here looks after."""
        found = await sweep(self.spec.project, yes=False, all_machines=False)
        project = f" --project {self.spec.project}" if self.spec.project else ""
        names = [each["name"] for each in (*found["orphans"], *found["rules"])]
        if names:
            said = f"nothing here looks after {', '.join(names)} of yours."
            return Line(_LEFT, "bad", said, f"transient cluster sweep{project} --yes")
        if found["unreadable"]:
            return Line(_LEFT, "note", " ".join(found["unreadable"]))
        return Line(_LEFT, "good", "no VM and no firewall rule of yours from here that nobody looks after.")

    def _name(self, kind: str, *names: str) -> None:
        self.names.setdefault(kind, []).extend(name for name in names if name)


async def _within(subject: str, ask: Question) -> list[Line]:
    """The answer, or why there is none, within the time that a question may take."""
    limit = _LONG_SECONDS if subject in ("Compute Engine", "prices") else _LIMIT_SECONDS
    try:
        async with asyncio.timeout(limit):
            found = await ask()
    except TransientError as error:
        return [_refused(subject, error)]
    except TimeoutError:
        return [Line(subject, "bad", f"no answer within {limit:.0f} s.", "transient doctor")]
    except OSError as error:  # of this machine's disk
        return [Line(subject, "bad", f"{error.filename or 'this machine'}: {error.strerror or error}.")]
    return [found] if isinstance(found, Line) else list(found)


def _refused(subject: str, error: TransientError) -> Line:
    if isinstance(error, CredentialsError):
        return Line("credentials", "bad", f"{error.what.rstrip('.')}.", _LOGIN)
    if subject == _LEFT and isinstance(error, AccessError):  # as lines above say, with what mends it
        return Line(_LEFT, "note", "not told: it takes rights, or an API, that are missing.")
    return Line(subject, "bad", _without(str(error), error.fix), _commands(error.fix) or error.fix)


def _once(lines: Sequence[Line]) -> list[Line]:
    """The answer to one question may be the reason why others have none; it is said once."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.said, line)
    return list(first.values())


def _of_finding(found: Finding) -> Line:
    """A line of an examination's finding."""
    verdict = "bad" if not found.good else "good" if found.told else "note"
    return Line(found.subject, verdict, _without(found.said, found.fix), _commands(found.fix) or found.fix)


def _without(said: str, fix: str) -> str:
    """The sentence alone, without the remedy behind it."""
    return said.removesuffix(fix).rstrip() if fix else said


def _commands(text: str) -> str:
    """What a remedy names to be typed: its first command, or page; all of them where rights are granted."""
    commands = _COMMAND.findall(text)
    grants = [each for each in commands if each.startswith(_GRANTS)]
    if grants or commands:
        return " && ".join(grants) or commands[0]
    page = re.search(r"https://\S+[^\s.,]", text)
    return page[0] if page else ""


def _signed(line: Line, accounts: Sequence[str]) -> Line:
    """With whose rights it is about, where that is known."""
    if not accounts:
        return line
    kind = "serviceAccount" if accounts[0].endswith("gserviceaccount.com") else "user"
    return replace(line, mend=line.mend.replace("user:YOU@EXAMPLE.COM", f"{kind}:{accounts[0]}"))


def _ahead(least: float, most: float) -> str:
    if least > 0 or most < 0:
        word = "ahead of" if least > 0 else "behind"
        near, far = sorted((abs(least), abs(most)))
        return f"between {near:.1f} and {far:.1f} s {word}"
    return f"at most {max(-least, most):.1f} s from"


async def _answer(spec: ClusterSpec) -> dict[str, object]:
    checkup = Checkup(spec)
    lines = await checkup.lines()
    return {
        "lines": [asdict(each) for each in lines],
        "spec": checkup.spec.to_dict(),
        "image": checkup.image,
        "names": checkup.names,
    }


def main() -> int:
    """Always exit code 0: what is wrong is in the lines."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    print(json.dumps(asyncio.run(_answer(ClusterSpec.from_dict(json.load(sys.stdin))))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
