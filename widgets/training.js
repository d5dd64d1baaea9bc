/* A run: its progress, figures and curves; in a panel of its own also its buttons and its workers' logs. */

import { lineChart, sharedAxis } from "./chart.js";
import { asTable, drawings, uptodate } from "./curves.js";
import { logged } from "./lanes.js";
import { splitSection } from "./split.js";
import { ASKS, TONES, asking, choice, download, element, fact, keyed, onTheme, setAttribute, setText } from "./page.js";
import { proposalBox } from "./proposal.js";

const LOG_SECONDS = 5;
const TAIL_SECONDS = 1;

/** What the marks on the charts are. */
const MARKS = { revoked: "┆ a worker was revoked", checkpoint: "▲ checkpoint", evaluation: "● evaluation" };

/** All charts below each other, as one picture; of each what its colours are, at the end what its marks are. */
function asPicture(node, charts, title, marks, done) {
  const shown = charts.filter((chart) => chart.canvas());
  const pixel = devicePixelRatio;
  const head = 26 * pixel;
  const font = `${13 * pixel}px system-ui, sans-serif`;
  const canvas = element("canvas");
  const width = Math.max(...shown.map((chart) => chart.canvas().width));
  const pen = canvas.getContext("2d");
  pen.font = font;
  const above = shown.map((chart) => {
    const name = { label: `${title}: ${chart.querySelector("figcaption span").textContent}`, colour: "", faint: false };
    let [x, row] = [8 * pixel, 0];
    return [name, ...chart.legend()].map((entry) => {
      const line = entry.colour ? 18 * pixel : 0;
      const wide = line + pen.measureText(entry.label).width;
      if (x + wide > width && x > 8 * pixel) [x, row] = [8 * pixel, row + 1];
      const place = { ...entry, line, x, row };
      x += wide + 12 * pixel;
      return place;
    });
  });
  const rows = (places) => 1 + Math.max(...places.map(({ row }) => row));
  canvas.width = width;
  canvas.height = shown.reduce((height, chart, index) => height + chart.canvas().height + head * rows(above[index]), marks ? head : 0);
  const style = getComputedStyle(node);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.color;
  pen.font = font;
  let y = 0;
  for (const [index, chart] of shown.entries()) {
    for (const { label, colour, faint, line, x, row } of above[index]) {
      const base = y + row * head + 18 * pixel;
      pen.globalAlpha = faint ? 0.4 : 1;
      pen.fillStyle = colour || style.color;
      if (line) pen.fillRect(x, base - 6 * pixel, 14 * pixel, 3 * pixel);
      pen.globalAlpha = 1;
      pen.fillStyle = style.color;
      pen.fillText(label, x + line, base);
    }
    y += head * rows(above[index]);
    pen.drawImage(chart.canvas(), 0, y);
    y += chart.canvas().height;
  }
  pen.fillText(marks, 8 * pixel, y + 18 * pixel);
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
  node.update = (names) => {
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

/** The section of a run. `focus`: the panel shows only this run, with buttons and logs. */
export function trainingSection(send, focus) {
  const state = element("span", { class: "transient-state" });
  const name = element("span", { class: "transient-run-name" });
  const title = element("span", { class: "transient-about" });
  const words = element("span", { class: "transient-run-words" });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": "Training steps", "aria-valuemin": 0 }, fill);
  const ends = element("div", { class: "transient-about transient-ends", role: "note", "aria-label": "Forecast" });
  const proposal = proposalBox("Have these workers", (number) => send({ do: "agree", run: training?.name, number }));
  const facts = element("div", { class: "transient-facts" });
  const data = element("div", { class: "transient-about", role: "note", "aria-label": "Data", hidden: "" });
  const axis = sharedAxis();
  const height = focus ? 170 : 104;
  const charts = {
    loss: lineChart("loss", axis, { height }),
    speed: lineChart("steps per second", axis, { height }),
    metrics: lineChart("metrics", axis, { height }),
    ...(focus ? { batch: lineChart("mini-batch", axis, { height: 120 }), staleness: lineChart("staleness", axis, { height: 120 }) } : {}),
  };
  const looks = { byStep: false, smoothing: 0, log: false };
  const legend = element("span", { class: "transient-foot transient-legend" });
  const grid = element("div", { class: "transient-charts" }, ...Object.values(charts));
  const split = splitSection(focus);
  const logs = logSection(send);
  const look = (name, value) => { looks[name] = value; axis.byStep = looks.byStep; if (name === "byStep") axis.zoom = null; redraw(); };
  const smoothing = element("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: 0, "aria-label": "Smoothing", oninput: () => look("smoothing", Number(smoothing.value)) });
  const logScale = element("input", { type: "checkbox", onchange: () => look("log", logScale.checked) });
  const small = (text, label, act) => element("button", { type: "button", class: "transient-quiet", text, "aria-label": label, title: label, onclick: act });
  grid.hidden = true; // until there is something to draw
  /** @type {import("./snapshot").Training | null} */
  let training = null;
  /** @type {import("./snapshot").Curves | null} */
  let curves = null;
  let drawnAt = 0;
  let stale = false;  // the figures are others than those that were drawn
  const tools = element("div", { class: "transient-tools", role: "toolbar", "aria-label": "How the curves are drawn" },
    choice("Over what the curves are drawn", [["time", "over time"], ["step", "over steps"]], (value) => look("byStep", value === "step")),
    element("label", {}, element("span", { text: "smooth" }), smoothing),
    element("label", {}, logScale, element("span", { text: "log loss" })),
    small("zoom in", "Zoom in (+)", () => axis.zoomBy(0.5)), small("zoom out", "Zoom out (−)", () => axis.zoomBy(2)), small("show all", "Show all (0)", () => axis.zoomTo(null)),
    element("span", { class: "transient-gap" }),
    small("CSV", "Download the curves as CSV", () => { if (curves) download(`${curves.run}.csv`, asTable(curves)); }),
    small("PNG", "Download the charts as PNG", () => { const { run } = curves ?? { run: "" }; asPicture(node.closest(".transient-panel"), Object.values(charts), run, legend.textContent, (blob) => download(`${run}.png`, blob)); }));
  tools.hidden = true;
  const stop = asking({ label: "Stop run", yes: "Stop", question: () => `Stop ${training?.name}?`, act: () => send({ do: "stop", name: training?.name }) });
  const save = element("button", { type: "button", text: "Checkpoint now", ...ASKS, title: "Write a checkpoint; training continues", onclick: () => send({ do: "save" }) });
  const evaluate = element("button", { type: "button", text: "Evaluate now", ...ASKS, title: "Save, and measure the model on the dev split; training continues", onclick: () => send({ do: "evaluate" }) });
  state.append(name);
  const node = element("section", { "aria-label": "Training" },
    element("div", { class: "transient-run-head" }, state, title, words), bar, ends, proposal, facts, data, ...(focus ? [tools] : []), grid, legend, split, ...(focus ? [logs] : []));
  node.actions = [save, evaluate, stop];

  function redraw() {
    split.update(curves?.split);
    if (!curves) return;
    drawnAt = performance.now();
    stale = false;
    const drawn = drawings(uptodate(curves, training?.end), looks, Object.fromEntries(training?.facts ?? []));
    for (const [which, chart] of Object.entries(charts)) chart.draw(drawn[which] || { x: [], curves: [], marks: [] });
    grid.hidden = tools.hidden = curves.time.length < 2;
    const kinds = new Set(curves.marks.map((mark) => mark[0]));
    setText(legend, grid.hidden ? "" : Object.keys(MARKS).filter((kind) => kinds.has(kind)).map((kind) => MARKS[kind]).join("   "));
  }

  /** @param {import("./snapshot").Training | null} next @param {import("./snapshot").Lane[]} vms
   * @param {boolean} [drawn] whether the curves are drawn here, and not right after this */
  node.update = (next, vms, drawn = true) => {
    node.hidden = !next;
    training = next;
    stop.hidden = !next?.stoppable;
    for (const button of [save, evaluate]) button.hidden = !focus || !next?.stoppable || next.phase !== "running";
    if (!next) return;
    state.hidden = title.hidden = focus;
    setAttribute(state, "data-tone", TONES[next.phase_words] ?? TONES[next.phase] ?? "quiet");
    setText(name, next.name);
    setText(title, next.title);
    setText(words, next.phase_words === "running" ? next.counted : next.words);
    setAttribute(bar, "aria-valuemax", next.steps);
    setAttribute(bar, "aria-valuenow", Math.min(next.step, next.steps));
    setAttribute(bar, "aria-valuetext", next.counted);
    setAttribute(bar, "data-tone", { failed: "bad", stopped: "quiet" }[next.phase] ?? "good");
    setText(ends, next.forecast ?? "");
    ends.hidden = !next.forecast;
    proposal.update(next.proposal);
    fill.style.width = `${next.steps ? Math.min(100, (100 * next.step) / next.steps) : 0}%`;
    keyed(facts, next.facts, (pair) => pair[0], (pair) => {
      const made = fact(pair[0]);
      made.update = (now) => made.set(now[1]);
      return made;
    });
    setText(data, next.data ? `data: ${next.data}` : "");
    data.hidden = !next.data;
    logs.update(next.phase === "declared" ? [] : logged(vms, next.name, Object.keys(curves?.workers ?? {})));
    stale = true;
    if (drawn) node.tick();
  };
  /** The curves reach to what the figures say, once a second while they change. */
  node.tick = () => {
    if (stale && (training?.phase !== "running" || performance.now() - drawnAt > 1000 * TAIL_SECONDS)) redraw();
  };
  /** @param {Partial<import("./snapshot").Curves>} next */
  node.draw = (next) => { curves = next.time ? /** @type {import("./snapshot").Curves} */ (next) : null; redraw(); };
  node.log = (log) => logs.show(log);
  const cleanups = [onTheme(() => { for (const chart of Object.values(charts)) chart.redraw(); }), logs.end, ...Object.values(charts).map((chart) => chart.end)];
  node.end = () => { for (const end of cleanups) end(); };
  return node;
}
