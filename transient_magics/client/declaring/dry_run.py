"""Previews of a declaration (`--dry-run`) and of a relocation: what they create, and the price."""

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
    "Compute Engine enforces no time limit for preemptible VMs: if the controller dies, workers "
    "run beyond --max-hours and --max-cost, for 24 h at most. Then they are stopped, but not "
    "deleted, and their disks still cost money. --provisioning-model spot costs the same, and "
    "Compute Engine deletes its VMs in time."
)
_STAYS = (
    "The controller would run on this machine, and replaces lost workers only while this machine "
    "is on"
)
_OWN_VM = "with --service-account NAME, it runs on a VM of its own"

_UNSEEN_SECONDS = 60.0


@dataclass(frozen=True)
class Preview:
    """The preview of a declaration: its VMs and their price. Nothing was created.

    Attributes
    ----------
    spec : ClusterSpec
        The complete declaration.
    findings : tuple of (str, bool, str)
        The results of checks by Google, or by the emulator while its project is incomplete:
        subject, whether it passed, and a sentence.
    foreseen : str
        The bottleneck that plans predict for the cluster; empty if there is none.
    """

    spec: ClusterSpec
    findings: tuple[tuple[str, bool, str], ...] = ()
    foreseen: str = ""

    @property
    def well(self) -> bool:
        """Whether all checks passed."""
        return all(good for _, good, _ in self.findings)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per kind of VM.

        Its keys are count, role, zone, machine_type, accelerator, model, hourly, on_demand_hourly
        (US dollars per hour of one VM) and source (of the price).
        """
        spec = self.spec
        server = spec.prices["parameter-server"]
        role = "parameter server"
        if spec.purpose == JOBS:
            role = "scheduler"
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
            f"{row['accelerator'] or '-':9} {text.RENTED[row['model']]:11} "
            f"{text.money(row['hourly'])}/h each"
            for row in self.rows
        ]
        where = f"in project {spec.project}"
        if spec.emulated:
            where = "on the emulator (nothing is billed)"
        source = "; ".join(dict.fromkeys(row["source"] for row in self.rows))
        total = (
            f"{text.money(spec.hourly)} per hour, {text.money(spec.on_demand_hourly)} on "
            f"demand; {source}."
        )
        if extras := spec.extras_hourly:
            what = "disks"
            if spec.disk_gb:
                what += f" ({spec.disk_gb} GB {spec.disk_type})"
            if spec.external_ip:
                what += " and external addresses"
            total += f" This includes {text.money(extras)} per hour for {what}."
        life = render_duration(spec.ends_at - spec.declared_at)
        notes = [*self.doubts, self.foreseen]
        notes += [_finding_words(*finding) for finding in self.findings]
        if spec.bucket:
            notes.append(f"Checkpoints and results would be stored in gs://{spec.bucket}.")
        if spec.purpose == JOBS:
            notes.append(_boots(spec))
        if spec.project and not spec.controller_vm:
            if spec.purpose == JOBS:
                notes.append(f"{_STAYS}.")
            else:
                notes.append(f"{_STAYS}; {_OWN_VM}.")
        notes.append(f"It would be deleted automatically after {life} at the latest.")
        notes.append("Nothing was created.")
        heading = f"{spec.name} would be created {where}:"
        return "\n".join([heading, *lines, total, *filter(None, notes)])

    @property
    def doubts(self) -> list[str]:
        """Sentences about GPUs that a zone lacks, unreachable VMs, prices and data transfer."""
        placed = [(self.spec.home_zone, "cpu")]
        for group in self.spec.groups:
            placed.append(
                (group.zone or self.spec.zones_for(group.accelerator)[0], group.accelerator)
            )
        doubts: list[str] = []
        if unreachable := unreachable_by_ssh(self.spec):
            doubts.append(f"{unreachable}. {WAYS_IN}")
        doubts += filter(None, [never_on_demand(group.accelerator for group in self.spec.groups)])
        doubts += filter(None, [age_words(self.spec)])
        if self.spec.project and self.spec.provisioning_model == "preemptible":
            doubts.append(_NO_END)
        if self.spec.give_up == "riskiest":
            doubts += filter(
                None,
                [stand_in_words(kind, region(zone)) for zone, kind in dict.fromkeys(placed[1:])],
            )
        if not self.findings:  # findings are more reliable than the catalog
            for zone, kind in dict.fromkeys(placed):
                try:
                    check_zone(zone, kind)
                except DeclarationError as error:
                    doubts.append(str(error))
        away = dict.fromkeys(zone for zone, _ in placed if zone != self.spec.home_zone)
        for zone in away:
            price = transfer_price(zone, self.spec.home_zone)
            unsure = ""
            if not price.confirmed:
                unsure = " (price not confirmed)"
            doubts.append(
                f"Traffic between {zone} and the parameter servers in {self.spec.home_zone} costs "
                f"up to ${price.dollars_per_gib:.2f} per GiB in each direction{unsure}."
            )
        return doubts


def preview(declaration: Declaration) -> Preview:
    """Preview a declaration. Nothing is created.

    With a project, Google checks the declaration, which takes some seconds. So does the emulator
    while its project is incomplete.

    Parameters
    ----------
    declaration
        The declaration.

    Returns
    -------
    Preview
        The VMs, their price and the results of the checks, shown as text.

    Raises
    ------
    DeclarationError
        The declaration is invalid.
    CloudError
        The checks could not run.

    Examples
    --------
    >>> tm.preview(tm.Declaration("k80x4", project="my-project")).spec.hourly
    """
    spec = specify(declaration)
    if spec.emulated and not _project_lacks():
        return Preview(spec)
    answer = run_program("preflight", "The examination", stdin=json.dumps(spec.to_dict()))
    findings = tuple(
        (finding["subject"], finding["good"], finding["text"]) for finding in answer["findings"]
    )
    return Preview(ClusterSpec.from_dict(answer["spec"]), findings)


def _finding_words(subject: str, good: bool, sentence: str) -> str:
    """Return a line of the preview for a finding. An unknown result is neither good nor bad."""
    unknown = sentence.removeprefix("unknown: ")
    if good and unknown != sentence:
        return f"UNKNOWN: {subject}: {unknown}"
    if good:
        return f"good: {subject}: {sentence}"
    return f"NOT GOOD: {subject}: {sentence}"


def _boots(spec: ClusterSpec) -> str:
    """Compare the boot time of a cluster for jobs with that of a cluster for training."""
    kinds = {group.accelerator for group in spec.groups}
    minutes, training_minutes = (
        max(usual_boot_seconds(other, kind) for kind in kinds) / 60
        for other in (spec, replace(spec, purpose=TRAINING))
    )
    whose = "Its"
    if spec.emulated:
        whose = "On Google Cloud its"
    if minutes == training_minutes:
        return f"{whose} VMs boot in about {minutes:.0f} min from an image, as those for training."
    return (
        f"{whose} VMs boot in about {minutes:.0f} min without TensorFlow, and in "
        f"{training_minutes:.0f} min with it "
        "(estimates)."
    )


def _project_lacks() -> bool:
    """Return whether the emulator runs with a project that lacks something."""
    url = emulator.running()
    try:
        return bool(url and emulator_api.ask(url, "GET", "/emulator/v1/project", {})["lacks"])
    except UnreachableError:
        return False  # it has just exited


def _row(count: int, role: str, zone: str, gpu: str, model: str, line: PriceLine) -> dict[str, Any]:
    hourly = line.hourly
    if model == "standard":
        hourly = line.on_demand_hourly
    return {
        "count": count,
        "role": role,
        "zone": zone,
        "machine_type": line.machine_type,
        "accelerator": gpu,
        "model": model,
        "hourly": hourly,
        "on_demand_hourly": line.on_demand_hourly,
        "source": line.source,
    }


@dataclass(frozen=True)
class Relocation:
    """A relocation of a cluster, with its price.

    Attributes
    ----------
    before, spec : ClusterSpec
        The declaration before and after the relocation.
    begun : bool
        Whether it has been requested. False: only its price was computed.
    bytes : int
        The size of the checkpoints and shared data that are copied.
    dollars : float
        The price of copying them, in US dollars.
    ends_sooner : float
        The number of seconds by which the cluster ends sooner because of its limit on cost.
    """

    before: ClusterSpec
    spec: ClusterSpec
    begun: bool
    bytes: int
    dollars: float
    ends_sooner: float

    @classmethod
    def of(
        cls, before: ClusterSpec, spec: ClusterSpec, answer: Mapping[str, Any], *, begun: bool
    ) -> Relocation:
        """Build it from the controller's answer."""
        sooner = max(0.0, float(answer["ends_at_before"]) - float(answer["ends_at"]))
        return cls(before, spec, begun, int(answer["bytes"]), float(answer["dollars"]), sooner)

    def __str__(self) -> str:
        verb = "moves" if self.begun else "would move"
        place = text.destination(self.spec)
        sentences = [
            f"{self.spec.name} {verb} to {place}; its runs continue there from a checkpoint."
        ]
        if self.bytes:
            price = text.transfer_price(self.dollars)
            sentences.append(
                f"About {self.bytes / 2**20:,.1f} MiB are copied, for {price} of data transfer."
            )
        elif self.spec.home_zone == self.before.home_zone:
            sentences.append("No data cross zones.")
        else:
            sentences.append("No run has a checkpoint to copy.")
        hourly = text.money(self.spec.hourly)
        present = text.money(self.before.hourly)
        sentences.append(
            f"It costs {hourly} per hour instead of {present}; both are billed until the new VMs "
            "are ready."
        )
        if self.ends_sooner > _UNSEEN_SECONDS:
            sooner = render_duration(self.ends_sooner)
            sentences.append(
                f"The cluster ends {sooner} sooner, because its limit on cost covers both."
            )
        if not self.begun:
            sentences.append("Nothing was moved. Add --yes (in Python yes=True) to relocate.")
        return "\n".join(sentences)

    def __repr__(self) -> str:
        return str(self)
