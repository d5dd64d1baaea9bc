"""The doctor: is all here that training on Google Cloud needs, and, for a dollar at most, does it work?

Without money nothing is made: questions to this machine and to Google, each answer with the command that mends it. With
`spend` an hour's course is gone through (`course`), whose most is said and agreed to before. Either way there is a
report that can be shown to others (`report`): nobody's names are in it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ... import places
from ...errors import DeclarationError, TransientError
from ...spec import EMULATED_PROJECT, ClusterSpec, own_bucket, render_money
from ..declaring import Declaration, specify
from ..finding import clusters
from ..programs import ask
from . import estimate, report
from .course import Course
from .diagnosis import Diagnosis, Line, unrepeated

__all__ = ["SHAPE", "Diagnosis", "Line", "doctor"]

SHAPE = "cpu+t4"
"""What is examined where nothing is named: a worker without a GPU, and one with the cheapest, both on Spot."""
_PREFIX = "doctor-"
_OF_A_COURSE = re.compile(rf"{_PREFIX}(?:cpu|gpu)-[0-9a-f]{{6}}")
"""The names of a course's clusters. Users may call theirs doctor-something too."""
_IDLE_SECONDS = 600.0
_LIMIT_SECONDS = 180.0


def doctor(
    spec: str = "",
    *,
    spend: float | None = None,
    yes: bool = False,
    anyway: bool = False,
    agree: Callable[[str], bool] | None = None,
    say: Callable[[str], None] = lambda words: None,
    report_to: str | Path | None = None,
    **options: Any,
) -> Diagnosis:
    """What is good and what is not for a cluster like `spec` (SHAPE) with these `options` of Declaration.

    `spend`: go through the course, which may cost so many US dollars at most. What it costs is agreed to by `yes`, or
    by `agree(sentence)`; on the emulator it costs nothing. `anyway`: also where something is not good. `say` is told
    what is found as it is found. Raises DeclarationError where the most is more than `spend`, or nobody agreed.
    """
    declaration = Declaration(spec=spec or SHAPE, name=_name(), **options)
    folder = _folder()
    record = folder / f".exchanges.{os.getpid()}"
    stages: tuple[Line, ...] = ()
    with _recorded(record):
        began = time.time()
        answer, lines = _checked(_kept(declaration))
        told = unrepeated(lines)
        for line in told:
            say(str(line))
        prepared = ClusterSpec.from_dict(answer["spec"])
        course: Course | None = None
        try:
            if spend is not None:
                course = _course(declaration, prepared, answer["image"], folder, say)
                if anyway or not any(each.verdict == "bad" for each in lines):
                    _agreed(course, spend, yes=yes, agree=agree, say=say)
                    stages = course.run()
                else:
                    why = "not begun, for something above is not good; --anyway tries all the same."
                    stages = (Line("the course", "bad", why),)
                    say(str(stages[0]))
        finally:
            if course:
                (folder / f"{course.mark}.pid").unlink(missing_ok=True)
                stages = stages or tuple(course.stages)
            path = Path(report_to).expanduser() if report_to else folder / "doctor-report.json"
            written = _report(path, declaration, answer["names"], lines, stages, record, began)
    return Diagnosis(declaration.project, tuple(told), stages, written)


def _checked(spec: ClusterSpec) -> tuple[Mapping[str, Any], list[Line]]:
    """What the program of the controller's answers, and what this machine's own clusters say."""
    try:
        answer = ask("checkup", "The examination", stdin=json.dumps(spec.to_dict()), timeout=_LIMIT_SECONDS)
    except TransientError as error:
        answer = {"lines": [], "spec": spec.to_dict(), "image": "", "names": {}}
        return answer, [Line("the examination", "bad", str(error)), *_forgotten()]
    return answer, [*(Line(**each) for each in answer["lines"]), *_forgotten()]


def _forgotten() -> list[Line]:
    """Clusters of earlier courses whose program was killed."""
    left = [each.name for each in clusters() if _OF_A_COURSE.fullmatch(each.name) and not _looked_after(each.name)]
    return [
        Line("left behind", "bad", f"{name} is of a course that was killed.", f"transient cluster delete {name}")
        for name in left
    ]


def _looked_after(name: str) -> bool:
    """Whether the program that declared the cluster goes on."""
    marks = places.home() / "doctor" / f"{name.rpartition('-')[2]}.pid"
    try:
        os.kill(int(marks.read_text(encoding="utf-8")), 0)
    except (OSError, ValueError):
        return False
    return True


def _course(
    declaration: Declaration, prepared: ClusterSpec, image: str, folder: Path, say: Callable[[str], None]
) -> Course:
    """The course for the GPU that is declared, with VMs that end by themselves."""
    groups = [group for group in prepared.groups if group.accelerator != "cpu"]
    if not groups:
        raise DeclarationError("The course is about a GPU", where="SPEC", fix="Name one, as t4.")
    mark = secrets.token_hex(3)
    (folder / f"{mark}.pid").write_text(str(os.getpid()), encoding="utf-8")
    common = replace(
        _with_bucket(declaration), idle=_IDLE_SECONDS, controller="local", replace=False, zone=declaration.zone,
    )  # fmt: skip
    gpu_seconds = estimate.GPU_SECONDS if image else estimate.GPU_BARE_SECONDS
    return Course(
        cpu=replace(
            common, spec="cpu", name=f"{_PREFIX}cpu-{mark}", max_hours=estimate.CPU_SECONDS / 3600, max_workers=1
        ),
        gpu=replace(
            common,
            spec=f"{groups[0].accelerator}{f'@{groups[0].zone}' if groups[0].zone else ''}",
            name=f"{_PREFIX}gpu-{mark}",
            max_hours=gpu_seconds / 3600,
            max_workers=1,
        ),
        mark=mark,
        image=image,
        folder=folder,
        say=say,
    )


def _agreed(
    course: Course, spend: float, *, yes: bool, agree: Callable[[str], bool] | None, say: Callable[[str], None]
) -> None:
    """Say what it costs at most. DeclarationError where that is more than may be spent, or nobody agrees."""
    found = estimate.parts(specify(course.cpu), specify(course.gpu), image=bool(course.image))
    most, words = sum(each.most for each in found), estimate.words(found)
    if course.gpu.project is None:
        say(f"The course costs nothing on the emulator. On Google Cloud: {words}.")
        return
    if most > spend:
        fix = f"--spend {math.ceil(100 * most) / 100:.2f} allows it."
        raise DeclarationError(f"The course may cost more than {render_money(spend)}: {words}", fix=fix)
    question = f"The course costs {words}. Every VM of it is deleted by Compute Engine itself at its end."
    say(question)
    if not yes and not (agree and agree("Rent them?")):
        raise DeclarationError(
            "The cost of the course needs your agreement", where="--spend", fix="Add --yes to agree."
        )


def _folder() -> Path:
    """Where reports are kept; a passing one where nothing can be kept here, which a line says."""
    try:
        return places.private(places.home() / "doctor")
    except OSError:
        return Path(tempfile.mkdtemp(prefix="doctor-"))


def _report(
    path: Path, declaration: Declaration, names: Mapping[str, list[str]], lines: list[Line], stages: tuple[Line, ...],
    record: Path, now: float,
) -> Path | None:  # fmt: skip
    """Write it, and take the record away; None where it cannot be written, which is no reason to say nothing else."""
    asked = {key: value for key, value in asdict(declaration).items() if value not in (None, (), "")}
    asked.pop("name")
    known: dict[str, list[str]] = {kind: list(each) for kind, each in {**report.own_names(), **names}.items()}
    known.setdefault("project", []).append(declaration.project or EMULATED_PROJECT)
    own = (declaration.network, declaration.subnet, declaration.service_account, declaration.image)
    known.setdefault("other", []).extend(each for each in own if each and each != "default")  # everybody's name
    known.setdefault("bucket", []).append((declaration.bucket or "").partition("/")[0])
    try:
        exchanges = report.read_exchanges(record)
        return report.write(report.make(known, asked, lines, stages, exchanges, now), path)
    except OSError:
        return None


def _kept(declaration: Declaration) -> ClusterSpec:
    return specify(_with_bucket(declaration))


def _with_bucket(declaration: Declaration) -> Declaration:
    """Also on the emulator a bucket is used, for the sake of what is tried."""
    if declaration.bucket or declaration.project:
        return declaration
    home = specify(declaration).home_zone
    return replace(declaration, bucket=own_bucket(EMULATED_PROJECT, home.rpartition("-")[0]))


def _name() -> str:
    return f"{_PREFIX}{secrets.token_hex(3)}"


@contextlib.contextmanager
def _recorded(path: Path) -> Iterator[None]:
    """Have all programs that are started meanwhile note what they ask of Google's services."""
    path.unlink(missing_ok=True)
    before = os.environ.get(places.RECORD_VARIABLE)
    os.environ[places.RECORD_VARIABLE] = str(path)
    try:
        yield
    finally:
        if before is None:
            del os.environ[places.RECORD_VARIABLE]
        else:
            os.environ[places.RECORD_VARIABLE] = before
        path.unlink(missing_ok=True)
