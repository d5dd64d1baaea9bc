/* The bags of a cluster: the points of each by two of their values, which VM holds what, and how good the surrogate is.
 *
 * The state of a point shows in its shape as well as in its colour. All points of a state are one path, so that
 * thousands are drawn quickly. The arrow keys move from job to job. The number of a job in the table is a button that
 * finds its point.
 */

import { money, number } from "./figures.js";
import { OWN_KEYS, TONES, asking, choice, element, fact, keyed, sectionList, setAttribute, setText } from "./page.js";

const PHASES = { ...TONES, running: "busy", stopped: "quiet" };
const STATES = { done: "good", running: "busy", waiting: "quiet", lost: "warn", failed: "bad", skipped: "quiet" };
const BEHIND = ["skipped", "waiting", "done", "lost", "failed", "running"];
const BOX = { left: 52, right: 12, top: 8, bottom: 34, height: 250, strip: 22 };
const OVER = ["done", "skipped"];  // what becomes of most points
const MANY = 600;
const NEAR_PIXELS = 16;

/** The form of a state around (x, y), of about this radius, as a path. @param {string} state */
export function form(state, x, y, r = 3.2) {
  const at = `${x.toFixed(1)} ${y.toFixed(1)}`;
  switch (state) {
    case "running": return `M${at}m${-1.2 * r} ${r}h${2.4 * r}l${-1.2 * r} ${-2.2 * r}z`;
    case "lost": return `M${at}m0 ${-1.2 * r}l${1.2 * r} ${1.2 * r}l${-1.2 * r} ${1.2 * r}l${-1.2 * r} ${-1.2 * r}z`;
    case "failed": return `M${at}m${-r} ${-r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`;
    case "skipped": return `M${at}m${-r} 0h${2 * r}`;
  }
  const size = state === "done" ? r : 0.85 * r;
  return `M${at}m${-size} 0a${size} ${size} 0 1 0 ${2 * size} 0a${size} ${size} 0 1 0 ${-2 * size} 0z`;
}

/** Where a value lies on an axis, from 0 to 1. @param {import("./snapshot").BagAxis} axis @param {import("./snapshot").Parameter} value */
export function place(axis, value) {
  if (axis.kind === "choice") return (axis.choices.indexOf(value) + 0.5) / axis.choices.length;
  const [low, high, at] = [axis.low, axis.high, Number(value)].map((each) => (axis.kind === "log" ? Math.log(each) : each));
  return (at - low) / (high - low);
}

/** What a point has on the axis of that number; nothing where it has no result. @param {number} axis @param {import("./snapshot").BagPoint} point */
export function valueOf(axis, point) {
  const [, , parameters, values] = point;
  return (axis < parameters.length ? parameters[axis] : values[axis - parameters.length]) ?? null;
}

/** What a point is, in words. @param {import("./snapshot").Bag} bag @param {number} job */
export function pointWords(bag, job) {
  const [state, attempts, parameters, values, errors] = bag.points[job];
  const said = bag.axes.filter((axis) => !axis.output).map((axis, index) => `${axis.name} ${shown(parameters[index])}`);
  const found = bag.axes.filter((axis) => axis.output)
    .map((axis, index) => (values.length ? `${axis.name} ${number(values[index])}${(errors[index] ?? null) === null ? "" : ` ± ${number(errors[index])}`}` : ""));
  return [`job ${job}`, said.join(", "), state, ...found.filter(Boolean), ...(attempts > 1 ? [`attempt ${attempts}`] : [])].join(" · ");
}

function shown(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
}

/** The points of one bag. */
function pointChart(first) {
  /** @type {import("./snapshot").Bag} */
  let bag = first;
  /** @type {number | null} */
  let chosen = null;
  /** @type {[number, number][]} */
  let places = [];
  let axes = { across: 0, up: first.axes.filter((axis) => !axis.output).length > 1 ? 1 : -1 };
  const paths = new Map(BEHIND.map((state) => [state, element("path", { "data-state": state, "data-tone": STATES[state] })]));
  const grid = element("g", { class: "transient-bag-grid" });
  const ring = element("circle", { class: "transient-bag-ring", r: 7 });
  const svg = element("svg", { "aria-hidden": "true" }, grid, element("g", { class: "transient-bag-points" }, ...paths.values()), ring);
  const readout = element("span", { class: "transient-readout" });
  const told = element("span", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const selects = { across: choice("Across", [], (value) => { axes.across = Number(value); draw(); }), up: choice("Up", [], (value) => { axes.up = Number(value); draw(); }) };
  const tools = element("div", { class: "transient-tools" }, element("label", {}, "across", selects.across), element("label", {}, "up", selects.up));
  const title = element("span");
  const figure = element("figure", { class: "transient-chart", tabindex: "0", role: "group", ...OWN_KEYS }, element("figcaption", {}, title, readout), svg, told);
  const node = element("div", {}, figure, tools);

  function fill(select, chosen, usable) {
    const options = bag.axes.map((axis, index) => ({ index, axis })).filter(({ index, axis }) => usable(index, axis));
    const names = options.map(({ axis }) => axis.name).join("\n");
    if (select.dataset.of !== names) {
      select.replaceChildren(...options.map(({ index, axis }) => element("option", { value: index, text: axis.name })));
      select.dataset.of = names;
    }
    select.value = String(chosen);
    select.parentElement.hidden = options.length < 2;
  }

  function draw() {
    const many = bag.axes.filter((axis) => !axis.output).length;
    if (axes.up < 0 && bag.axes.length > many) axes.up = many;
    fill(selects.across, axes.across, (_, axis) => !axis.output);
    fill(selects.up, axes.up, (index, axis) => index !== axes.across || axis.output);
    if (axes.up === axes.across) { axes.up = bag.axes.findIndex((_, index) => index !== axes.across); fill(selects.up, axes.up, (index) => index !== axes.across); }
    tools.hidden = selects.across.parentElement.hidden && selects.up.parentElement.hidden;
    const across = bag.axes[axes.across];
    const up = axes.up < 0 ? null : bag.axes[axes.up];
    const width = Math.max(160, figure.clientWidth);
    const strip = !up || up.output ? BOX.strip : 0;  // where those lie that have no value yet
    const [right, bottom] = [width - BOX.right, BOX.height - BOX.bottom];
    const x = (at) => BOX.left + at * (right - BOX.left);
    const y = (at) => bottom - strip - at * (bottom - strip - BOX.top);
    setAttribute(svg, "width", width);
    setAttribute(svg, "height", BOX.height);
    const marks = [
      element("path", { d: `M${BOX.left} ${BOX.top}V${bottom}H${right}` }),
      ...across.named.flatMap(([at, words]) => [element("path", { d: `M${x(at)} ${bottom}v4` }), element("text", { x: x(at), y: bottom + 16, "text-anchor": "middle", text: words })]),
      ...(up?.named ?? []).flatMap(([at, words]) => [element("path", { class: "transient-bag-line", d: `M${BOX.left} ${y(at)}H${right}` }), element("text", { x: BOX.left - 6, y: y(at) + 4, "text-anchor": "end", text: words })]),
      element("text", { x: right, y: BOX.height - 3, "text-anchor": "end", text: across.name }),
      ...(strip ? [element("path", { class: "transient-bag-line", d: `M${BOX.left} ${bottom - strip}H${right}` }), element("text", { x: BOX.left - 6, y: bottom - strip / 2 + 4, "text-anchor": "end", text: "none" })] : []),
    ];
    grid.replaceChildren(...marks);
    const small = bag.points.length > MANY ? 2.2 : 3.4;
    svg.classList.toggle("transient-bag-many", bag.points.length > MANY);
    const drawn = Object.fromEntries(BEHIND.map((state) => [state, ""]));
    places = bag.points.map((point) => {
      const value = up ? valueOf(axes.up, point) : null;
      const at = /** @type {[number, number]} */ ([x(place(across, point[2][axes.across])), value === null ? bottom - strip / 2 : up && y(place(up, value))]);
      drawn[point[0]] += form(point[0], ...at, OVER.includes(point[0]) ? small : 3.6);
      return at;
    });
    for (const [state, path] of paths) setAttribute(path, "d", drawn[state] || "M0 0");
    node.hidden = !bag.points.length;
    setText(title, up ? up.name : "no result to draw");
    svg.style.display = up ? "" : "none";
    const where = up ? `${across.name} and ${up.name}` : across.name;
    setAttribute(figure, "aria-label", `Points of ${bag.name} by ${where}. Arrow keys go from job to job.`);
    mark();
  }

  function mark() {
    const at = chosen === null ? undefined : places[chosen];
    ring.style.display = at ? "" : "none";
    if (at) { setAttribute(ring, "cx", at[0]); setAttribute(ring, "cy", at[1]); }
    setText(readout, at && chosen !== null ? pointWords(bag, chosen) : "");
  }

  function choose(job, said = true) {
    chosen = job;
    mark();
    if (said) setText(told, readout.textContent);
  }

  figure.addEventListener("keydown", (event) => {
    const last = bag.points.length - 1;
    const next = { ArrowRight: (chosen ?? -1) + 1, ArrowDown: (chosen ?? -1) + 1, ArrowLeft: (chosen ?? last + 1) - 1, ArrowUp: (chosen ?? last + 1) - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    choose(Math.min(last, Math.max(0, next)));
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let [near, nearest] = [NEAR_PIXELS, /** @type {number | null} */ (null)];
    places.forEach(([left, top], job) => {
      const far = Math.hypot(left - x, top - y);
      if (far <= near) [near, nearest] = [far, job];
    });
    if (nearest !== null && nearest !== chosen) choose(nearest, false);
  });
  const observer = new ResizeObserver(() => { if (figure.clientWidth) draw(); });
  observer.observe(figure);

  node.find = (job) => { choose(job); figure.scrollIntoView({ block: "nearest" }); };
  node.update = (next) => { bag = next; draw(); };
  node.end = () => observer.disconnect();
  return node;
}

/** A table of those heads, whose rows are `cells` of what it is updated with; hidden where there is none. */
function tableOf(label, looks, heads, key, cells) {
  const body = element("tbody");
  const node = element("table", { class: `transient-vms ${looks}`, "aria-label": label },
    element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col", text })))), body);
  node.update = (rows) => {
    node.hidden = !rows.length;
    keyed(body, rows, key, (made) => {
      const line = element("tr", {}, ...cells(made).map((_, index) => element(index ? "td" : "th", index ? {} : { scope: "row" })));
      line.update = (row) => cells(row).forEach((cell, index) => {
        if (cell instanceof Node) { if (line.children[index].firstChild !== cell) line.children[index].replaceChildren(cell); } else setText(line.children[index], cell);
      });
      return line;
    });
  };
  return node;
}

/** @param {import("./snapshot").Bag} first */
function bagSection(send, first) {
  let bag = first;
  const state = element("span", { class: "transient-state" }, element("span", { class: "transient-run-name", text: first.name }));
  const about = element("span", { class: "transient-about" });
  const words = element("span", { class: "transient-run-words" });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": `Results of ${first.name}`, "aria-valuemin": 0 }, fill);
  const keys = Object.keys(STATES).map((name) => /** @type {[string, any]} */ ([name, legend(name)]));
  const [each, cost, ends] = [fact("per result"), fact("this bag"), fact("all results")];
  const points = pointChart(first);
  const stop = asking({
    label: "Stop bag", yes: "Stop",
    question: () => { const many = count("running"); return `Stop ${bag.name}${many ? ` and the ${many === 1 ? "job" : `${many} jobs`} under way` : ""}?`; },
    act: () => send({ do: "stop", name: bag.name }),
  });
  const buttons = new Map();
  const vms = tableOf(`VMs of ${first.name}`, "transient-bag-vms", ["VM", "age", "job", "where, and since when"], (vm) => vm.name, (vm) => [vm.name, vm.age, found(vm.job), [vm.at, vm.words].filter(Boolean).join(", ")]);
  const more = element("div", { class: "transient-foot" });
  const learnt = element("div", { class: "transient-about", role: "note", "aria-label": "Surrogate" });
  const tried = tableOf(`Surrogate of ${first.name}`, "transient-bag-tried", ["output", "90% held", "residual", "largest sd", "until", "by the last batch"], (row) => row.output,
    (row) => [row.output, row.coverage === null ? "-" : `${Math.round(100 * row.coverage)}%`, row.residual === null ? "-" : `${number(row.residual)} sd`, number(row.largest), number(row.until), row.good ? "✓ good enough" : "not yet"]);
  const node = element("section", { class: "transient-study transient-bag", "aria-label": `Bag ${first.name}` },
    element("div", { class: "transient-run-head" }, state, about, element("span", { class: "transient-actions" }, words, stop)), bar,
    element("div", { class: "transient-facts" }, ...keys.map(([, key]) => key.node), each, cost, ends),
    element("div", { class: "transient-charts" }, points, element("div", { class: "transient-wide" }, vms, more, learnt, tried)));

  function count(name) {
    return bag.counts.find(([state]) => state === name)?.[1] ?? 0;
  }

  function found(job) {
    if (job === null) return "none";
    if (!buttons.has(job)) buttons.set(job, element("button", { type: "button", class: "transient-quiet", text: String(job), title: "Find its point", "aria-label": `Point of job ${job}`, onclick: () => points.find(job) }));
    return buttons.get(job);
  }

  /** @param {import("./snapshot").Bag} next */
  node.update = (next) => {
    bag = next;
    setAttribute(state, "data-tone", PHASES[bag.phase] ?? "quiet");
    setText(about, bag.about);
    setText(words, bag.words);
    setAttribute(bar, "aria-valuemax", bag.planned);
    setAttribute(bar, "aria-valuenow", bag.results);
    setAttribute(bar, "aria-valuetext", bag.words);
    fill.style.width = `${bag.planned ? (100 * bag.results) / bag.planned : 0}%`;
    for (const [name, key] of keys) {
      key.set(count(name).toLocaleString("en-US"));
      key.node.hidden = !count(name);
    }
    each.set(money(bag.per_result));
    each.hidden = bag.per_result === null;
    cost.set(bag.cost_words);
    cost.hidden = !bag.cost_words;
    ends.set(bag.ends, bag.stoppable ? "all results" : "ended");
    ends.hidden = !bag.ends;
    stop.hidden = !bag.stoppable;
    points.update(bag);
    const held = new Set(bag.vms.map((vm) => vm.job));
    for (const job of buttons.keys()) if (!held.has(job)) buttons.delete(job);
    vms.update(bag.vms);
    setText(more, `and ${bag.more} more VMs`);
    more.hidden = !bag.more;
    setText(learnt, `Surrogate: ${bag.tried_words}.`);
    learnt.hidden = !bag.tried_words;
    tried.update(bag.tried);
  };
  node.end = () => points.end();
  return node;
}

/** A state's form and name, above how many points it has. */
function legend(state) {
  const node = fact(state);
  const sample = element("svg", { class: "transient-bag-points", width: 13, height: 11, "aria-hidden": "true" },
    element("path", { d: form(state, 6, 5.5, 3.6), "data-state": state, "data-tone": STATES[state] }));
  const value = node.querySelector(".transient-value");
  value.before(element("span", { class: "transient-bag-key" }, sample, node.querySelector(".transient-label")));
  return { node, set(text) { setText(value, text); } };
}

/** All bags that the panel shows: `update(bags)`. */
export function sections(send) {
  return sectionList("transient-studies", (bag) => bagSection(send, bag));
}
