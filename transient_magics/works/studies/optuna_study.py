"""A study as one of Optuna's, for its plots, importances and dashboard.

It is a copy of the journal: changes to it have no effect. Optuna is imported only on request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...client.results.comparison import evaluated
from ...errors import ClusterError
from ...journal import ClusterState
from .sampling import STATES, distributions, for_optuna
from .state import StudyState, TrialState
from .trials import runs_of, value_of

if TYPE_CHECKING:
    import optuna

_MISSING = "study.optuna needs Optuna, which is not installed here"


def optuna_study(parts: Sequence[tuple[ClusterState, StudyState]]) -> optuna.Study:
    """Return Optuna's study with all trials so far, in memory.

    Values of evaluations are the intermediate values of the trials; names of runs and reasons are
    their user attributes.

    Parameters
    ----------
    parts
        For each cluster on which the study has begun, the states of the cluster and of the study.

    Raises
    ------
    ClusterError
        Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ClusterError(_MISSING, fix="Run %pip install optuna, and try again.") from None
    study = parts[0][1]
    direction = "maximize" if study.spec.goal.direction == "max" else "minimize"
    # Optuna logs the creation of a study, which would appear in the user's cell.
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
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
    """Return a trial as Optuna's; `space` has the distributions of the parameters, by name."""
    from optuna.trial import FrozenTrial
    from optuna.trial import TrialState as OptunaState

    value = None
    if trial.state in ("complete", "pruned"):
        value = value_of(state, study, trial)
    if value is not None and not math.isfinite(value):
        value = None  # Optuna's plots cannot show it.
    optuna_state = OptunaState[STATES.get(trial.state, "RUNNING")]
    if optuna_state == OptunaState.COMPLETE and value is None:
        # Optuna does not accept a complete trial without a value.
        optuna_state = OptunaState.FAIL
    runs = runs_of(state, trial)
    # Several runs of a trial have no common curve.
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
        state=optuna_state,
        value=value,
        datetime_start=datetime.fromtimestamp(trial.asked_at),
        datetime_complete=datetime.fromtimestamp(trial.ended_at) if trial.ended else None,
        params={name: for_optuna(trial.params[name]) for name in space},
        distributions=space,
        user_attrs=attributes,
        system_attrs={},
        intermediate_values=measured,
    )
