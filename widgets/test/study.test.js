/* Which trials have a row, in which order, and what is drawn of them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { columns, drawing, progress, shown, sorted } from "../study.js";

const trial = (number, more = {}) => ({
  number, state: "complete", words: "complete", params: [0.1 / (number + 1), `v${number}`], value: number / 10, best: false, hours: 1, dollars: 1,
  revocations: 0, stoppable: false, curve: [], ...more,
});
const numbers = (trials) => trials.map((each) => each.number);
const study = (trials, more = {}) => ({ metric: "accuracy", direction: "max", params: ["rate", "version"], trials, best_so_far: [], ...more });
const by = (key, trials) => columns(study(trials)).find((column) => column.key === key).by;

test("trials are sorted by any column, and what has no value comes last either way", () => {
  const trials = [trial(0), trial(1, { value: null }), trial(2), trial(10, { value: 0.1 })];
  assert.deepEqual(numbers(sorted(trials, by("value", trials), true)), [2, 10, 0, 1]);
  assert.deepEqual(numbers(sorted(trials, by("value", trials), false)), [0, 10, 2, 1]);
  assert.deepEqual(numbers(sorted(trials, by("parameter version", trials), false)), [0, 1, 2, 10], "v10 after v2");
});

test("the duration of a trial is in seconds, minutes and hours", () => {
  const column = columns(study([])).find(({ key }) => key === "hours");
  assert.equal(column.name, "time");
  assert.deepEqual([0.000722, 0.05, 3.5].map((hours) => column.words(trial(0, { hours }))), ["3 s", "3 min", "3 h 30 min"]);
});

test("of many trials ten have a row, and the best and those that train always do", () => {
  const trials = [...Array(500).keys()].map((number) => trial(number, { best: number === 3, state: number > 497 ? "running" : "complete" }));
  const few = shown(sorted(trials, by("trial", trials), true), false);
  assert.deepEqual(numbers(few), [499, 498, 497, 496, 495, 494, 493, 492, 491, 3]);
  const first = shown(sorted(trials, by("trial", trials), false), false);
  assert.deepEqual(numbers(first), [0, 1, 2, 3, 4, 5, 6, 7, 498, 499]);
  assert.equal(shown(trials, true).length, 500);
});

test("curves share their steps, and the best and the chosen one lie above the others", () => {
  const drawn = drawing(study([trial(0, { best: true, curve: [[10, 0.1], [20, 0.9]] }), trial(1, { curve: [[10, 0.2], [15, 0.3]] }), trial(2)]), 1);
  assert.deepEqual(drawn.x, [10, 15, 20]);
  assert.deepEqual(drawn.curves.map((curve) => [curve.label, curve.colour]), [["trial 0", "--good"], ["trial 1", "--text"]]);
  assert.deepEqual(drawn.curves[0].values, [0.1, null, 0.9]);
  assert.deepEqual(drawn.marks.map((mark) => [mark.x, mark.y]), [[20, 0.9]]);
  assert.deepEqual(drawn.words(0), ["trial 1 0.2", "trial 0 0.1"]);
});

test("the best so far keeps its height until a trial is better", () => {
  const drawn = progress(study([trial(0, { value: 0.5 }), trial(1, { value: 0.2 }), trial(2, { value: null }), trial(3, { value: 0.7 })], { best_so_far: [[0, 0.5], [3, 0.7]] }));
  assert.deepEqual(drawn.x, [0, 1, 3]);
  assert.deepEqual(drawn.curves[1].values, [0.5, 0.5, 0.7]);
  assert.deepEqual(drawn.words(1), ["0.2", "best so far 0.5"]);
});
