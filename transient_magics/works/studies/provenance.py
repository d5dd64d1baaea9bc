"""Studies in a journal that a controller on a VM wrote: which events count.

Events count if the files of this machine confirm them.
"""

from __future__ import annotations

from dataclasses import replace

from ...controller.trust import Sieve
from ...journal import Event, events
from ...journal.declared import read_declaration, was_asked
from ...protocol.cluster_commands import ExtendStudy
from ...protocol.literals import same
from .events import StudyAsked, StudyExtended
from .sampling import point
from .spec import StudySpec
from .state import StudyState


def declared(sieve: Sieve, event: events.WorkDeclared) -> Event:
    """Return the event with the declaration of this machine."""
    return replace(
        event,
        spec=read_declaration(sieve.directory, "study", event.work, StudySpec.from_dict).to_dict(),
    )


def asked(sieve: Sieve, event: StudyAsked) -> Event | None:
    """Return the event if its trial is the next one, with the right runs and parameters.

    The parameters are in the space, and those of the point with its number, if they follow from it.
    """
    study = sieve.state.of(StudyState).get(event.study)
    if study is None or event.trial != len(study.trials) or event.trial >= study.planned:
        return None
    if event.runs != study.spec.run_names(event.trial) or not study.spec.tries(event.params):
        return None
    own = point(study.spec, event.trial)
    if own is not None and not all(same(own[name], value) for name, value in event.params.items()):
        return None
    return event


def extended(sieve: Sieve, event: StudyExtended) -> Event | None:
    """Return the event if this machine requested the further trials, and it is the first one."""
    study = sieve.state.of(StudyState).get(event.study)
    command = ExtendStudy(study=event.study, trials=event.trials, request=event.request)
    invalid = study is None or (event.request and event.request in study.requests)
    if not invalid and event.request and was_asked(sieve.directory, command):
        return event
    return None


RULES = {StudyAsked: asked, StudyExtended: extended}
