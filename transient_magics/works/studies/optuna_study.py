"""A study as one of Optuna's own, for its plots, its importances and its dashboard.

The journal is the truth and this is a copy: what is added to it changes nothing here. Optuna is
imported when it is asked for and nowhere else in the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...client.results.comparison import evaluated
from ...errors import ClusterError
from ...journal import ClusterState, StudyState, TrialState
from .sampling import STATES, distributions, for_optuna
from .trials import runs_of, value_of

if TYPE_CHECKING:
    import optuna

_MISSING = "study.optuna needs Optuna, which is not installed here"


def optuna_study(parts: Sequence[tuple[ClusterState, StudyState]]) -> optuna.Study:
    """The study with all trials so far, under their numbers, in memory.

    `parts`: for each cluster on which it has begun, the state of that and of the study there.

    Values that were measured on the way are the trials' intermediate values; names of runs and
    reasons are their user attributes. Raises ClusterError where Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ClusterError(_MISSING, fix="%pip install optuna, then ask again.") from None
    study = parts[0][1]
    if study.spec.goal.direction == "max":
        direction = "maximize"
    else:
        direction = "minimize"
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(
        optuna.logging.WARNING
    )  # no line about a study in memory in the reader's cell
    try:
        made = optuna.create_study(study_name=study.name, direction=direction)
    finally:
        optuna.logging.set_verbosity(before)
    space = distributions(study.spec)
    for state, part in parts:
        made.add_trials([_trial(state, part, trial, space) for trial in part.trials.values()])
    return made


def _trial(
    state: ClusterState, study: StudyState, trial: TrialState, space: dict[str, Any]
) -> optuna.trial.FrozenTrial:
    from optuna.trial import FrozenTrial
    from optuna.trial import TrialState as Phase

    if trial.state in ("complete", "pruned"):
        value = value_of(state, study, trial)
    else:
        value = None
    if value is not None and math.isfinite(value):
        known = value
    else:
        known = None
    phase = Phase[STATES.get(trial.state, "RUNNING")]
    if phase == Phase.COMPLETE and known is None:
        phase = Phase.FAIL
    runs = runs_of(state, trial)
    if len(runs) == 1:
        measured = dict(evaluated(runs[0], study.spec.goal))
    else:
        measured = {}
    attributes = {
        "runs": list(trial.runs),
        "state": trial.state,
        **({"reason": trial.reason} if trial.reason else {}),
    }
    return FrozenTrial(
        number=study.spec.first + trial.number,
        trial_id=study.spec.first + trial.number,
        state=phase,
        value=known if phase in (Phase.COMPLETE, Phase.PRUNED) else None,
        datetime_start=datetime.fromtimestamp(trial.asked_at),
        datetime_complete=datetime.fromtimestamp(trial.told_at) if trial.told else None,
        params={name: for_optuna(trial.params[name]) for name in space},
        distributions=space,
        user_attrs=attributes,
        system_attrs={},
        intermediate_values=measured,
    )
