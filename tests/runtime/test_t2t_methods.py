"""What Tensor2Tensor would call of a model or a problem is called here too, or refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def tried() -> dict[str, Any]:
    return json.loads(programs.run("tests.runtime.t2t_methods").splitlines()[-1])


def test_what_would_never_be_called_or_read_is_refused_by_name(tried: dict[str, Any]) -> None:
    said = tried["refused"]
    for name in ("nothing", "adafactor whole", "ae", "nas"):
        assert said.pop(name) == "", "what T2T's own models override there changes nothing"
    assert "Hooked.train_hooks would never be called" in said.pop("train_hooks")
    assert "Estimated.estimator_model_fn would never be called" in said.pop("estimator_model_fn")
    assert "Fed.input_fn would never be called" in said.pop("input_fn")
    assert "mixed mixes several problems" in said.pop("MultiProblem")
    assert "mixed_anew mixes several problems" in said.pop("MultiProblemV2")
    assert "/somewhere" in said["warm_start_from_second"]
    assert "warm_start_from_second" in said.pop("warm_start_from_second")
    assert "--ps-shards" in said.pop("adafactor")
    assert "unknown loss scaler 'linear'" in said.pop("scaler")
    assert not said


def test_a_models_own_optimize_chooses_loss_rate_and_variables(tried: dict[str, Any]) -> None:
    plain, halved = tried["plain"], tried["halved"]
    assert plain["variables"] == ["body/a", "top/b"]
    assert plain["loss"] == 3.0
    assert halved == {"loss": 6.0, "rate": pytest.approx(plain["rate"] / 2), "variables": ["top/b"]}
    for name in ("twice", "averaged"):
        assert f"{name.title()}.optimize must only return one" in tried[name]
    own, others = tried["flow"]
    assert (own, others) == (pytest.approx(6.18e-4, rel=1e-3), pytest.approx(8.84e-4, rel=1e-3))


def test_noise_is_what_tensor2tensor_adds(tried: dict[str, Any]) -> None:
    noise = tried["noise"]
    assert noise["pushes"] == noise["push"] == 0, "workers that push move nothing"
    one = pytest.approx(10 * 0.88, rel=0.1)  # 10 = weight noise x rate / 1000, of a normal variable cut at two
    assert (noise["update"], noise["alone"]) == (one, one), "once in a step, of however many workers it is"
    assert tried["sparse noise"] == [pytest.approx(0.5 * 0.88, rel=0.3)] * 5, "also on rows that were not used"


def test_float16_has_its_loss_scaled(tried: dict[str, Any]) -> None:
    for scaled in tried["scaled"]:
        assert scaled["gradient"] == pytest.approx(1e-8, rel=1e-2), "0 without a scale"
        scales, weights = zip(*scaled["steps"], strict=True)
        assert scales == (2**15, 2**15, 2**14, 2**14, 2**15), (
            "halved after two bad steps, doubled after 2,000 good ones"
        )
        assert weights[0] == weights[1] == weights[2] == 1.0, "gradients that are not finite are not applied"
        assert weights[2] > weights[3] > weights[4]


def test_synchronous_steps_in_float16_share_one_scale(tried: dict[str, Any]) -> None:
    rounds = tried["rounds"]
    scales, *weights = zip(*rounds["found"], strict=True)
    assert scales == (2**15, 2**14, 2**14, 2**15), "a round counts once, of however many pushes it is"
    for each in weights:
        assert each[:2] == (0, 0), "one gradient that is not finite, and nothing is applied"
        assert each[2:] == (pytest.approx(-1e-8, rel=1e-2), pytest.approx(-2e-8, rel=1e-2)), "the mean, at a half"
    assert rounds["steps"] == [1, 2, 3, 4]
    assert rounds["looked at"], "the gradients of other parameter servers do not travel to the chief's"


def test_an_evaluation_goes_on_from_what_it_wrote_where_the_hparams_say_so(tried: dict[str, Any]) -> None:
    assert tried["evaluated"] == [1.0, 2.0]


def test_the_users_batch_shuffle_size_counts(tried: dict[str, Any]) -> None:
    assert tried["shuffled"] == [0, 512, 8]
