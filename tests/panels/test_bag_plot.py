"""`bag.plot()`: what the surrogate says, as a picture of a curve or of two surfaces, and as a sentence."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell

from transient_magics.client import Bag
from transient_magics.errors import ClusterError, PlanError
from transient_magics.journal import Journal
from transient_magics.protocol import layout
from transient_magics.protocol.space import parse_space
from transient_magics.works.bags import storage
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.bags.static import LEVELS, NINETY, shade
from transient_magics.works.bags.surrogate.model import learn
from transient_magics.works.bags.view import plot_html as bag_plot_html

from .bag_story import BagStory, specification
from .stories import StoryCluster


def bag_of(folder: Path, spec: BagSpec, *, learnt: bool = True) -> Bag:
    """A bag whose journal and surrogate are in the folder."""
    story = BagStory(spec, done=40)
    with Journal(folder / "journal.jsonl") as writing:
        writing.extend(story.history)
    cluster: Any = StoryCluster(folder / "journal.jsonl")
    bag = Bag(spec.name, cluster)
    if learnt:
        header, packed = storage.pack_surrogate(learn(spec.space, bag.state.state.points()))
        bag.directory.mkdir(parents=True)
        (bag.directory / layout.SURROGATE).write_bytes(header)
        (bag.directory / layout.SURROGATE_ARRAYS).write_bytes(packed)
    return bag


def figures(drawn: str) -> list[ElementTree.Element]:
    return [each for each in ElementTree.fromstring(drawn).iter("svg") if each.get("role") == "img"]


@pytest.mark.slow
def test_over_one_parameter_it_is_a_curve_with_its_band_and_the_results_with_their_errors(tmp_path: Path) -> None:
    bag = bag_of(tmp_path, specification(60, space=parse_space("density=0.3:0.9")))
    plot = bag.plot()
    (section,) = plot.sections
    middle: Any = bag(density=section.places[0][60])
    assert (section.means[0][60], section.sds[0][60]) == pytest.approx((middle.value, middle.sd))
    assert re.fullmatch(
        r"bag-1, pressure over density 0\.3 to 0\.9: 0\.3\d+ to 0\.7\d+, sd at most 0\.00\d+ \(from the surrogate\)",
        repr(plot),
    )
    drawn = bag_plot_html(plot)
    (figure,) = figures(drawn)
    assert len(list(figure.iter("circle"))) == len(bag.results()) == 40
    band, curve, bars = [each.get("d", "") for each in list(figure)[-4:-1]]
    known = sum(value is not None for value in section.means[0])
    assert (band.count("L") + 1, curve.count("L") + 1, bars.count("M")) == (2 * known, known, 40)
    place = re.compile(r"([\d.]+) ([\d.]+)")
    above, below = (place.findall(band)[each] for each in (0, -1))
    on = place.findall(curve)[0]
    assert above[0] == below[0] == on[0]
    assert math.isclose((float(above[1]) + float(below[1])) / 2, float(on[1]), abs_tol=0.11)
    assert pytest.approx(1.645, abs=1e-3) == NINETY
    assert "surrogate" in drawn
    assert "results, ± their errors" in drawn


def test_over_two_parameters_it_is_a_surface_beside_that_of_its_error(tmp_path: Path) -> None:
    bag = bag_of(tmp_path, specification(60))
    drawn = bag_plot_html(bag.plot("pressure"))
    value, error = figures(drawn)
    for figure in (value, error):
        texts = [each.text for each in figure.iter("text")]
        assert {"density", "temperature", "0.4", "1.2"} <= {*texts}
        colours = {each.get("fill") for each in figure.iter("path") if (each.get("fill") or "").startswith("#")}
        assert 8 < len(colours) <= LEVELS
        dots = list(figure.iter("circle"))
        assert len(dots) == 80, "each result, light on dark"
    assert "its standard deviation" in [each.text for each in error.iter("text")]
    assert "Blank: outside of the results." in drawn
    assert len(drawn) < 80_000
    head, *rows = ElementTree.fromstring(drawn).iter("tr")
    assert "temperature \\ density" in "".join(head.itertext())
    assert len(rows) == 12
    assert any("±" in "".join(each.itertext()) for each in rows)


def test_more_parameters_need_axes_and_values_and_no_surrogate_is_said(tmp_path: Path) -> None:
    bag = bag_of(tmp_path, specification(60, space=parse_space("density=0.3:0.9 temperature=0.8:1.6 salt=0:1")))
    with pytest.raises(PlanError, match="3 parameters have no value"):
        bag.plot()
    plot = bag.plot(over=("density", "temperature"), salt=0.5)
    assert ", at salt 0.5: " in repr(plot)
    assert "at salt 0.5" in bag_plot_html(plot)
    assert len(figures(bag_plot_html(bag.plot(over="salt", density=0.6, temperature=1.2)))) == 1
    none = tmp_path / "none"
    none.mkdir()
    with pytest.raises(ClusterError, match="bag-1 has no surrogate: it has too few results"):
        bag_of(none, specification(60), learnt=False).plot()


def test_a_notebook_shows_the_picture(tmp_path: Path) -> None:
    shell = InteractiveShell()
    shell.run_cell("%load_ext transient_magics").raise_error()
    plot = bag_of(tmp_path, specification(60, space=parse_space("density=0.3:0.9"))).plot()
    bundle, _ = shell.display_formatter.format(plot)  # type: ignore[union-attr]
    assert "<svg" in bundle["text/html"]
    assert bundle["text/plain"].startswith("bag-1, pressure over density")
    shell.run_cell("%unload_ext transient_magics")


def test_colours_go_from_the_first_to_the_last() -> None:
    assert [shade(("#000000", "#804020", "#ffffff"), share) for share in (0, 0.25, 0.5, 1, 2)] == [
        "#000000", "#402010", "#804020", "#ffffff", "#ffffff",
    ]  # fmt: skip
