"""What a study says of itself: trials, configurations with mean and spread, Optuna's own study, text."""

from __future__ import annotations

import builtins
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.panels.study_story import STEPS, StudyStory, specification
from transient_magics import client, panels
from transient_magics.client import focus, text
from transient_magics.errors import ClusterError, DeclarationError, TransientError
from transient_magics.journal import Cost, Journal, RunState, bill, costs, events, replay
from transient_magics.protocol.space import parse_space
from transient_magics.works.studies import trials
from transient_magics.works.studies.events import StudyExtended
from transient_magics.works.studies.optuna_study import optuna_study
from transient_magics.works.studies.sampling import OptunaSampler
from transient_magics.works.studies.state import StudyState
from transient_magics.works.studies.view import picture, plot_html, table_html
from transient_magics.works.studies.view import sections as studies_of
from transient_magics.works.studies.words import study_words

STORY = StudyStory(specification(40), told=12)


def story_of_repeats() -> StudyStory:
    return StudyStory(specification(4, repeat=5, pruner="none"), told=4, running=0, over=True)


def test_a_trial_has_its_steps_hours_dollars_and_the_revocations_of_its_own_workers() -> None:
    state = STORY.state
    assert state.passed_over == 0
    rows = trials.rows_of(state, state.of(StudyState)["search"], STORY.now, costs(state, STORY.now))
    assert [row.number for row in rows] == list(range(16))
    assert [row.number for row in rows if row.best] == [0]
    account = bill(state, STORY.now)
    assert sum(row.dollars for row in rows) == pytest.approx(account.lines["search"]), "trials sum to the study"
    assert sum(account.lines.values()) == pytest.approx(account.total)
    assert [row.revocations for row in rows] == [0, 0, 0, 1] + 12 * [0]
    assert rows[0].hours == pytest.approx(79.7 / 3600, rel=1e-3)
    assert [(row.state, row.words) for row in rows[1:3]] == [
        ("pruned", "pruned at step 160"), ("failed", "failed: its loss is no number"),
    ]  # fmt: skip
    assert rows[2].value is None
    assert (rows[15].state, rows[15].words, rows[15].best) == ("running", f"step 300 of {STEPS}", False)
    assert rows[15].value == state.of(RunState)["search-15"].metrics["accuracy"], "what it measured last"


def test_configurations_have_mean_and_deviation_over_their_runs_and_of_one_run_no_deviation() -> None:
    story = story_of_repeats()
    state = story.state
    study = state.of(StudyState)["search"]
    table = trials.configurations([(state, study)], story.now)
    assert [each.trials for each in table] == [(0,), (3,)], "the best first; what was pruned or failed is not counted"
    assert (table[0].n, table[0].best, table[1].best) == (5, True, False)
    values = [state.of(RunState)[name].metrics["accuracy"] for name in study.trials[0].runs]
    mean = sum(values) / 5
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 4)
    spread = table[0].metrics["accuracy"]
    assert (spread.mean, spread.sd) == (pytest.approx(mean), pytest.approx(deviation))
    assert table[0].metrics["accuracy"].mean == pytest.approx(study.trials[0].value), "as the sampler was told"
    assert table[1].revocations.mean == pytest.approx(1 / 5)
    first = str(table).splitlines()[1].split("  ")
    assert f"{mean:.3f} ± {deviation:.3f}" in map(str.strip, first)
    assert str(table).splitlines()[-1] == "Not counted: 1 pruned, 1 failed."
    frame = table.frame()
    assert list(frame.columns)[2:6] == ["n", "accuracy", "accuracy_sd", "hours"]

    once = trials.configurations([(STORY.state, STORY.state.of(StudyState)["search"])], STORY.now)
    assert {each.n for each in once} == {1}
    assert "±" not in str(once)
    assert once.frame()["accuracy_sd"].isna().all()
    empty = StudyStory(specification(3), told=0, running=0)
    assert (
        str(trials.configurations([(empty.state, empty.state.of(StudyState)["search"])], empty.now))
        == "No trial is complete yet."
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "-"),
        ([0.5], "0.5"),
        ([1.0, 1.0], "1 ± 0"),
        ([0.90, 0.96], "0.930 ± 0.042"),
        ([1000.0, 1200.0], "1,100 ± 141"),
    ],
)
def test_a_spread_has_two_digits_of_its_deviation(values: list[float], said: str) -> None:
    assert trials.Spread.of(values).words() == said


@pytest.mark.slow
def test_optuna_has_the_same_trials_and_draws_them(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    state = STORY.state
    study = state.of(StudyState)["search"]
    made = optuna_study([(state, study)])
    assert isinstance(made, optuna.Study)
    assert study.best
    assert (made.best_trial.number, made.best_value) == (0, study.best.value)
    assert made.best_params == dict(study.best.params)
    assert [trial.number for trial in made.trials] == list(study.trials)
    assert [trial.state.name for trial in made.trials[:4]] == ["COMPLETE", "PRUNED", "FAIL", "COMPLETE"]
    assert {trial.state.name for trial in made.trials[12:]} == {"RUNNING"}
    assert made.trials[1].intermediate_values == {
        50: pytest.approx(0.3, abs=0.2),
        100: pytest.approx(0.5, abs=0.3),
        150: study.trials[1].value,
    }
    assert made.trials[0].duration.total_seconds() == pytest.approx(80.2, abs=0.1)
    frame = made.trials_dataframe()
    assert {"params_learning_rate", "params_batch_size", "user_attrs_runs"} <= set(frame.columns)
    importance = optuna.importance.get_param_importances(
        made, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
    )
    assert set(importance) == {"learning_rate", "batch_size"}
    kept = optuna.create_study(storage=f"sqlite:///{tmp_path}/search.db", direction=made.direction)
    kept.add_trials(made.trials)
    assert [(trial.state, trial.params) for trial in kept.trials] == [(each.state, each.params) for each in made.trials]
    made.sampler = optuna.samplers.TPESampler(seed=1)
    asked = made.ask(made.trials[0].distributions)
    assert asked.number == 16, "it goes on from here, beside the real one"


def test_without_optuna_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "optuna":
            raise ImportError(name)
        return real(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ClusterError, match=r"needs Optuna.*%pip install optuna") as told:
        optuna_study([(STORY.state, STORY.state.of(StudyState)["search"])])
    assert "\n" not in str(told.value)


def test_the_studies_stand_for_a_cluster_and_a_run_of_its_own_stands_before_them() -> None:
    state = STORY.state
    assert focus.run(state) is None
    assert [study.name for study in focus.trained(state)] == ["search"]
    said = text.status(state, bill(state, STORY.now), STORY.now)
    assert "search  12 of 40 trials, 4 under way" in said
    assert "best so far: accuracy 0.927 in trial 0: learning_rate 0.01761, batch_size 64" in said
    assert "search-15" not in said, "its runs stand in its table"
    assert "end of the run" not in said
    declared = events.WorkDeclared(of="run", work="mine", spec={"train_steps": 9}, time=int(STORY.now * 1e9), seq=10**6)
    own = replay([declared], state)
    run = focus.run(own)
    assert run
    assert run.name == "mine"
    assert [study.name for study in focus.trained(own)] == ["search"]
    over = StudyStory(specification(4), told=4, running=0, over=True)
    after = replay(
        [events.WorkDeclared(of="run", work="mine", spec={"train_steps": 9}, time=int(over.now * 1e9), seq=10**6)],
        over.state,
    )
    assert [study.name for study in focus.trained(over.state)] == ["search"]
    assert focus.trained(after) == [], "what came later"


def test_a_grid_is_done_when_all_its_points_are() -> None:
    space = parse_space("batch_size=16,32 layers=1:2:int")
    story = StudyStory(specification(40, space=space, sampler="grid", pruner="none"), told=4, running=0, over=True)
    assert study_words(story.state.of(StudyState)["search"]) == "4 of 4 trials"


def test_what_happens_to_a_study_is_told_in_events() -> None:
    told = {text.event_words(event) for event in STORY.history}
    assert {"study search was declared", "trial 2 of search failed: its loss is no number"} <= told
    assert any(each.startswith("trial 1 of search was pruned, 0.7") for each in told)
    more = text.event_words(StudyExtended(study="search", trials=20))
    assert more == "study search has 20 trials more"


def test_a_study_shows_itself_as_text_table_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    cluster = client.Cluster("tuning")
    cluster.directory.mkdir(parents=True)
    (cluster.directory / "spec.json").write_text("{}", encoding="utf-8")
    with Journal(cluster.directory / "journal.jsonl") as journal:
        journal.extend(STORY.history)
    study = client.study()
    on_all_clusters = Cost(subject="search", total=12.0, lines={"its workers": 12.0})
    monkeypatch.setattr(client.Study, "cost", lambda self: on_all_clusters)
    panels.show_handle(study)
    assert capsys.readouterr().out.splitlines() == [
        "search on tuning: 12 of 40 trials, 4 under way, $12.00 so far",
        "best so far: accuracy 0.927 in trial 0: learning_rate 0.01761, batch_size 64",
    ]
    assert repr(study.plot()) == "search, best accuracy so far: trial 0: 0.927"
    parsed = ElementTree.fromstring(plot_html(study.plot()))
    assert [each.get("aria-label", "").split(",")[0] for each in parsed.iter("svg") if each.get("role")] == [
        "accuracy", "accuracy by trial",
    ]  # fmt: skip
    assert "trial 0, the best" in "".join(parsed.itertext())
    drawn = ElementTree.fromstring(table_html(study.table()))
    heads = [cell.text for cell in drawn.findall(".//th")]
    assert heads == [None, "learning_rate", "batch_size", "n", "accuracy", "hours", "dollars", "revocations"]
    panel = "".join(ElementTree.fromstring(picture(study)).itertext())
    assert "Best so far: accuracy 0.927 in trial 0" in panel
    assert "and 6 trials more" in panel
    assert "This study $12.00 so far." in panel


CELL = "model = lr\n\ndef input_fn(mode):\n    return mode\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> client.Cluster:
    """One that is declared, and whose controller hears what it is sent."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))
    found = client.Cluster("tuning")
    found.directory.mkdir(parents=True)
    spec = next(each for each in STORY.history if isinstance(each, events.ClusterDeclared)).spec
    (found.directory / "spec.json").write_text(json.dumps({**spec, "controller": "local"}), encoding="utf-8")
    monkeypatch.setattr("transient_magics.client.commands.send", lambda directory, message: {})
    return found


def declared(cluster: client.Cluster, **how: Any) -> dict[str, Any]:
    """What is written down of a study."""
    usual = {"source": CELL, "train_steps": 100, "objective": "accuracy", "over": "lr=0.1:1", "cluster": cluster}
    study = client.declare_study(**{**usual, **how})
    return json.loads((study.directory / "study.json").read_text(encoding="utf-8"))


def test_a_study_is_declared_with_what_suits_it(cluster: client.Cluster) -> None:
    drawn = declared(cluster)
    assert (drawn["name"], drawn["sampler"], drawn["trials"], drawn["objective"]) == (
        "study-1",
        "tpe",
        20,
        "max accuracy",
    )
    assert (drawn["run"]["eval_steps"], drawn["run"].get("token", "")) == (None, "")
    assert (cluster.directory / "studies" / "study-1" / "cell.py").read_text(encoding="utf-8") == CELL
    grid = declared(cluster, over="lr=1,2,3 units=1:4:int", pruner="none")
    assert (grid["name"], grid["sampler"], grid["trials"]) == ("study-2", "tpe", 20)
    grid = declared(
        cluster, over="lr=1,2,3 units=16,32", name="g", repeat=3, seed=5, keep_best="min loss", objective=""
    )
    assert (grid["sampler"], grid["trials"], grid["seed"], grid["objective"]) == ("grid", 6, 5, "min loss")
    assert (grid["run"]["noise_share"], grid["run"]["eval_steps"]) == (0.0, 10)
    assert declared(cluster, pruner="median", name="p")["run"]["eval_steps"] == 10
    plain = declared(cluster, over="", repeat=4, name="r", params={"lr": 0.5})
    assert (plain["sampler"], plain["trials"], plain["run"]["params"]) == ("none", 1, {"lr": 0.5})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"over": "lr=1:0"}, "Invalid --over: lr: the range is empty"),
        ({"objective": ""}, "Invalid --objective: a study needs one, such as max accuracy"),
        ({"objective": "agreement"}, "Invalid --objective: the direction of agreement is unknown"),
        ({"repeat": 3, "pruner": "median"}, "Invalid --pruner: median cannot be used with --repeat"),
        ({"sampler": "grid"}, "Invalid --sampler: grid needs choices or whole numbers"),
        ({"over": "lr=1:2000:int", "sampler": "grid"}, "Invalid --trials: must be from 1 to 1000, not 2000"),
        ({"workers": 9}, "tuning has 4 workers, not 9"),
        ({"sampler": "gp"}, "The study needs torch, which is not installed"),
        ({"name": "run"}, "run-1, run-2 and so on are automatic names, and the trials of a study run would need them"),
        ({"name": "x" * 40}, f"Invalid --name: '{'x' * 40}' must have at most 33 characters"),
    ],
)
def test_a_study_that_cannot_be_meant_is_refused_before_anything_is_written(
    cluster: client.Cluster, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(TransientError, match=f"^{re.escape(said)}"):
        declared(cluster, **how)
    assert not (cluster.directory / "studies").exists()


def test_names_of_a_studys_runs_are_its_own(cluster: client.Cluster) -> None:
    declared(cluster, name="s")
    for taken in ("s-7", "s-7-1", "s-input"):
        with pytest.raises(ClusterError, match=f"tuning has a study s, which reserves the name {taken} for its trials"):
            client.train(source=CELL, train_steps=5, cluster=cluster, name=taken, params={"lr": 1.0})
    for taken, study in (("t-7", "t"), ("u-input", "u")):
        client.train(source=CELL, train_steps=5, cluster=cluster, name=taken, params={"lr": 1.0})
        with pytest.raises(ClusterError, match=f"tuning has a run {taken} already"):
            declared(cluster, name=study)


@pytest.mark.parametrize("how", [
    {"source": CELL, "per_vm": 2},
    {"source": "", "model": "m", "hparams_set": "h", "problem": "p", "share_input": True},
])  # fmt: skip
def test_a_run_of_no_study_shares_nothing(cluster: client.Cluster, how: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match="Only trials of a study can share a VM and their input"):
        client.train(train_steps=5, cluster=cluster, **how)


def test_parameters_named_as_other_columns_have_columns_of_their_own(cluster: client.Cluster) -> None:
    pytest.importorskip("pandas")
    told = StudyStory(specification(9, space=parse_space("steps=1,2 dollars=3,4 n=5,6 rate=7,8")), told=6, over=True)
    with Journal(cluster.directory / "journal.jsonl") as writing:
        writing.extend(told.history)
    study = client.Study("search", cluster)
    tried = [trial.params for trial in study.begun[0][1].trials.values()]
    frame = study.trials()
    assert list(frame.columns) == [
        "trial", "state", "value", "params_steps", "params_dollars", "n", "rate",
        "runs", "steps", "seconds", "dollars", "best", "reason",
    ]  # fmt: skip
    assert list(frame["params_steps"]) == [params["steps"] for params in tried]
    assert list(frame["rate"]) == [params["rate"] for params in tried]
    assert frame["steps"].max() > 2
    rows = study.table()
    table = rows.frame()
    assert list(table.columns[:5]) == ["steps", "params_dollars", "params_n", "rate", "n"]
    assert list(table["params_dollars"]) == [row.params["dollars"] for row in rows]
    assert list(table["n"]) == [row.n for row in rows]
    assert table["dollars"].dtype == "float64"


def test_values_of_any_type_come_from_the_journal_into_tables_frames_panels_and_optuna() -> None:
    pytest.importorskip("optuna")
    pytest.importorskip("pandas")
    space = parse_space("batchnorm=True,False layers=[64,32],(8,) rate=None,nan,0.25 word='True',relu")
    told = StudyStory(specification(40, space=space), told=30, running=0, over=True)
    again = replay([events.decode(events.encode(event)) for event in told.history])
    study = again.of(StudyState)["search"]
    assert again.passed_over == 0
    assert repr(study.spec.space) == repr(space)
    tried = [trial.params for trial in study.trials.values()]
    assert all(study.spec.tries(params) for params in tried)
    assert {type(params["layers"]) for params in tried} == {list, tuple}
    assert {type(params["batchnorm"]) for params in tried} == {bool}

    table = trials.configurations([(again, study)], told.now)
    assert sum(each.n for each in table) == 28
    assert len(table) < 24 + 1, "trials of the same values are one configuration"
    assert {"True", "False", "[64, 32]", "(8,)", "None", "nan", "0.25", "'True'", "relu"} <= set(
        re.split(r"  +", str(table).replace("\n", "  "))
    )
    assert set(map(repr, table.frame()["layers"])) == {"[64, 32]", "(8,)"}
    assert set(map(repr, table.frame()["rate"])) == {"None", "nan", "0.25"}

    (view,) = studies_of(again, told.now)
    json.dumps(view, allow_nan=False)
    assert {repr(line["params"][1]) for line in view["trials"]} == {"'[64, 32]'", "'(8,)'"}
    assert {line["params"][0] for line in view["trials"]} == {"True", "False"}

    made = optuna_study([(again, study)])
    assert {repr(trial.params["layers"]) for trial in made.trials} == {"'[64, 32]'", "'(8,)'"}
    assert {trial.params["batchnorm"] for trial in made.trials} == {True, False}
    twin = OptunaSampler(study.spec)
    twin.catch_up(study, again.of(RunState))
    for _ in range(4):
        assert study.spec.tries(twin.propose()), "the values of the declaration, not Optuna's"
