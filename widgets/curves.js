/* What the charts of a run draw, as pure functions of the curves that the kernel sent. */

import { csv } from "./csv.js";
import { clock, inOrder, number } from "./figures.js";

const WORKER_COLOURS = ["#3f83c8", "#d98e04", "#2a9d5c", "#a05fc7"];
const MOST_LINES = WORKER_COLOURS.length;

/** The values with the noise taken out: an exponential average of `share`, corrected for its beginning.
 * @param {import("./snapshot").Figure[]} values @param {number} share */
export function smoothed(values, share) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = share * sum + (1 - share) * value;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
}

/** Which points to draw: by step, only those behind which the run never went back to start from a checkpoint again.
 * @param {Pick<import("./snapshot").Curves, "time" | "step">} curves @param {boolean} byStep */
export function kept({ time, step }, byStep) {
  const all = time.map((_, index) => index);
  if (!byStep) return all;
  let lowest = Infinity;
  return all.reverse().filter((index) => {
    const before = step[index] < lowest;
    lowest = Math.min(lowest, step[index]);
    return before;
  }).reverse();
}

/** Whether what workers have differs, among them or over time.
 * @param {import("./snapshot").Curves["workers"]} workers @param {"batch" | "staleness"} name */
function varies(workers, name) {
  const values = Object.values(workers).flatMap((each) => each[name] ?? []).filter((value) => value !== null);
  return values.length > 1 && Math.max(...values) - Math.min(...values) > 0.5;
}

/** @param {Pick<import("./snapshot").Curves, "time" | "step">} curves @param {number} at */
function stepAt({ time, step }, at) {
  const behind = time.findIndex((each) => each >= at);
  return step[behind < 0 ? step.length - 1 : behind];
}

/** @param {import("./snapshot").Figure[]} values @returns {import("./snapshot").Figure} */
function last(values) {
  return values.findLast((value) => value !== null) ?? null;
}

/** The curves up to where the run is by now, which its figures tell.
 * @param {import("./snapshot").Curves} curves @param {import("./snapshot").End | null | undefined} end @returns {import("./snapshot").Curves} */
export function uptodate(curves, end) {
  if (!end || !(end.time > (last(curves.time) ?? 0))) return curves;
  const gap = (/** @type {any} */ columns) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, [...values, null]]));
  return {
    ...curves, time: [...curves.time, end.time], step: [...curves.step, end.step], loss: [...curves.loss, end.loss],
    speed: [...curves.speed, end.speed], expected: [...curves.expected, last(curves.expected)],
    workers: /** @type {any} */ (Object.fromEntries(Object.entries(curves.workers).map(([name, columns]) => [name, gap(columns)]))),
  };
}

/** Everything that is drawn, by chart. `said`: the run's figures, which the charts' heads repeat.
 * @param {import("./snapshot").Curves} curves */
export function drawings(curves, { byStep, smoothing, log }, said) {
  const places = kept(curves, byStep);
  const pick = (values) => places.map((index) => values[index]);
  const x = pick(byStep ? curves.step : curves.time);
  const marks = curves.time.length ? curves.marks.map(([kind, at, step, words, y]) =>
    ({ kind, x: byStep ? step ?? stepAt(curves, at) : at, words: `${clock(at)} ${words}`, y })) : [];
  const positive = (values) => (log ? values.map((value) => (value > 0 ? value : null)) : values);
  const lossNow = pick(curves.loss);
  const smooth = smoothing > 0
    ? [{ label: "measured", values: positive(lossNow), colour: "--busy", faint: true }, { label: "loss", values: positive(smoothed(lossNow, smoothing)), colour: "--busy" }]
    : [{ label: "loss", values: positive(lossNow), colour: "--busy" }];
  const expected = pick(curves.expected);
  const band = curves.below && expected.some((value) => value !== null) ? [
    { label: "expected", values: expected, colour: "--band", band: true, hidden: true },
    { label: "slow", values: expected.map((value) => (value === null ? null : value * curves.below)), colour: "--band", hidden: true },
  ] : [];
  const speed = pick(curves.speed);
  const speeds = smoothing > 0
    ? [{ label: "measured", values: speed, colour: "--good", faint: true }, { label: "steps per second", values: smoothed(speed, smoothing), colour: "--good" }]
    : [{ label: "steps per second", values: speed, colour: "--good" }];
  const workers = inOrder(Object.keys(curves.workers));
  const ofWorkers = (name, said) => {
    const each = workers.map((worker) => [worker, pick(curves.workers[worker][name])]);
    if (each.length > MOST_LINES) return amongWorkers(each, `${said}: median and range of ${each.length} workers${curves.unnamed ? ", more are not told apart" : ""}`);
    return { said, curves: each.map(([label, values], index) => ({ label, values, colour: WORKER_COLOURS[index] })), named: true };
  };
  const shared = marks.filter((mark) => mark.kind !== "evaluation");
  const fast = expected.at(-1);
  return {
    loss: { x, curves: smooth, marks, log, said: said.loss ?? number(last(curves.loss)) },
    speed: { x, curves: [...band, ...speeds], marks: shared, fromZero: true,
      said: `${said["steps/s"] ?? number(last(curves.speed))}${fast ? `, expected ${curves.below ? `${number(fast * curves.below)} to ` : ""}${number(fast)}` : ""}` },
    metrics: byEpoch(curves.epochs, byStep),
    batch: varies(curves.workers, "batch") && { x, ...ofWorkers("batch", "examples or tokens"), marks: shared, fromZero: true },
    staleness: varies(curves.workers, "staleness") && { x, ...ofWorkers("staleness", "steps of others meanwhile"), marks: shared, fromZero: true },
  };
}

/** The metrics of training and validation data by epoch, beside the loss, which has a chart of its own.
 * @param {import("./snapshot").Epoch[]} epochs @param {boolean} byStep */
function byEpoch(epochs, byStep) {
  const names = [...new Set(epochs.flatMap(({ metrics }) => Object.keys(metrics)))]
    .filter((name) => !["loss", "val_loss", "learning_rate"].includes(name));
  const shown = names.filter((name) => !name.startsWith("val_")).slice(0, MOST_LINES / 2)
    .flatMap((name) => [name, `val_${name}`]).filter((name) => names.includes(name));
  if (!shown.length) return null;
  return {
    x: epochs.map(({ time, step }) => (byStep ? step : time)), marks: [], named: true, said: "by epoch",
    curves: shown.map((name, index) => ({
      label: name, values: epochs.map(({ metrics }) => metrics[name] ?? null), colour: WORKER_COLOURS[index],
    })),
  };
}

/** What many workers have, as one drawing: the median, and from the lowest to the highest, who are named at the cursor. */
function amongWorkers(each, said) {
  const ranked = each[0][1].map((_, index) => each.map(([worker, values]) => [values[index], worker])
    .filter(([value]) => value !== null).sort(([one], [other]) => one - other));
  const at = (share) => ranked.map((values) => values[Math.floor(share * (values.length - 1))]?.[0] ?? null);
  const median = at(0.5);
  const words = (index) => {
    if (!ranked[index].length) return [];
    const [low, high] = [ranked[index][0], ranked[index].at(-1)];
    return [`median ${number(median[index])}`, ...(low[0] < high[0] ? [`${number(low[0])} (${low[1]}) to ${number(high[0])} (${high[1]})`] : [])];
  };
  return { said, words, curves: [
    { label: "highest", values: at(1), colour: "--among", band: true, hidden: true },
    { label: "lowest", values: at(0), colour: "--among", hidden: true },
    { label: "median", values: median, colour: "--busy" },
  ] };
}

/** All that was measured. @param {import("./snapshot").Curves} curves */
export function asTable(curves) {
  const workers = inOrder(Object.keys(curves.workers)).map((name) => [name, curves.workers[name]]);
  const columns = workers.flatMap(([name]) => ["steps_per_second", "batch_size", "staleness"].map((what) => `${name} ${what}`));
  const head = ["time", "step", "loss", "steps_per_second", "expected_steps_per_second", ...columns];
  const measured = [...curves.time.entries()].filter(([index]) => curves.loss[index] !== null || curves.speed[index] !== null);
  const rows = measured.map(([index, at]) => [
    new Date(at * 1000).toISOString(), curves.step[index], curves.loss[index], curves.speed[index], curves.expected[index],
    ...workers.flatMap(([, each]) => [each.speed[index], each.batch?.[index], each.staleness?.[index]]),
  ]);
  return csv([head, ...rows]);
}
