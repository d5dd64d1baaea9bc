/* The positions of a bag's points, their labels, and shapes that distinguish their states. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { form, place, pointWords, valueOf } from "../bag.js";

const even = { name: "density", output: false, kind: "even", low: 0.3, high: 0.9, choices: [], named: [] };
const choice = { ...even, name: "kind", kind: "choice", choices: ["a", "bb", "c", "d"] };
const output = { ...even, name: "pressure", output: true, low: 0, high: 2 };
const bag = {
  axes: [even, choice, output, { ...output, name: "energy" }],
  points: [["done", 1, [0.31234567, "bb"], [1.5, -2], [0.0123, null]], ["running", 2, [0.6, "a"], [], []], ["done", 1, [0.6, "a"], [1, 2], []]],
};

test("a value lies on its axis by its size, its logarithm, or among the choices", () => {
  assert.equal(place(even, 0.6).toFixed(6), "0.500000");
  assert.equal(place({ ...even, kind: "log", low: 0.01, high: 100 }, 1).toFixed(6), "0.500000");
  assert.deepEqual(["a", "bb", "d"].map((value) => place(choice, value)), [0.125, 0.375, 0.875]);
});

test("a point has its parameters, and what was returned once it is there", () => {
  assert.deepEqual([0, 1, 2, 3].map((axis) => valueOf(axis, bag.points[0])), [0.31234567, "bb", 1.5, -2]);
  assert.deepEqual([1, 2].map((axis) => valueOf(axis, bag.points[1])), ["a", null]);
});

test("a point says where it is, how it does, what it returned with which error, and the attempt", () => {
  assert.equal(pointWords(bag, 0), "job 0 · density 0.3123, kind bb · done · pressure 1.5 ± 0.0123 · energy -2");
  assert.equal(pointWords(bag, 1), "job 1 · density 0.6, kind a · running · attempt 2");
  assert.equal(pointWords(bag, 2), "job 2 · density 0.6, kind a · done · pressure 1 · energy 2");
});

test("every state has a form of its own", () => {
  const forms = ["done", "running", "waiting", "lost", "failed", "skipped"].map((state) => form(state, 10, 20));
  assert.equal(new Set(forms).size, forms.length);
  assert.ok(forms.every((path) => path.startsWith("M10.0 20.0m")));
});
