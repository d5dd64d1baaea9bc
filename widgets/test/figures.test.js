/* How figures and moments are written. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { duration, inOrder, money, number, timeLabels } from "../figures.js";
import { scale } from "../scale.js";

const same = JSON.parse(readFileSync(new URL("figures.json", import.meta.url), "utf8"));

test("the page writes dollars, figures and ticks as the kernel does", () => {
  for (const [value, words] of same.money) assert.equal(money(value), words);
  for (const [value, words] of same.number) assert.equal(number(value), words);
  for (const [values, ticks] of same.ticks) {
    assert.deepEqual(scale(values, 0, 1).ticks(1).map((tick) => Number(tick.toPrecision(9))), ticks);
  }
  assert.equal(money(NaN), "-");
});

test("durations have seconds, minutes or hours", () => {
  const told = [[0, "0 s"], [59.6, "1 min"], [185, "3 min 5 s"], [3600, "1 h"], [7800, "2 h 10 min"]];
  for (const [seconds, words] of told) assert.equal(duration(seconds), words);
});

test("workers are named in the order in which people count", () => {
  assert.deepEqual(inOrder(["worker-10", "worker-9", "ps-0"]), ["ps-0", "worker-9", "worker-10"]);
});

test("no two labels of an axis are alike, and a day is named where it begins", () => {
  const noon = new Date(2026, 10, 23, 12).getTime() / 1000;
  const seconds = [0, 1, 2].map((second) => noon + second);
  assert.deepEqual(timeLabels(seconds, 1, "23 Nov"), ["12:00:00", "12:00:01", "12:00:02"]);
  const night = [0, 6, 12, 18].map((hours) => noon + 3600 * hours);
  assert.deepEqual(timeLabels(night, 21600, "23 Nov"), ["23 Nov 12:00", "18:00", "24 Nov", "06:00"]);
  assert.deepEqual(timeLabels([noon], 3600, "25 Nov"), ["23 Nov 12:00"], "of a day that is over");
});
