/* A run: how far it is, its figures, its curves; shown by itself, also what can be done with it and its workers' logs. */

import { lineChart, sharedAxis } from "./chart.js";
import { csv } from "./csv.js";
import { ASKS, TONES, asking, choice, clock, download, element, fact, inOrder, keyed, number, onTheme, setAttribute, setText } from "./page.js";

const WORKER_COLOURS = ["#3f83c8", "#d98e04", "#2a9d5c", "#a05fc7", "#cf4436", "#1f9aa8", "#8b6f3e", "#c75f8f"];
const MOST_LINES = 4;
const LOG_SECONDS = 5;
const TAIL_SECONDS = 1;

/** The values with the noise taken out: an exponential average of `share`, corrected for its beginning. */
function smoothed(values, share) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = share * sum + (1 - share) * value;
    weight = share * weight + (1 - share);
    return sum / weight;
  });
}

/** Which points to draw: by step, only those behind which the run never went back to start from a checkpoint again. */
function kept({ time, step }, byStep) {
  const all = time.map((_, index) => index);
  if (!byStep) return all;
  let lowest = Infinity;
  return all.reverse().filter((index) => {
    const before = step[index] < lowest;
    lowest = Math.min(lowest, step[index]);
    return before;
  }).reverse();
}

/** Whether what workers have differs, among them or over time. */
function varies(workers, name) {
  const values = Object.values(workers).flatMap((each) => each[name]).filter((value) => value !== null);
  return values.length > 1 && Math.max(...values) - Math.min(...values) > 0.5;
}

function stepAt({ time, step }, at) {
  const behind = time.findIndex((each) => each >= at);
  return step[behind < 0 ? step.length - 1 : behind];
}

function last(values) {
  return values.findLast((value) => value !== null) ?? null;
}

/** The curves up to where the run is by now, which its figures tell. */
function uptodate(curves, end) {
  if (!end || !(end.time > (last(curves.time) ?? 0))) return curves;
  const gap = (columns) => Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, [...values, null]]));
  return {
    ...curves, time: [...curves.time, end.time], step: [...curves.step, end.step], loss: [...curves.loss, end.loss],
    speed: [...curves.speed, end.speed], expected: [...curves.expected, last(curves.expected)],
    workers: Object.fromEntries(Object.entries(curves.workers).map(([name, columns]) => [name, gap(columns)])),
  };
}

/** Everything that is drawn, by chart. `said`: the run's figures, which the charts' heads repeat. */
function drawings(curves, { byStep, smoothing, log }, said) {
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
    batch: varies(curves.workers, "batch") && { x, ...ofWorkers("batch", "examples or tokens"), marks: shared, fromZero: true },
    staleness: varies(curves.workers, "staleness") && { x, ...ofWorkers("staleness", "steps of others meanwhile"), marks: shared, fromZero: true },
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

function asTable(curves) {
  const workers = inOrder(Object.keys(curves.workers)).map((name) => [name, curves.workers[name]]);
  const columns = workers.flatMap(([name]) => ["steps_per_second", "batch_size", "staleness"].map((what) => `${name} ${what}`));
  const head = ["time", "step", "loss", "steps_per_second", "expected_steps_per_second", ...columns];
  const measured = [...curves.time.entries()].filter(([index]) => curves.loss[index] !== null || curves.speed[index] !== null);
  const rows = measured.map(([index, at]) => [
    new Date(at * 1000).toISOString(), curves.step[index], curves.loss[index], curves.speed[index], curves.expected[index],
    ...workers.flatMap(([, each]) => [each.speed[index], each.batch[index], each.staleness[index]]),
  ]);
  return csv([head, ...rows]);
}

/** All charts below each other, as one picture. */
function asPicture(node, charts, title, done) {
  const shown = charts.filter((chart) => chart.canvas());
  const pixel = devicePixelRatio;
  const head = 26 * pixel;
  const canvas = element("canvas");
  canvas.width = Math.max(...shown.map((chart) => chart.canvas().width));
  canvas.height = shown.reduce((height, chart) => height + chart.canvas().height + head, 0);
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(node);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.color;
  pen.font = `${13 * pixel}px system-ui, sans-serif`;
  let y = 0;
  for (const chart of shown) {
    pen.fillText(`${title}: ${chart.querySelector("figcaption span").textContent}`, 8 * pixel, y + 18 * pixel);
    pen.drawImage(chart.canvas(), 0, y + head);
    y += chart.canvas().height + head;
  }
  canvas.toBlob(done);
}

function logSection(send) {
  const worker = element("select", { "aria-label": "Whose log", ...ASKS });
  const text = element("pre", { class: "transient-log", tabindex: "0", "aria-label": "The last lines of the log", hidden: "" });
  const ask = () => send({ do: "logs", worker: worker.value });
  const toggle = element("button", { type: "button", text: "Show log", ...ASKS, "aria-expanded": "false", onclick: () => {
    text.hidden = !text.hidden;
    setText(toggle, text.hidden ? "Show log" : "Hide log");
    setAttribute(toggle, "aria-expanded", String(!text.hidden));
    if (!text.hidden) ask();
  } });
  worker.addEventListener("change", () => { setText(text, ""); if (!text.hidden) ask(); });
  const node = element("section", { "aria-label": "Log" }, element("div", { class: "transient-tools" }, element("span", { class: "transient-label", text: "log of" }), worker, toggle), text);
  const timer = setInterval(() => { if (!text.hidden && !toggle.disabled && node.isConnected && !document.hidden) ask(); }, 1000 * LOG_SECONDS);
  node.end = () => clearInterval(timer);
  node.update = (vms) => {
    const names = vms.filter((vm) => !["requested", "refused"].includes(vm.state)).map((vm) => vm.name);
    node.hidden = !names.length;
    if (names.join() !== [...worker.options].map((option) => option.value).join()) {
      const chosen = worker.value;
      worker.replaceChildren(...names.map((name) => element("option", { value: name, text: name })));
      if (names.includes(chosen)) worker.value = chosen;
    }
  };
  node.show = (log) => {
    if (log.worker !== worker.value) return;
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 8;
    setText(text, log.text || "Nothing was written yet.");
    if (atEnd) text.scrollTop = text.scrollHeight;
  };
  return node;
}

/** The section of a run. `focus`: it is shown by itself, with all there is. */
export function trainingSection(send, focus) {
  const state = element("span", { class: "transient-state" });
  const name = element("span", { class: "transient-run-name" });
  const title = element("span", { class: "transient-about" });
  const words = element("span", { class: "transient-run-words" });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": "Training steps", "aria-valuemin": 0 }, fill);
  const ends = element("div", { class: "transient-about transient-ends", role: "note", "aria-label": "Forecast" });
  const facts = element("div", { class: "transient-facts" });
  const axis = sharedAxis();
  const height = focus ? 170 : 104;
  const charts = {
    loss: lineChart("loss", axis, { height }),
    speed: lineChart("steps per second", axis, { height }),
    ...(focus ? { batch: lineChart("mini-batch", axis, { height: 120 }), staleness: lineChart("staleness", axis, { height: 120 }) } : {}),
  };
  const looks = { byStep: false, smoothing: 0, log: false };
  const legend = element("span", { class: "transient-foot transient-legend" });
  const grid = element("div", { class: "transient-charts" }, ...Object.values(charts));
  const logs = logSection(send);
  const look = (name, value) => { looks[name] = value; axis.byStep = looks.byStep; if (name === "byStep") axis.zoom = null; redraw(); };
  const smoothing = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing", oninput: () => look("smoothing", Number(smoothing.value)) });
  const logScale = element("input", { type: "checkbox", onchange: () => look("log", logScale.checked) });
  const small = (text, label, act) => element("button", { type: "button", class: "transient-quiet", text, "aria-label": label, title: label, onclick: act });
  grid.hidden = true; // until there is something to draw
  let training;
  let curves;
  let drawnAt = 0;
  const tools = element("div", { class: "transient-tools", role: "toolbar", "aria-label": "How the curves are drawn" },
    choice("Over what the curves are drawn", [["time", "over time"], ["step", "over steps"]], (value) => look("byStep", value === "step")),
    element("label", {}, element("span", { text: "smooth" }), smoothing),
    element("label", {}, logScale, element("span", { text: "log loss" })),
    small("zoom in", "Zoom in (+)", () => axis.zoomBy(0.5)), small("zoom out", "Zoom out (−)", () => axis.zoomBy(2)), small("show all", "Show all (0)", () => axis.zoomTo(null)),
    element("span", { class: "transient-gap" }),
    small("CSV", "Download the curves as CSV", () => download(`${training.name}.csv`, asTable(curves))),
    small("PNG", "Download the charts as PNG", () => asPicture(node.closest(".transient-panel"), Object.values(charts), training.name, (blob) => download(`${training.name}.png`, blob))));
  tools.hidden = true;
  const stop = asking({ label: "Stop run", yes: "Stop", question: () => `Stop ${training?.name}?`, act: () => send({ do: "stop" }) });
  const save = element("button", { type: "button", text: "Checkpoint now", ...ASKS, title: "Write a checkpoint; training goes on", onclick: () => send({ do: "save" }) });
  const evaluate = element("button", { type: "button", text: "Evaluate now", ...ASKS, title: "Save, and measure the model on the dev split; training goes on", onclick: () => send({ do: "evaluate" }) });
  state.append(name);
  const node = element("section", { "aria-label": "Training" },
    element("div", { class: "transient-run-head" }, state, title, words), bar, ends, facts, ...(focus ? [tools] : []), grid, legend, ...(focus ? [logs] : []));
  node.actions = [save, evaluate, stop];

  function redraw() {
    if (!curves?.time) return;
    drawnAt = performance.now();
    const drawn = drawings(uptodate(curves, training?.end), looks, Object.fromEntries(training?.facts ?? []));
    for (const [which, chart] of Object.entries(charts)) chart.draw(drawn[which] || { x: [], curves: [], marks: [] });
    grid.hidden = tools.hidden = curves.time.length < 2;
    const kinds = new Set(curves.marks.map((mark) => mark[0]));
    const said = { revoked: "┆ a worker was revoked", checkpoint: "▲ checkpoint", evaluation: "● evaluation" };
    setText(legend, grid.hidden ? "" : Object.keys(said).filter((kind) => kinds.has(kind)).map((kind) => said[kind]).join("   "));
  }

  node.update = (next, vms) => {
    node.hidden = !next;
    training = next;
    for (const button of node.actions) button.hidden = !next?.stoppable || (button !== stop && next.phase !== "running");
    if (!next) return;
    state.hidden = title.hidden = focus;
    setAttribute(state, "data-tone", TONES[next.phase_words] ?? TONES[next.phase] ?? "quiet");
    setText(name, next.name);
    setText(title, next.title);
    const count = `${next.step.toLocaleString("en-US")} of ${next.steps.toLocaleString("en-US")} steps`;
    setText(words, next.phase_words === "running" ? count : next.words);
    setAttribute(bar, "aria-valuemax", next.steps);
    setAttribute(bar, "aria-valuenow", Math.min(next.step, next.steps));
    setAttribute(bar, "aria-valuetext", count);
    setAttribute(bar, "data-tone", { failed: "bad", stopped: "quiet" }[next.phase] ?? "good");
    setText(ends, next.forecast ?? "");
    ends.hidden = !next.forecast;
    fill.style.width = `${next.steps ? Math.min(100, (100 * next.step) / next.steps) : 0}%`;
    keyed(facts, next.facts, (pair) => pair[0], (pair) => {
      const made = fact(pair[0]);
      made.update = (now) => made.set(now[1]);
      return made;
    });
    logs.update(vms);
    if (next.phase !== "running" || performance.now() - drawnAt > 1000 * TAIL_SECONDS) redraw();
  };
  node.draw = (next) => { curves = next; redraw(); };
  node.log = (log) => logs.show(log);
  const cleanups = [onTheme(() => { for (const chart of Object.values(charts)) chart.redraw(); }), logs.end, ...Object.values(charts).map((chart) => chart.end)];
  node.end = () => { for (const end of cleanups) end(); };
  return node;
}
