"""Seeds whose histories broke a promise once, by what was found in them; each is played again by every `make test`.

A seed is one history only as long as the simulation draws the same numbers in the same order. What was found is
therefore held by a test of the unit, too; where the simulation changes, a seed that finds it again is put here (take
the mending away, run `benchmarks/bench_simulation.py`).
"""

SEQUENCES = {
    # Capacity took answers in the order of the questions: a refusal that came earlier than "it runs" went on counting,
    # one that came later was forgotten.
    "answers in the order of the questions": 213,
    # What a place was refused as another GPU's counted for the GPU that it has since a resize.
    "refusals of another GPU": 12,
}

WHOLE: dict[str, int] = {}
"""Likewise, of clusters that train. Nothing was found there yet."""
