/* The studies of a cluster: how far each is, its best trial, the trials' curves over each other, and a table of trials that
 * any column sorts. Of many trials some have a row until all are asked for; the best one and those that train always do.
 *
 * The number of a trial is a button that has its curve stand out.
 */

import { lineChart, sharedAxis } from "./chart.js";
import { duration, money, number } from "./figures.js";
import { OWN_KEYS, TONES, asking, element, fact, keyed, onTheme, sectionList, setAttribute, setText } from "./page.js";

const FEW_ROWS = 10;
const HEIGHT = 150;
const STATES = { running: "busy", complete: "good", failed: "bad" };
const PHASES = { ...TONES, running: "busy", stopped: "quiet" };
const ORDER = ["running", "complete", "pruned", "stopped", "failed"];

/** @typedef {import("./snapshot").TrialLine} Trial */

/** A column: what it is called, what a cell says, what it is sorted by, and whether the largest comes first.
 * @param {import("./snapshot").Study} study */
export function columns(study) {
  return [
    { key: "trial", name: "trial", words: (trial) => String(trial.number), by: (trial) => trial.number, most: true },
    ...study.params.map((name, index) => ({
      key: `parameter ${name}`, name, words: (trial) => parameter(trial.params[index]), by: (trial) => trial.params[index], most: false,
    })),
    { key: "state", name: "state", words: (trial) => trial.words, by: (trial) => ORDER.indexOf(trial.state), most: false },
    { key: "value", name: study.metric, words: (trial) => number(trial.value), by: (trial) => trial.value, most: study.direction === "max" },
    { key: "hours", name: "time", words: (trial) => duration(3600 * trial.hours), by: (trial) => trial.hours, most: true },
    { key: "dollars", name: "dollars", words: (trial) => money(trial.dollars), by: (trial) => trial.dollars, most: true },
    { key: "revocations", name: "revoked", words: (trial) => String(trial.revocations), by: (trial) => trial.revocations, most: true },
  ];
}

/** @param {import("./snapshot").Parameter} value */
function parameter(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
}

/** The trials in the order of a column; what has no value comes last either way.
 * @param {Trial[]} trials @param {(trial: Trial) => any} by @param {boolean} most the largest first */
export function sorted(trials, by, most) {
  return [...trials].sort((one, other) => {
    const [left, right] = [by(one), by(other)];
    const [none, neither] = [left ?? null, right ?? null].map((value) => value === null);
    if (none || neither) return Number(none) - Number(neither);
    const compared = typeof left === "number" && typeof right === "number" ? left - right : String(left).localeCompare(String(right), "en", { numeric: true });
    return (most ? -compared : compared) || other.number - one.number;
  });
}

/** Those of the sorted trials that have a row: the first ones, and before them the best and those that train.
 * @param {Trial[]} trials @param {boolean} all */
export function shown(trials, all) {
  if (all || trials.length <= FEW_ROWS) return trials;
  const rank = (trial) => (trial.best ? 0 : trial.state === "running" ? 1 : 2);
  const chosen = new Set([...trials].sort((one, other) => rank(one) - rank(other)).slice(0, FEW_ROWS));
  return trials.filter((trial) => chosen.has(trial));
}

/** The trials' curves on the steps that any of them has. @param {import("./snapshot").Study} study @param {number | null} chosen */
export function drawing(study, chosen) {
  const drawn = study.trials.filter((trial) => trial.curve.length);
  const steps = [...new Set(drawn.flatMap((trial) => trial.curve.map(([step]) => step)))].sort((one, other) => one - other);
  const rank = (trial) => (trial.number === chosen ? 3 : trial.best ? 2 : trial.stoppable ? 1 : 0);
  const ordered = [...drawn].sort((one, other) => rank(one) - rank(other));  // what stands out is drawn over the others
  const curves = ordered.map((trial) => {
    const values = new Map(trial.curve);
    const colour = ["--quiet", "--busy", "--good", "--text"][rank(trial)];
    return { label: `trial ${trial.number}`, values: steps.map((step) => values.get(step) ?? null), colour, faint: rank(trial) === 0, wide: rank(trial) > 1, joined: true };
  });
  const best = drawn.find((trial) => trial.best);
  const at = best?.curve.at(-1);
  const told = curves.filter((curve) => !curve.faint).reverse();
  const words = (index) => told.filter((curve) => curve.values[index] !== null).slice(0, 4).map((curve) => `${curve.label} ${number(curve.values[index])}`);
  const marks = best && at ? [{ x: at[0], y: at[1], kind: "evaluation", words: `trial ${best.number}, the best: ${number(at[1])} at step ${at[0].toLocaleString("en-US")}` }] : [];
  return { x: steps, curves, marks, words };
}

/** The values of the trials by their number, and the best so far. @param {import("./snapshot").Study} study */
export function progress(study) {
  const trials = study.trials.filter((trial) => trial.value !== null);
  const best = new Map(study.best_so_far);
  let sofar = null;
  const x = trials.map((trial) => trial.number);
  const stairs = trials.map((trial) => (sofar = best.get(trial.number) ?? sofar));
  const last = study.best_so_far.at(-1);
  return {
    x,
    curves: [
      { label: "trials", values: trials.map((trial) => trial.value), colour: "--quiet", dots: true },
      { label: "best so far", values: stairs, colour: "--good", stairs: true, joined: true },
    ],
    marks: last ? [{ x: last[0], y: last[1], kind: "evaluation", words: `trial ${last[0]}, the best: ${number(last[1])}` }] : [],
    words: (index) => [number(trials[index]?.value), ...(stairs[index] === null ? [] : [`best so far ${number(stairs[index])}`])],
  };
}

/** @param {import("./snapshot").Study} first */
function studySection(send, first) {
  let study = first;
  const running = () => study.trials.filter((trial) => trial.state === "running").length;
  const state = element("span", { class: "transient-state" }, element("span", { class: "transient-run-name", text: first.name }));
  const about = element("span", { class: "transient-about" });
  const words = element("span", { class: "transient-run-words" });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": `Trials of ${first.name}`, "aria-valuemin": 0 }, fill);
  const best = element("div", { class: "transient-about transient-ends", role: "note", "aria-label": "Best so far" });
  const counts = ["complete", "pruned", "failed", "stopped"].map((name) => [name, fact(name)]);
  const cost = fact("this study");
  const legend = element("div", { class: "transient-names", role: "note", "aria-label": "What the curves are" });
  const axes = { curves: sharedAxis(), progress: Object.assign(sharedAxis(), { word: "trial" }) };
  for (const axis of Object.values(axes)) axis.byStep = true;
  const charts = { curves: lineChart("objective", axes.curves, { height: HEIGHT }), progress: lineChart("best so far", axes.progress, { height: HEIGHT }) };
  const grid = element("div", { class: "transient-charts" }, charts.curves, charts.progress);
  const head = element("tr");
  const body = element("tbody", OWN_KEYS);
  const more = element("button", { type: "button", "aria-pressed": "false", onclick: () => { all = !all; rows(); } });
  const told = element("span", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const table = element("table", { class: "transient-vms transient-trials", "aria-label": `Trials of ${first.name}` }, element("thead", {}, head), body);
  const many = element("div", { class: "transient-tools" }, more);
  const stop = asking({
    label: "Stop study", yes: "Stop",
    question: () => `Stop ${study.name}${running() ? ` and the ${running() === 1 ? "trial" : `${running()} trials`} in training` : ""}?`,
    act: () => send({ do: "stop", name: study.name }),
  });
  const node = element("section", { class: "transient-study", "aria-label": `Study ${first.name}` },
    element("div", { class: "transient-run-head" }, state, about, element("span", { class: "transient-actions" }, words, stop)), bar, best,
    element("div", { class: "transient-facts" }, ...counts.map(([, node]) => node), cost), grid, legend, element("div", { class: "transient-wide" }, table, many, told));
  let sort = { key: "trial", most: true };
  let all = false;
  /** @type {number | null} */
  let chosen = null;

  function order(column) {
    sort = { key: column.key, most: sort.key === column.key ? !sort.most : column.most };
    rows();
    setText(told, `Sorted by ${column.name}, ${sort.most ? "the largest" : "the smallest"} first.`);
  }

  function heads() {
    keyed(head, columns(study), (column) => column.key, (column) => {
      const button = element("button", { type: "button", class: "transient-quiet", text: column.name, onclick: () => order(column) });
      const cell = element("th", { scope: "col" }, button);
      cell.update = () => {
        const mine = sort.key === column.key;
        if (mine) setAttribute(cell, "aria-sort", sort.most ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      };
      return cell;
    });
  }

  function row(/** @type {Trial} */ made) {
    const name = element("button", {
      type: "button", class: "transient-quiet", text: String(made.number), title: "Have its curve stand out",
      "aria-label": `Curve of trial ${made.number}`, "aria-pressed": "false",
      onclick: () => { chosen = chosen === made.number ? null : made.number; draw(); rows(); },
    });
    const cells = columns(study).slice(1).map(() => element("td"));
    const end = asking({ label: "Stop", yes: "Stop", looks: "transient-quiet", question: () => `Stop trial ${made.number}?`, act: () => send({ do: "stop trial", study: study.name, trial: made.number }) });
    end.querySelector("button").setAttribute("aria-label", `Stop trial ${made.number}`);
    const state = element("span", { class: "transient-state" });
    cells[columns(study).findIndex((column) => column.key === "state") - 1].append(element("div", {}, state, end));
    const line = element("tr", {}, element("th", { scope: "row" }, name), ...cells);
    /** @param {Trial} trial */
    line.update = (trial) => {
      columns(study).slice(1).forEach((column, index) => {
        if (column.key !== "state") setText(cells[index], `${column.words(trial)}${column.key === "value" && trial.best ? " ◎ best" : ""}`);
      });
      setText(state, trial.words);
      setAttribute(state, "data-tone", STATES[trial.state] ?? "quiet");
      setAttribute(state, "title", trial.words);
      line.classList.toggle("transient-best", trial.best);
      setAttribute(name, "aria-pressed", String(chosen === trial.number));
      end.hidden = !trial.stoppable;
    };
    return line;
  }

  function rows() {
    heads();
    const column = columns(study).find((each) => each.key === sort.key) ?? columns(study)[0];
    const trials = shown(sorted(study.trials, column.by, sort.most), all);
    keyed(body, trials, (trial) => trial.number, row);
    table.hidden = !study.trials.length;
    many.hidden = study.trials.length <= FEW_ROWS;
    setAttribute(more, "aria-pressed", String(all));
    setText(more, all ? `Show ${FEW_ROWS} of ${study.trials.length} trials` : `Show all ${study.trials.length} trials`);
  }

  function draw() {
    const curves = drawing(study, chosen);
    charts.curves.entitle(study.curves_of);
    charts.progress.entitle(`${study.metric} by trial, and the best so far`);
    charts.curves.draw(curves);
    charts.progress.draw(progress(study));
    const kinds = [["--quiet", "other trials"], ["--busy", "training"], ["--good", "the best trial"], ["--text", `trial ${chosen}`]];
    const seen = new Set(curves.curves.map((curve) => curve.colour));
    grid.hidden = charts.curves.hidden && charts.progress.hidden;
    legend.hidden = charts.curves.hidden;
    keyed(legend, kinds.filter(([colour]) => seen.has(colour)), ([colour, text]) => `${colour} ${text}`, ([colour, text]) => {
      const made = element("span", { text });
      made.style.setProperty("--of", `var(${colour})`);
      return made;
    });
  }

  /** @param {import("./snapshot").Study} next */
  node.update = (next) => {
    study = next;
    setAttribute(state, "data-tone", PHASES[study.phase] ?? "quiet");
    setText(about, study.about);
    setText(words, study.words);
    setAttribute(bar, "aria-valuemax", study.planned);
    setAttribute(bar, "aria-valuenow", Math.min(study.ended, study.planned));
    setAttribute(bar, "aria-valuetext", study.words);
    fill.style.width = `${study.planned ? Math.min(100, (100 * study.ended) / study.planned) : 0}%`;
    for (const [name, node] of counts) {
      const many = study.trials.filter((trial) => trial.state === name).length;
      node.set(String(many));
      node.hidden = !many;
    }
    cost.set(study.cost_words);
    cost.hidden = !study.cost_words;
    setText(best, study.best_words ? `Best so far: ${study.best_words}.` : "");
    best.hidden = !study.best_words;
    stop.hidden = !study.stoppable;
    rows();
    draw();
  };
  const cleanups = [onTheme(() => { for (const chart of Object.values(charts)) chart.redraw(); }), ...Object.values(charts).map((chart) => chart.end)];
  node.end = () => { for (const end of cleanups) end(); };
  return node;
}

/** All studies that the panel shows: `update(studies)`. */
export function sections(send) {
  return sectionList("transient-studies", (study) => studySection(send, study));
}
