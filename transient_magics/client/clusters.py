"""Declaring clusters and finding them again.

`declare` turns a Declaration into a ClusterSpec with the catalog's machine types and prices, writes it into the
cluster's own folder and starts the controller, all in some milliseconds; everything slow happens there.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import emulator, places
from ..catalog import (
    ACCELERATORS,
    ZONES,
    accelerator,
    check_zone,
    continent,
    default_zone,
    has_gpu,
    living_alternative,
    never_on_demand,
    price_list,
    region,
    server_machine,
    stack_refusal,
    transfer_price,
    zones_with,
)
from ..emulator.project.program import ask as ask_project
from ..errors import ClusterError, DeclarationError, UnreachableError
from ..journal import ClusterState, declared, kept, read, replay
from ..spec import (
    CONTROLLER,
    EMULATED_PROJECT,
    IAP_RANGE,
    MOST_SECONDS,
    ClusterSpec,
    PriceLine,
    WorkerGroup,
    boot_times,
    own_bucket,
    parse_bucket,
    parse_groups,
    parse_name,
    render_duration,
)
from ..spec.pricing import with_home, worker_prices
from . import commands, text
from .handles import Cluster
from .programs import ask

_WAYS_IN = (
    "Install the Google Cloud CLI, or say from which addresses SSH may come in directly: --ssh-from RANGE "
    "(this machine's own, as the internet sees it, as 203.0.113.7/32)."
)
_NO_END = (
    "Compute Engine takes no end for preemptible VMs (the model before Spot): should nobody be in charge, workers go "
    "on past --max-hours and --max-cost, for 24 h at most; then they are stopped, not deleted; their disks cost on. "
    "--provisioning-model spot costs the same and is deleted in time."
)
MODELS = ("spot", "preemptible", "standard")
_OWN_DRIVER = "Name an image that has such a driver and the stack (--image), or take another GPU."
_STAYS = (
    "The controller would stay on this machine, which replaces lost workers only while it is awake; "
    "--service-account NAME gives it a VM of its own."
)


@dataclass(frozen=True)
class Declaration:
    """What the user typed. Times in seconds where no name says hours, money in US dollars; see the options' help."""

    spec: str
    name: str | None = None
    ps: int = 1
    ps_cores: int | None = None
    ps_machine: str | None = None
    zone: tuple[str, ...] = ()
    provisioning_model: str = "spot"
    max_workers: int | None = None
    replace: bool = True
    fallback_seconds: float | None = None
    chief: str = "ps"
    max_hours: float = 24.0
    max_cost: float | None = None
    idle: float = 1800.0
    project: str | None = None
    bucket: str | None = None
    image: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    firewall: bool = True
    ssh_from: tuple[str, ...] = ()
    controller: str | None = None


@dataclass(frozen=True)
class Preview:
    """What a declaration would create, and for how much: the answer of `--dry-run`. Nothing was created.

    `findings`: what Google said about it, as (subject, good, sentence); the emulator while its project lacks something.
    """

    spec: ClusterSpec
    findings: tuple[tuple[str, bool, str], ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per kind of VM: count, role, zone, machine_type, accelerator, model, (on_demand_)hourly, source."""
        spec = self.spec
        server = spec.prices["parameter-server"]
        rows = [_row(spec.parameter_servers, "parameter server", spec.home_zone, "", "standard", server)]
        if spec.controller_vm:
            line = spec.price(CONTROLLER, spec.home_zone)
            rows.insert(0, _row(1, "controller", spec.home_zone, "", "standard", line))
        for group in spec.groups:
            zone = group.zone or spec.zones_for(group.accelerator)[0]
            line = spec.price(group.accelerator, zone)
            rows.append(_row(group.count, "worker", zone, group.accelerator, spec.provisioning_model, line))
        return rows

    def __str__(self) -> str:
        spec = self.spec
        lines = [
            f"{row['count']} x {row['role']:16}  {row['zone']:16} {row['machine_type']:16} "
            f"{row['accelerator'] or '-':9} {text.RENTED[row['model']]:11} {text.money(row['hourly'])}/h each"
            for row in self.rows
        ]
        where = "on the emulator (nothing is billed)" if spec.emulated else f"in project {spec.project}"
        source = "; ".join(dict.fromkeys(row["source"] for row in self.rows))
        total = f"{text.money(spec.hourly)} per hour, {text.money(spec.on_demand_hourly)} on demand; {source}."
        if extras := spec.extras_hourly:
            what = "disks and external addresses" if spec.external_ip else "disks"
            total += f" Of that {text.money(extras)} per hour are for {what}."
        ends = f"Ends by itself after {render_duration(spec.ends_at - spec.declared_at)} at the latest."
        heading = f"{spec.name} would be created {where}:"
        answers = [_answered(*finding) for finding in self.findings]
        kept = [f"Checkpoints and results would be kept in gs://{spec.bucket}."] if spec.bucket else []
        if spec.project and not spec.controller_vm:
            kept.append(_STAYS)
        return "\n".join([heading, *lines, total, *self.doubts, *answers, *kept, ends, "Nothing was created."])

    @property
    def doubts(self) -> list[str]:
        """A sentence for each zone that does not have what is to run there, for prices that nobody pays, and for
        traffic between zones."""
        wanted = [(self.spec.home_zone, "cpu")]
        for group in self.spec.groups:
            wanted.append((group.zone or self.spec.zones_for(group.accelerator)[0], group.accelerator))
        doubts = [f"{unreachable}. {_WAYS_IN}"] if (unreachable := _unreachable(self.spec)) else []
        doubts += filter(None, [never_on_demand(group.accelerator for group in self.spec.groups)])
        if self.spec.project and self.spec.provisioning_model == "preemptible":
            doubts.append(_NO_END)
        for zone, kind in dict.fromkeys(wanted) if not self.findings else ():  # those know better than the catalog
            try:
                check_zone(zone, kind)
            except DeclarationError as error:
                doubts.append(str(error))
        away = dict.fromkeys(zone for zone, _ in wanted if zone != self.spec.home_zone)
        for zone in away:
            price = transfer_price(zone, self.spec.home_zone)
            unsure = "" if price.confirmed else f" ({price.source})"
            doubts.append(
                f"Traffic between {zone} and the parameter servers in {self.spec.home_zone} costs up to "
                f"${price.dollars_per_gib:.2f} per GiB in each direction{unsure}."
            )
        return doubts


def declare(declaration: Declaration) -> Cluster:
    """Declare a cluster and return at once; its controller provisions it. Raises DeclarationError or ClusterError."""
    spec = specify(declaration)
    if unreachable := _unreachable(spec):
        raise DeclarationError(unreachable, where="--ssh-from", fix=_WAYS_IN)
    directory = places.cluster(spec.name)
    if directory.exists():
        _make_room(spec.name)
    fresh = places.private(places.clusters()) / f".{spec.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        places.private(fresh / "runs")
        fresh.chmod(0o700)
        (fresh / "spec.json").write_text(json.dumps(spec.to_dict(), indent=1))
        fresh.rename(directory)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if directory.exists():
            raise _taken(spec.name) from None
        raise ClusterError(f"The cluster's folder cannot be made: {error.strerror}", where=str(directory)) from error
    commands.start_controller(directory)
    return Cluster(spec.name)


def preview(declaration: Declaration) -> Preview:
    """What `declare` would create; with a project, Compute Engine is asked whether it could (some seconds).

    So is the emulator while its own project lacks something, as a new one does.

    Raises DeclarationError, and CloudError where the question itself failed.
    """
    spec = specify(declaration)
    if spec.emulated and not _project_lacks():
        return Preview(spec)
    answer = ask("preflight", "The examination", stdin=json.dumps(spec.to_dict()))
    findings = tuple((each["subject"], each["good"], each["said"]) for each in answer["findings"])
    return Preview(ClusterSpec.from_dict(answer["spec"]), findings)


def _answered(subject: str, good: bool, said: str) -> str:
    """A line of the dry run for one finding. What could not be told is neither good nor bad."""
    unknown = said.removeprefix("not told: ")
    if good and unknown != said:
        return f"NOT TOLD: {subject}: {unknown}"
    return f"{'good' if good else 'NOT GOOD'}: {subject}: {said}"


def _project_lacks() -> bool:
    """Whether this user's emulator runs, with a project that is not whole."""
    url = emulator.running()
    try:
        return bool(url and ask_project(url)["lacks"])
    except UnreachableError:
        return False  # it has just ended


def specify(declaration: Declaration) -> ClusterSpec:
    """The whole specification: names, zones, machine types and prices filled in. Raises DeclarationError."""
    groups = parse_groups(declaration.spec, ACCELERATORS, ZONES)
    kinds = [group.accelerator for group in groups]
    _refuse(declaration, kinds)
    name = parse_name(declaration.name, "--name") if declaration.name else _free_name(groups)
    workers = sum(group.count for group in groups)
    most = declaration.max_workers if declaration.max_workers is not None else 2 * workers
    if most < workers:
        raise DeclarationError(f"{workers} workers are more than the {most} allowed", where="--max-workers")
    zones = declaration.zone or (_default_zone(groups),)
    candidates = _candidates(groups, zones, fixed=bool(declaration.zone))
    lines = price_list(kinds, external_ip=declaration.external_ip)
    spec = ClusterSpec(
        name=name,
        groups=groups,
        zones=zones,
        candidates=candidates,
        prices=worker_prices(lines, groups, candidates, declaration.provisioning_model),
        id=secrets.token_hex(4),
        declared_at=time.time(),
        parameter_servers=declaration.ps,
        parameter_server_cores=_server_cores(declaration),
        parameter_server_machine=declaration.ps_machine or "",
        provisioning_model=declaration.provisioning_model,
        max_workers=most,
        replace=declaration.replace,
        fallback_seconds=declaration.fallback_seconds,
        chief=declaration.chief,
        max_seconds=3600 * declaration.max_hours,
        max_cost=declaration.max_cost,
        reserved_workers=declaration.max_workers or 0,
        idle_seconds=declaration.idle,
        project=declaration.project,
        image=declaration.image,
        service_account=_account(declaration),
        network=declaration.network,
        subnet=declaration.subnet,
        external_ip=declaration.external_ip,
        firewall=declaration.firewall,
        ssh_from=declaration.ssh_from or ((IAP_RANGE,) if declaration.firewall else ()),
        controller=declaration.controller or _default_controller(declaration),
    )
    spec = with_home(spec, lines).with_end()
    _refuse_short(spec)
    # As whoever reads it will: a value of another type is refused here, not by the controller.
    return ClusterSpec.from_dict(replace(spec, bucket=_bucket(declaration, spec.home_zone)).to_dict())


def resized(spec: ClusterSpec, text: str) -> ClusterSpec:
    """`spec` with the workers of the SPEC `text`. Raises DeclarationError."""
    groups = parse_groups(text, ACCELERATORS, ZONES)
    workers = sum(group.count for group in groups)
    if workers > spec.max_workers:
        what = f"{workers} workers are more than the {spec.max_workers} that {spec.name} may have"
        raise DeclarationError(what, fix="Declare the cluster with --max-workers.")
    kinds = [group.accelerator for group in groups]
    if not spec.emulated and (refused := next(filter(None, map(living_alternative, kinds)), "")):
        raise DeclarationError(refused)
    if not spec.emulated:  # what it was declared with, an image of the user's has a driver for
        _refuse_driver(kind for kind in kinds if kind not in spec.prices)
    refuse_on_demand(spec.provisioning_model, spec.fallback_seconds, kinds)
    known = [*spec.prices, *kinds] if "k80" in spec.prices else kinds
    lines = price_list(known, external_ip=spec.external_ip)
    fixed = bool(spec.candidates) and all(set(zones) <= set(spec.zones) for zones in spec.candidates.values())
    candidates = {**_candidates(groups, spec.zones, fixed=fixed), **spec.candidates}
    prices = worker_prices(lines, groups, candidates, spec.provisioning_model)
    return with_home(replace(spec, groups=groups, candidates=candidates, prices={**spec.prices, **prices}), lines)


def cluster(name: str | None = None) -> Cluster:
    """The cluster called `name`, else the one declared last. Raises ClusterError where there is none."""
    if name is None:
        if living := clusters():
            return living[-1]
        raise ClusterError("There is no cluster yet", fix="Declare one: %transient_cluster k80x4")
    name = parse_name(name, "the cluster's name")
    if not (places.cluster(name) / "spec.json").exists():
        names = ", ".join(each.name for each in clusters(all=True))
        raise ClusterError(
            f"There is no cluster {name}",
            fix=f"There are: {names}." if names else "Declare one: %transient_cluster k80x4",
        )
    return Cluster(name)


def attach(name: str | None = None, project: str | None = None) -> Cluster:
    """Like `cluster`; one that another machine declared (in `project`, else on the emulator) is followed from here on.

    That takes some seconds, and a cluster with `--controller cluster`. Raises ClusterError or CloudError.
    """
    known = name is None or (places.cluster(parse_name(name, "the cluster's name")) / "spec.json").exists()
    if name is None or known or not (project or emulator.running()):
        return cluster(name)
    found = Path(ask("attach", "Attaching", name, *([project] if project else []))["folder"])
    commands.start_controller(found)
    return cluster(name)


def clusters(all: bool = False) -> list[Cluster]:
    """Clusters of this machine that are not deleted (`all`: those too), in the order of their declaration.

    Those of which neither declaration nor journal can be read are passed over (`unreadable`).
    """
    paths = sorted(places.clusters().glob("[a-z]*/spec.json"), key=lambda path: path.stat().st_mtime)
    found = [Cluster(path.parent.name) for path in paths if not declared.unreadable(path.parent) or _told(path.parent)]
    return found if all else [each for each in found if not each.state.over]


def unreadable() -> list[str]:
    """A sentence for each cluster's folder on this machine that cannot be read, unless its journal says it is over."""
    found = {
        path.parent: declared.unreadable(path.parent) for path in sorted(places.clusters().glob("[a-z]*/spec.json"))
    }
    return [why for folder, why in found.items() if why and not ((state := _told(folder)) and state.over)]


def _told(folder: Path) -> ClusterState | None:
    """What the journal says of a cluster, if it says what that is."""
    try:
        state = kept(folder / "journal.jsonl").read()
    except OSError:
        return None
    return state if state.spec else None


def fetch(store: str, project: str | None, folder: Path, *, results: bool) -> None:
    """Bring checkpoints, and `results` if wanted, from a run's place in a bucket into `folder`. Raises CloudError."""
    request = {"store": store, "project": project, "folder": str(folder.absolute()), "results": results}
    ask("fetch", "Fetching", stdin=json.dumps(request), timeout=6 * 3600.0)


def _refuse(declaration: Declaration, kinds: list[str]) -> None:
    if declaration.provisioning_model not in MODELS:
        what = f"Unknown provisioning model '{declaration.provisioning_model}'"
        raise DeclarationError(what, where="--provisioning-model", fix=f"Choose from {', '.join(MODELS)}.")
    for zone in declaration.zone:
        parse_groups(f"cpu@{zone}", ["cpu"], ZONES)
    if not declaration.max_hours > 0:
        raise DeclarationError("--max-hours must be above 0", fix="Write 24h, or hours as a number.")
    if 3600 * declaration.max_hours > MOST_SECONDS:
        what = f"Compute Engine ends VMs after {MOST_SECONDS / 86400:g} days at most"
        raise DeclarationError(what, where="--max-hours", fix=f"Write {MOST_SECONDS / 86400:g}d or less.")
    if declaration.ps < 1 or declaration.ps > 16:
        raise DeclarationError("A cluster has 1 to 16 parameter servers", where="--ps")
    if declaration.ps_cores not in (None, 1, 2, 4, 8, 16, 32):
        raise DeclarationError("Parameter servers have 1, 2, 4, 8, 16 or 32 vCPUs", where="--ps-cores")
    if declaration.ps_cores and declaration.ps_machine:
        raise DeclarationError("--ps-machine says how many vCPUs each has", fix="Leave out --ps-cores.")
    if declaration.project and (refused := next(filter(None, map(living_alternative, kinds)), "")):
        raise DeclarationError(refused, fix="Without --project it runs on the emulator.")
    if declaration.project and not declaration.image:
        _refuse_driver(kinds)
    refuse_on_demand(declaration.provisioning_model, declaration.fallback_seconds, kinds)
    if declaration.controller == "cluster" and declaration.bucket == "none":
        what = "Results that this machine may not be there to take need a bucket"
        raise DeclarationError(what, where="--controller cluster", fix="Leave out --bucket none.")
    if declaration.controller == "cluster" and declaration.project and not declaration.service_account:
        what = "The VM on which the controller runs makes and deletes VMs, so it has to be said by which account"
        fix = "Name it with --service-account; docs/accounts.md has the commands that make one."
        raise DeclarationError(what, where="--controller cluster", fix=fix)


def _refuse_short(spec: ClusterSpec) -> None:
    """Raise DeclarationError where the limits end the cluster before its VMs have booted."""
    seconds = spec.ends_at - spec.declared_at
    needed = max(boot_times.least(spec, group.accelerator) for group in spec.groups)
    if seconds < needed:
        option = "--max-hours" if seconds == spec.max_seconds else "--max-cost"
        raise DeclarationError(
            f"This cluster would end after {render_duration(seconds)}, and its VMs take {render_duration(needed)} or "
            "more to boot",
            where=option, fix="Raise it, or bake an image (`%transient_image build`), from which they boot sooner.",
        )  # fmt: skip


def _server_cores(declaration: Declaration) -> int:
    """vCPUs of each parameter server. Raises DeclarationError for a machine that none may have."""
    if declaration.ps_machine:
        return server_machine(declaration.ps_machine).vcpus
    return declaration.ps_cores or 4


def _refuse_driver(kinds: Iterable[str]) -> None:
    if refused := next(filter(None, map(stack_refusal, kinds)), ""):
        raise DeclarationError(refused, fix=_OWN_DRIVER)


def refuse_on_demand(model: str, fallback_seconds: float | None, kinds: Iterable[str]) -> None:
    """Raise DeclarationError where that would rent a GPU on demand that is not sold so."""
    for kind in kinds:
        if accelerator(kind).spot_only and (model == "standard" or fallback_seconds is not None):
            option = "--provisioning-model" if model == "standard" else "--fallback"
            machine = accelerator(kind).machine_type
            what = f"Compute Engine sells the machine of one {kind.upper()} ({machine}) as Spot only"
            raise DeclarationError(what, where=option, fix="Leave it out.")


def _unreachable(spec: ClusterSpec) -> str:
    """Why this machine could not reach the VMs (a clause), or nothing."""
    if not spec.through_proxy or shutil.which("gcloud"):
        return ""
    return "SSH goes through Identity-Aware Proxy, and the program gcloud, which opens the way, is not on this machine"


def _default_controller(declaration: Declaration) -> str:
    """With a project: on a VM, so that a closed laptop changes nothing, where there is an account for it and the
    results have somewhere else to go than this machine."""
    possible = declaration.project and declaration.service_account and declaration.bucket != "none"
    return "cluster" if possible else "local"


def _account(declaration: Declaration) -> str | None:
    """The address of the service account: a plain name is one of the project's; Compute Engine's own is `default`."""
    account, project = declaration.service_account, declaration.project
    if not account or not project or "@" in account or account == "default":
        return account
    domain = ".".join(reversed(project.split(":")))  # of `example.com:project`, too
    return f"{account}@{domain}.iam.gserviceaccount.com"


def _bucket(declaration: Declaration, home_zone: str) -> str | None:
    if declaration.bucket:
        return None if declaration.bucket == "none" else parse_bucket(declaration.bucket, "--bucket")
    if declaration.project or declaration.controller == "cluster":
        return own_bucket(declaration.project or EMULATED_PROJECT, region(home_zone))
    return None


def _default_zone(groups: tuple[WorkerGroup, ...]) -> str:
    """For the groups that name no zone: beside those that do, if their GPUs are there, else the catalog's best."""
    kinds = [group.accelerator for group in groups if not group.zone]
    named = [group.zone for group in groups if group.zone]
    beside = (zone for zone in named if all(has_gpu(zone, kind) for kind in kinds))
    return next(beside, None) or default_zone(kinds)


def _candidates(
    groups: tuple[WorkerGroup, ...], zones: tuple[str, ...], *, fixed: bool = False
) -> dict[str, tuple[str, ...]]:
    """By GPU: the zones in which groups without one may be. `fixed`: the user's own; else all of the continent.

    The first zone is the cluster's, then come those of its region, whose traffic is cheapest, then the others by price.
    """
    home, found = zones[0], {}
    for kind in dict.fromkeys(group.accelerator for group in groups if not group.zone):
        if fixed:
            found[kind] = tuple(zone for zone in zones if has_gpu(zone, kind)) or zones
        else:
            near = [zone for zone in zones_with(kind) if continent(zone) == continent(home)]
            found[kind] = tuple(sorted(near, key=lambda zone: (zone != home, region(zone) != region(home)))) or zones
    return found


def _row(count: int, role: str, zone: str, gpu: str, model: str, line: PriceLine) -> dict[str, Any]:
    return {
        "count": count, "role": role, "zone": zone, "machine_type": line.machine_type, "accelerator": gpu,
        "model": model, "hourly": line.on_demand_hourly if model == "standard" else line.hourly,
        "on_demand_hourly": line.on_demand_hourly, "source": line.source,
    }  # fmt: skip


def _free_name(groups: tuple[WorkerGroup, ...]) -> str:
    base = "-".join(f"{group.accelerator}{f'x{group.count}' if group.count > 1 else ''}" for group in groups)
    base = base[:30].strip("-")
    number = 1
    while places.cluster(name := base if number == 1 else f"{base}-{number}").exists():
        number += 1
    return name


def _make_room(name: str) -> None:
    """A deleted cluster's folder makes way for a new one of the same name; nothing of it is thrown away."""
    directory = places.cluster(name)
    if not replay(read(directory / "journal.jsonl")).over:
        raise _taken(name)
    target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory.rename(target if not target.exists() else target.with_name(f"{target.name}-{os.getpid()}"))


def _taken(name: str) -> ClusterError:
    return ClusterError(
        f"There is a cluster {name} already",
        fix=f"Take it: %transient_cluster attach {name}. Or end it: %transient_cluster delete {name}.",
    )
