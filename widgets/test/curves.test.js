/* What the charts of a run draw, and what is downloaded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { csv } from "../csv.js";
import { asTable, drawings, kept, smoothed, uptodate } from "../curves.js";

const LOOKS = { byStep: false, smoothing: 0, log: false };

/** Three rows for this number of workers. */
function curves(workers = 2) {
  const names = [...Array(workers).keys()].map((number) => `worker-${number}`);
  return {
    run: "run-1", below: 0.8, width: 2, unnamed: false, end: null, marks: [["checkpoint", 2, 20, "checkpoint at step 20"]],
    epochs: [],
    time: [1, 3, 5], step: [10, 30, 50], loss: [2, null, 0.5], speed: [4, 6, 8], expected: [null, 10, 10],
    workers: Object.fromEntries(names.map((name, index) =>
      [name, { speed: [1, 2, 3], batch: [8, 8, 8 + index], staleness: [0, 0, 0] }])),
  };
}

test("an average begins at the first value and passes over what is missing", () => {
  assert.deepEqual(smoothed([4, null, 4], 0.9).map((value) => value && Math.round(value * 1e9) / 1e9), [4, null, 4]);
  const [first, second] = smoothed([0, 1], 0.5);
  assert.equal(first, 0);
  assert.ok(Math.abs(second - 2 / 3) < 1e-12, "corrected for its beginning");
});

test("metrics of training and validation data are drawn by epoch, without the loss", () => {
  const epochs = [
    { time: 2, step: 20, metrics: { loss: 1, accuracy: 0.5, val_loss: 1, val_accuracy: 0.4, learning_rate: 0.1 } },
    { time: 4, step: 40, metrics: { loss: 0.9, accuracy: 0.7, learning_rate: 0.1 } },
  ];
  assert.equal(drawings(curves(), LOOKS, {}).metrics, null);
  const drawn = drawings({ ...curves(), epochs }, { ...LOOKS, byStep: true }, {}).metrics;
  assert.deepEqual(drawn.x, [20, 40]);
  assert.deepEqual(drawn.curves.map(({ label, values }) => [label, values]), [["accuracy", [0.5, 0.7]], ["val_accuracy", [0.4, null]]]);
});

test("over steps, what a run did again from a checkpoint is drawn once", () => {
  assert.deepEqual(kept({ time: [1, 2, 3, 4], step: [10, 20, 15, 25] }, true), [0, 2, 3]);
  assert.deepEqual(kept({ time: [1, 2, 3, 4], step: [10, 20, 15, 25] }, false), [0, 1, 2, 3]);
});

test("curves reach to where the run is by its figures, and workers' lines do not", () => {
  const end = { time: 7, step: 70, loss: 0.4, speed: null };
  const reached = uptodate(curves(), end);
  assert.deepEqual([reached.time.at(-1), reached.loss.at(-1), reached.speed.at(-1)], [7, 0.4, null]);
  assert.equal(reached.workers["worker-0"].speed.at(-1), null);
  assert.equal(uptodate(curves(), { ...end, time: 5 }).time.length, 3);
});

test("of few workers each has a line, of many there are the median and who is at the ends", () => {
  const few = drawings(curves(2), LOOKS, {}).batch;
  assert.deepEqual(few.curves.map((curve) => curve.label), ["worker-0", "worker-1"]);
  const many = drawings(curves(5), LOOKS, {}).batch;
  assert.equal(many.said, "examples or tokens: median and range of 5 workers");
  assert.deepEqual(many.words(2), ["median 10", "8 (worker-0) to 12 (worker-4)"]);
  assert.equal(drawings(curves(2), LOOKS, {}).staleness, false, "all have the same");
});

test("marks lie at their step where curves are drawn over steps", () => {
  assert.equal(drawings(curves(), LOOKS, {}).loss.marks[0].x, 2);
  assert.equal(drawings(curves(), { ...LOOKS, byStep: true }, {}).loss.marks[0].x, 20);
});

test("a table has a line for each measured row, and a column for each worker's figures", () => {
  const [head, ...rows] = asTable(curves()).split("\r\n");
  assert.equal(head.split(",").length, 5 + 2 * 3);
  assert.equal(rows.length, 3);
  assert.match(rows[1], /^1970-01-01T00:00:03.000Z,30,,6,10,2,8,0,2,8,0$/);
});

test("what begins like a formula is text in a spreadsheet, and numbers stay numbers", () => {
  const rows = [["=1+1 loss", "+x", "-x", "@x", 'a "b", c', "=a,b"], [-1.5, null, 3, 0, 1e-7, "2026-01-02"]];
  assert.deepEqual(csv(rows).split("\r\n"), [
    "'=1+1 loss,'+x,'-x,'@x,\"a \"\"b\"\", c\",\"'=a,b\"", "-1.5,,3,0,1e-7,2026-01-02",
  ]);
});
