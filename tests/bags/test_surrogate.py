"""Surrogates: as true as they say they are, silent where they know nothing, and made of numbers alone."""

from __future__ import annotations

import io
import json
import pickle
import re
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.errors import PlanError
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags.block_average import block_mean
from transient_magics.works.bags.events import BagLearnt
from transient_magics.works.bags.storage import _ENTRY, pack_surrogate, read_arrays, unpack_surrogate
from transient_magics.works.bags.surrogate import model
from transient_magics.works.bags.surrogate.active_learning import (
    FILLING,
    LEAST_JUDGED,
    Speedup,
    expected_seconds,
    good_enough,
    judge,
    propose,
)
from transient_magics.works.bags.surrogate.cube import Cube, inside
from transient_magics.works.bags.surrogate.model import MOST_GAUSSIAN, Answer, Ensemble, Result, Surrogate, learn

SPACE = parse_space("density=0.3:0.9 temperature=0.8:1.6")
NOISE = 0.02


def pressure(point: Any) -> float:
    return float(np.sin(4 * point["density"]) * point["temperature"] + point["density"] ** 2)


def computed(count: int, seed: int = 0, noise: float = NOISE) -> list[Result]:
    random, cube = np.random.default_rng(seed), Cube(SPACE)
    points = [*cube.corners(), *cube.filling(count, seed)][:count]
    errors = noise * random.uniform(0.5, 1.5, count)
    return [
        (point, {"pressure": pressure(point) + error * random.normal(), "pressure_error": error})
        for point, error in zip(points, errors, strict=True)
    ]


@pytest.fixture(scope="module")
def learnt() -> Surrogate:
    return learn(SPACE, computed(60))


@pytest.fixture(scope="module")
def networks() -> Surrogate:
    return learn(SPACE, computed(120), kind="ensemble")


def test_its_intervals_hold_what_they_say(learnt: Surrogate) -> None:
    asked = computed(200, seed=9)[4:]
    mean, sd = learnt.predict([point for point, _ in asked])["pressure"]
    off = np.array([returned["pressure"] for _, returned in asked]) - mean
    spread = np.hypot(sd, [returned["pressure_error"] for _, returned in asked])
    assert 0.75 < float(np.mean((off / spread) ** 2)) < 1.35
    assert 0.84 < float(np.mean(np.abs(off / spread) < 1.645)) < 0.96


def test_it_answers_within_the_data_and_says_where_it_is_from(learnt: Surrogate) -> None:
    answer = learnt(density=0.7, temperature=1.1)
    assert isinstance(answer, Answer)
    assert abs(answer.value - pressure({"density": 0.7, "temperature": 1.1})) < 4 * answer.sd < 0.1
    assert str(answer).endswith("(from the surrogate)")
    said = [
        str(Answer(value, sd)).partition(" (")[0] for value, sd in ((0.688119, 0.0041), (2071.33, 13.2), (1e-9, 3e-11))
    ]
    assert said == ["0.6881 ± 0.0041", "2071 ± 13", "1e-09 ± 3e-11"]
    for wrong, why in (
        ({"density": 1.2, "temperature": 1.0}, "is outside of the computed points"),
        ({"density": 1.2, "temperature": 1.0}, '%%bag --over "density=1.2 temperature=1.0" --jobs 1 --surrogate none'),
        ({"density": float("nan"), "temperature": 1.0}, "is outside of the computed points"),
        ({"density": 0.7}, "'temperature' is missing"),
        ({"density": 0.7, "temperature": 1.1, "salt": 1}, "'salt' is not a parameter of this bag"),
        ({"density": "dense", "temperature": 1.1}, "density must be a number"),
    ):
        with pytest.raises(PlanError, match=re.escape(why)):
            learnt(**wrong)


@pytest.mark.slow
def test_networks_are_about_as_wrong_as_they_say(networks: Surrogate) -> None:
    asked = computed(100, seed=9, noise=0.0)
    mean, sd = networks.predict([point for point, _ in asked])["pressure"]
    off = np.array([returned["pressure"] for _, returned in asked]) - mean
    assert float(np.sqrt(np.mean(off**2))) < 0.1
    assert 0.2 < float(np.mean((off / sd) ** 2)) < 4


@pytest.mark.slow
def test_the_page_of_bags_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "bags.md").read_text(encoding="utf-8")
    (cell,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(cell, {})
    value, sd = re.fullmatch(r"(\S+) ± (\S+) \(from the surrogate\)\n", capsys.readouterr().out).groups()  # type: ignore[union-attr]
    assert abs(float(value) - pressure({"density": 0.7, "temperature": 1.1}) + 0.49) < 5 * float(sd) < 0.1


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8), st.data())
def test_what_lies_between_the_data_is_inside(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    points = np.array(rows)
    weights = np.array(data.draw(st.lists(st.floats(0.01, 1), min_size=len(rows), max_size=len(rows))))
    assert inside(points, weights / weights.sum() @ points)
    assert not inside(points, points.max(axis=0) + np.array([0.01, 0.0]))


def test_a_corner_that_no_result_is_near_is_outside() -> None:
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert inside(triangle, np.array([0.3, 0.3]))
    assert not inside(triangle, np.array([0.9, 0.9])), "though it is between the least and the greatest of each"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["learnt", "networks"])
def test_it_comes_home_as_numbers_and_predicts_the_same(which: str, request: pytest.FixtureRequest) -> None:
    surrogate = request.getfixturevalue(which)
    header, packed = pack_surrogate(surrogate)
    assert b"sklearn" not in header + packed
    again = unpack_surrogate(header, packed)
    asked = [point for point, _ in computed(50, seed=5)]
    for one, other in zip(surrogate.predict(asked)["pressure"], again.predict(asked)["pressure"], strict=True):
        assert np.abs(one - other).max() < 1e-9
    assert again.kind == surrogate.kind


def test_its_predictions_are_scikit_learns() -> None:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    results = computed(40)
    rows = Cube(SPACE).rows([point for point, _ in results])
    values, errors = (np.array([returned[name] for _, returned in results]) for name in ("pressure", "pressure_error"))
    ours = model.learn_gaussian(rows, values, errors)
    shape = RBF(ours.lengths) if ours.kernel == "rbf" else Matern(ours.lengths, nu=2.5)
    theirs = GaussianProcessRegressor(ConstantKernel(ours.variance) * shape, alpha=ours.noise + 1e-10, optimizer=None)
    theirs.fit(rows, ours.values)
    asked = np.random.default_rng(1).random((30, 2))
    mean, sd = theirs.predict(asked, return_std=True)
    found = ours.predict(asked)
    assert found[0] == pytest.approx(ours.mean + ours.scale * mean, abs=1e-7)
    assert found[1] == pytest.approx(ours.scale * sd, abs=1e-6)
    assert np.sqrt(np.diag(ours.covariance(asked))) == pytest.approx(found[1], abs=1e-7)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def archive(name: str, content: bytes, how: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", how) as file:
        file.writestr(name, content)
    return buffer.getvalue()


def headed(shape: str, content: bytes = b"\0" * 8, kind: str = "'<f8'") -> bytes:
    header = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"PK", b"x" * 100, npz(a=np.array([{"a": 1}], object)), npz(a=np.array(["text"])),
        archive("a.npy", pickle.dumps([1])), archive("../../a.npy", b""), archive("a.txt", b"hello"),
        archive("a.npy", headed("(1000000000000,)")), archive("a.npy", headed("(-1,)")),
        archive("a.npy", headed("(1,", b"")),
        npz(a=np.ones(3))[:-20],
        archive("a.npy", headed("()", kind="{[1]: 2}")), archive("a.npy", headed("()", kind="()")),
        archive("a.npy", headed("()", kind="'<f3'")),
        archive("a.npy", headed("(1,)"), zipfile.ZIP_LZMA).replace(b"NUMPY", b"NUMPX"),
        archive("a.npy", headed("(1,)"), zipfile.ZIP_LZMA)[:40] + b"\0" * 8
        + archive("a.npy", headed("(1,)"), zipfile.ZIP_LZMA)[48:],
        _ENTRY * 10_000,
    ],
    ids=range(18),
)  # fmt: skip
def test_arrays_that_are_not_plain_numbers_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (many reasons, one way out)
        read_arrays(wrong)


@pytest.mark.parametrize("shape", ["(8388608,)", "(2048, 4096)", "(8388608, 1, 1)"])
def test_an_array_that_says_that_it_has_more_numbers_than_the_file_is_given_no_memory(shape: str) -> None:
    """A file of 250 bytes, in which an array of 64 MiB is announced."""
    packed = archive("a.npy", headed(shape))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError):  # noqa: PT011 (whatever it says: NumPy refuses it too, with its memory taken)
            read_arrays(packed)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**20


def test_an_array_that_says_that_it_has_fewer_numbers_than_the_file_is_refused() -> None:
    with pytest.raises(ValueError, match="its size does not match its header"):
        read_arrays(archive("a.npy", headed("(2,)", bytes(24))))


@pytest.mark.parametrize(
    "array",
    [np.float64(3.5), np.zeros((0, 3)), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array([True, False]),
     np.arange(3, dtype=">i2"), np.ones((1, 2, 3, 4), np.complex64), np.arange(5, dtype=np.uint8)],
    ids=str,
)  # fmt: skip
def test_arrays_of_plain_numbers_come_as_they_were(array: Any) -> None:
    for how in (np.savez, np.savez_compressed):
        packed = io.BytesIO()
        how(packed, a=array)
        (found,) = read_arrays(packed.getvalue()).values()
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(found, array)


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=8))
def test_arrays_that_are_damaged_raise_nothing_else(damage: list[tuple[int, int]]) -> None:
    packed = bytearray(npz(a=np.arange(8.0), b=np.ones((2, 3))))
    for at, value in damage:
        packed[at % len(packed)] = value
    with suppress(ValueError):
        read_arrays(bytes(packed))


def test_a_surrogate_that_is_not_as_it_should_be_is_refused(learnt: Surrogate) -> None:
    header, packed = pack_surrogate(learnt)
    with np.load(io.BytesIO(packed)) as file:
        arrays = dict(file)
    told = json.loads(header)
    for change in ({"rows": arrays["rows"][:5]}, {"0.lengths": np.zeros(2)}, {"0.values": np.full(60, np.nan)},
                   {"0.noise": -arrays["0.noise"]}, {"rows": arrays["rows"].astype(int)}):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011
            unpack_surrogate(header, npz(**{**arrays, **change}))
    for wrong in ({"models": []}, {"models": told["models"] * 2}, {"space": []}, {"space": [{"name": "../x"}]},
                  {"models": [{**told["models"][0], "kind": "pickle"}]},
                  {"models": [{**told["models"][0], "kind": "ensemble", "members": 10**9, "layers": 3}]}):  # fmt: skip
        with pytest.raises(ValueError):  # noqa: PT011
            unpack_surrogate(json.dumps({**told, **wrong}).encode(), packed)


def test_a_surrogate_that_would_take_all_memory_to_ask_is_refused() -> None:
    many = pack_surrogate(Surrogate(SPACE, {"p": _process(MOST_GAUSSIAN + 1)}, np.zeros((MOST_GAUSSIAN + 1, 2))))
    wide = tuple((np.zeros((2, 5000)), np.zeros((5000, 1))) for _ in range(2))
    networks = Ensemble(wide, tuple((np.zeros(5000), np.zeros(1)) for _ in wide), 1.0, 0.0, 0.0, 1.0)
    for said, written in (
        ("results", many),
        ("width", pack_surrogate(Surrogate(SPACE, {"p": networks}, np.zeros((9, 2))))),
    ):
        with pytest.raises(ValueError, match=said):
            unpack_surrogate(*written)
    unpack_surrogate(*pack_surrogate(Surrogate(SPACE, {"p": _process(MOST_GAUSSIAN)}, np.zeros((MOST_GAUSSIAN, 2)))))


def _process(count: int) -> model.Gaussian:
    numbers = np.zeros(count)
    return model.Gaussian(np.zeros((count, 2)), numbers, numbers, "rbf", 1.0, np.ones(2), 0.0, 0.0, 1.0)


def test_further_points_are_where_least_is_known_and_a_fifth_fills_the_space(learnt: Surrogate) -> None:
    begin = propose(SPACE, None, 8, first=0)
    assert all(each.filling for each in begin)
    assert {tuple(each.point.values()) for each in begin[:4]} == {(d, t) for d in (0.3, 0.9) for t in (0.8, 1.6)}
    batch = propose(SPACE, learnt, 10, first=60)
    assert sum(each.filling for each in batch) == 10 // FILLING
    assert all({*each.predicted} == {"pressure"} for each in batch)
    places = Cube(SPACE).rows([each.point for each in batch if not each.filling])
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + np.eye(len(places))
    assert apart.min() > 0.01, "what is in flight counts as known"
    sds = [each.predicted["pressure"][1] for each in batch if not each.filling]
    random = learnt.predict(Cube(SPACE).filling(64, 5))["pressure"][1]
    assert sds[0] > np.quantile(random, 0.9)
    assert propose(SPACE, learnt, 10, first=60) == batch, "by seed and number alone"
    elsewhere = propose(SPACE, learnt, 1, first=60, in_flight=[batch[0].point])[0]
    assert elsewhere.point != batch[0].point
    cheap = propose(SPACE, learnt, 8, first=60, dollars=lambda points: [1 + 1e3 * (p["density"] > 0.6) for p in points])  # type: ignore[operator]
    assert all(float(each.point["density"]) <= 0.6 for each in cheap if not each.filling)


def test_what_jobs_take_is_learnt_by_point() -> None:
    results = [(point, 60 * float(point["density"])) for point, _ in computed(30)]
    seconds = expected_seconds(SPACE, results)(
        [{"density": 0.4, "temperature": 1.0}, {"density": 0.8, "temperature": 1}]
    )
    assert seconds == pytest.approx([24, 48], rel=0.1)


def test_whole_numbers_and_choices_stay_what_they_are() -> None:
    space = parse_space("ions=1:3:int salt=0.3,0.6,0.9 rate=1e-3:1e-1:log")
    for proposal in propose(space, None, 20, first=0):
        assert all(each.has(proposal.point[each.name]) for each in space)


def told(coverage: float = 0.9, residual: float = 0.7, largest: float = 0.01, judged: int = LEAST_JUDGED) -> BagLearnt:
    return BagLearnt(
        bag="b", batch=1, results=50, model="gp", judged=judged, coverage={"pressure": coverage},
        residual={"pressure": residual}, largest={"pressure": largest},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("learnings", "enough"),
    [
        ([told(), told()], True), ([told()], False), ([told(), told(0.75)], False), ([told(), told(1.0)], False),
        ([told(0.75), told(), told()], True), ([told(), told(), told(0.75)], False),
        ([told(residual=1.2), told()], False), ([told(), told(largest=0.03)], False),
        ([told(), told(judged=5)], False), ([], False),
    ],
)  # fmt: skip
def test_it_is_good_enough_on_two_batches_in_a_row(learnings: list[BagLearnt], enough: bool) -> None:
    assert good_enough(learnings, {"pressure": 0.02}) is enough
    assert not good_enough(learnings, {})


def test_predictions_are_judged_with_each_results_own_error() -> None:
    random = np.random.default_rng(4)
    sd, error = 0.3, 0.4
    values = [{"p": float(x), "p_error": error} for x in random.normal(0, np.hypot(sd, error), 400)]
    found = judge([{"p": (0.0, sd)}] * 400, values)
    assert found.judged == 400
    assert found.coverage["p"] == pytest.approx(0.9, abs=0.04)
    assert found.residual["p"] == pytest.approx(0.674, abs=0.08)
    assert judge([{}], values[:1]).judged == 0


def test_too_few_results_teach_nothing() -> None:
    with pytest.raises(PlanError, match="5 results are too few for a surrogate"):
        learn(SPACE, computed(5))


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.95])
def test_block_errors_are_those_of_series_of_known_error(phi: float) -> None:
    random, count, series = np.random.default_rng(int(10 * phi)), 4096, 24
    steps = random.normal(size=(count + 200, series))
    values = np.zeros_like(steps)
    for turn in range(1, len(steps)):
        values[turn] = phi * values[turn - 1] + steps[turn]
    found = [block_mean(each) for each in values[200:].T]
    true = 1 / (1 - phi) / np.sqrt(count)
    assert np.median([each.error for each in found]) == pytest.approx(true, rel=0.12)
    assert all(each.enough for each in found)
    assert bool(np.median([each.block for each in found]) > 1) is (phi > 0)


def test_a_series_that_is_too_short_says_so() -> None:
    walk = np.cumsum(np.random.default_rng(1).normal(size=256))
    assert not block_mean(walk).enough
    for wrong in ([1.0] * 10, [float("nan")] * 100):
        with pytest.raises(PlanError, match="64 finite numbers"):
            block_mean(wrong)


@given(st.floats(1, 1e4), st.floats(1e-6, 0.5), st.floats(0.1, 1e5), st.floats(0, 1e3), st.integers(1, 1000))
def test_a_surrogate_pays_from_its_break_even_on(
    sequential: float, lookup: float, train: float, learn: float, results: int
) -> None:
    speedup = Speedup(sequential, lookup, train, learn, results)
    at = speedup.break_even
    assert speedup.at(at) == pytest.approx(1, rel=1e-6) or (at == 0 and speedup.at(0) >= 1 - 1e-9)
    assert speedup.at(2 * at + 1) > 1
    assert repr(speedup) == str(speedup)
    assert speedup.at(1e18) == pytest.approx(speedup.limit, rel=1e-3)


def test_choices_of_any_values_fill_a_space_without_a_surrogate() -> None:
    space = parse_space("kind=True,None name='a, b',c,d sizes=[1,2],(8,)")
    points = [each.point for each in propose(space, None, 64, first=0, seed=3)]
    assert len({repr(point) for point in points}) == 12, "all combinations"
    assert all(dimension.has(point[dimension.name]) for point in points for dimension in space)
