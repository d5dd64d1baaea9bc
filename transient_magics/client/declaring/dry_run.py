"""What a declaration or a relocation would create, and for how much: '--dry-run'. Nothing is created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ... import emulator
from ...catalog import check_zone, never_on_demand, region, transfer_price
from ...catalog.published import stand_in_words
from ...errors import DeclarationError, UnreachableError
from ...spec import CONTROLLER, JOBS, TRAINING, ClusterSpec, PriceLine, render_duration
from ...spec.cluster import age_words
from ...spec.image import usual_boot_seconds
from .. import text
from ..commands import run_program
from ..project import emulator_api
from .declaration import WAYS_IN, Declaration, unreachable_by_ssh
from .specification import specify

_NO_END = (
    "Compute Engine takes no end for preemptible VMs (the model before Spot): should nobody be in charge, workers go "
    "on past --max-hours and --max-cost, for 24 h at most; then they are stopped, not deleted; their disks cost on. "
    "--provisioning-model spot costs the same and is deleted in time."
)
_STAYS = (
    "The controller would stay on this machine, which replaces lost workers only while it is awake"
)
_OWN_VM = "--service-account NAME gives it a VM of its own"

_UNSEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Preview:
    """What a declaration would create, and for how much: the answer of `--dry-run`. Nothing was
    created.

    `findings`: what Google said about it, as (subject, good, sentence); the emulator while its
    project lacks something.
    """

    spec: ClusterSpec
    findings: tuple[tuple[str, bool, str], ...] = ()
    foreseen: str = ""
    """What plans say of such a cluster (`client.planning.servers`)."""

    @property
    def well(self) -> bool:
        """Whether nothing that was asked forbids it."""
        return all(good for _, good, _ in self.findings)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per kind of VM: count, role, zone, machine_type, accelerator, model,
        (on_demand_)hourly, source.
        """
        spec = self.spec
        server = spec.prices["parameter-server"]
        role = "scheduler" if spec.purpose == JOBS else "parameter server"
        rows = [_row(spec.parameter_servers, role, spec.home_zone, "", "standard", server)]
        if spec.controller_vm:
            line = spec.price(CONTROLLER, spec.home_zone)
            rows.insert(0, _row(1, "controller", spec.home_zone, "", "standard", line))
        for group in spec.groups:
            zone = group.zone or spec.zones_for(group.accelerator)[0]
            line = spec.price(group.accelerator, zone)
            rows.append(
                _row(group.count, "worker", zone, group.accelerator, spec.provisioning_model, line)
            )
        return rows

    def __str__(self) -> str:
        spec = self.spec
        lines = [
            f"{row['count']} x {row['role']:16}  {row['zone']:16} {row['machine_type']:16} "
            f"{row['accelerator'] or '-':9} {text.RENTED[row['model']]:11} {text.money(row['hourly'])}/h each"
            for row in self.rows
        ]
        if spec.emulated:
            where = "on the emulator (nothing is billed)"
        else:
            where = f"in project {spec.project}"
        source = "; ".join(dict.fromkeys(row["source"] for row in self.rows))
        total = f"{text.money(spec.hourly)} per hour, {text.money(spec.on_demand_hourly)} on demand; {source}."
        if extras := spec.extras_hourly:
            if spec.disk_gb:
                size = f" ({spec.disk_gb} GB {spec.disk_type})"
            else:
                size = ""
            if spec.external_ip:
                what = f"disks{size} and external addresses"
            else:
                what = f"disks{size}"
            total += f" Of that {text.money(extras)} per hour are for {what}."
        ends = f"Ends by itself after {render_duration(spec.ends_at - spec.declared_at)} at the latest."
        heading = f"{spec.name} would be created {where}:"
        answers = [_answered(*finding) for finding in self.findings]
        if spec.bucket:
            kept = [f"Checkpoints and results would be kept in gs://{spec.bucket}."]
        else:
            kept = []
        if spec.purpose == JOBS:
            kept.append(_boots(spec))
        if spec.project and not spec.controller_vm:
            kept.append(f"{_STAYS}." if spec.purpose == JOBS else f"{_STAYS}; {_OWN_VM}.")
        said = [*self.doubts, *filter(None, [self.foreseen]), *answers, *kept]
        return "\n".join([heading, *lines, total, *said, ends, "Nothing was created."])

    @property
    def doubts(self) -> list[str]:
        """A sentence for each zone that does not have what is to run there, for prices that nobody
        pays, and for traffic between zones.
        """
        wanted = [(self.spec.home_zone, "cpu")]
        for group in self.spec.groups:
            wanted.append(
                (group.zone or self.spec.zones_for(group.accelerator)[0], group.accelerator)
            )
        if unreachable := unreachable_by_ssh(self.spec):
            doubts = [f"{unreachable}. {WAYS_IN}"]
        else:
            doubts = []
        doubts += filter(None, [never_on_demand(group.accelerator for group in self.spec.groups)])
        doubts += filter(None, [age_words(self.spec)])
        if self.spec.project and self.spec.provisioning_model == "preemptible":
            doubts.append(_NO_END)
        if self.spec.give_up == "riskiest":
            doubts += filter(
                None,
                [stand_in_words(kind, region(zone)) for zone, kind in dict.fromkeys(wanted[1:])],
            )
        for zone, kind in (
            dict.fromkeys(wanted) if not self.findings else ()
        ):  # those know better than the catalog
            try:
                check_zone(zone, kind)
            except DeclarationError as error:
                doubts.append(str(error))
        away = dict.fromkeys(zone for zone, _ in wanted if zone != self.spec.home_zone)
        for zone in away:
            price = transfer_price(zone, self.spec.home_zone)
            if price.confirmed:
                unsure = ""
            else:
                unsure = ", by a price that is not confirmed"
            doubts.append(
                f"Traffic between {zone} and the parameter servers in {self.spec.home_zone} costs up to "
                f"${price.dollars_per_gib:.2f} per GiB in each direction{unsure}."
            )
        return doubts


def preview(declaration: Declaration) -> Preview:
    """What `declare` would create; with a project, Compute Engine is asked whether it could (some
    seconds).

    So is the emulator while its own project lacks something, as a new one does.

    Raises DeclarationError, and CloudError where the question itself failed.
    """
    spec = specify(declaration)
    if spec.emulated and not _project_lacks():
        return Preview(spec)
    answer = run_program("preflight", "The examination", stdin=json.dumps(spec.to_dict()))
    findings = tuple((each["subject"], each["good"], each["said"]) for each in answer["findings"])
    return Preview(ClusterSpec.from_dict(answer["spec"]), findings)


def _answered(subject: str, good: bool, said: str) -> str:
    """A line of the dry run for one finding. What could not be told is neither good nor bad."""
    unknown = said.removeprefix("not told: ")
    if good and unknown != said:
        return f"NOT TOLD: {subject}: {unknown}"
    return f"{'good' if good else 'NOT GOOD'}: {subject}: {said}"


def _boots(spec: ClusterSpec) -> str:
    """In how many minutes the VMs of a cluster for jobs boot, beside those that train."""
    kinds = {group.accelerator for group in spec.groups}
    here, there = (
        max(usual_boot_seconds(each, kind) for kind in kinds) / 60
        for each in (spec, replace(spec, purpose=TRAINING))
    )
    where = "On Google Cloud its" if spec.emulated else "Its"
    if here == there:
        return f"{where} VMs boot in some {here:.0f} min from an image, as those that train do."
    return f"{where} VMs boot in some {here:.0f} min, without TensorFlow; with it they take {there:.0f} (estimates)."


def _project_lacks() -> bool:
    """Whether this user's emulator runs, with a project that is not whole."""
    url = emulator.running()
    try:
        return bool(url and emulator_api.ask(url, "GET", "/emulator/v1/project", {})["lacks"])
    except UnreachableError:
        return False  # it has just ended


def _row(count: int, role: str, zone: str, gpu: str, model: str, line: PriceLine) -> dict[str, Any]:
    return {
        "count": count,
        "role": role,
        "zone": zone,
        "machine_type": line.machine_type,
        "accelerator": gpu,
        "model": model,
        "hourly": line.on_demand_hourly if model == "standard" else line.hourly,
        "on_demand_hourly": line.on_demand_hourly,
        "source": line.source,
    }


@dataclass(frozen=True)
class Relocation:
    """A cluster that is to be `spec`, from what it is `before`: `begun`, or only asked for.

    `bytes` of checkpoints and shared data follow it and cost `dollars`; `ends_sooner` is by how
    many seconds its end comes nearer, where the limit on money would not last for both places.
    """

    before: ClusterSpec
    spec: ClusterSpec
    begun: bool
    bytes: int
    dollars: float
    ends_sooner: float

    @classmethod
    def of(
        cls, before: ClusterSpec, spec: ClusterSpec, told: Mapping[str, Any], *, begun: bool
    ) -> Relocation:
        """With what the controller has told of it."""
        sooner = max(0.0, float(told["ends_at_before"]) - float(told["ends_at"]))
        return cls(before, spec, begun, int(told["bytes"]), float(told["dollars"]), sooner)

    def __str__(self) -> str:
        would = "moves" if self.begun else "would move"
        said = [
            f"{self.spec.name} {would} to {text.destination(self.spec)}; its runs go on there from a save."
        ]
        if self.bytes:
            said.append(
                f"About {self.bytes / 2**20:,.1f} MiB follow, for {text.transfer_price(self.dollars)} of data transfer."
            )
        elif self.spec.home_zone == self.before.home_zone:
            said.append("Nothing crosses zones for it.")
        else:
            said.append("No run has saved anything that would follow.")
        hourly = (
            f"{text.money(self.spec.hourly)} per hour, {text.money(self.before.hourly)} where it is"
        )
        said.append(f"It costs {hourly}; both are paid until the VMs there are ready.")
        if self.ends_sooner > _UNSEEN_SECONDS:
            said.append(
                f"It ends {render_duration(self.ends_sooner)} sooner, for its limit has to pay for both."
            )
        if not self.begun:
            said.append("Nothing was moved. With --yes (in Python yes=True) it is.")
        return "\n".join(said)

    def __repr__(self) -> str:
        return str(self)
