/* The VMs, a lane each: their lives over time as bars, with the steps per second of each as a fine line.
 *
 * The higher a bar, the further its VM is; an outline is the life of a VM whose place was taken. Where trials share a VM,
 * the line is their sum. The pointer, or the arrow keys once a lane has the focus, say what a bar is. Of many VMs some
 * have a lane until all are asked for.
 */

import { clock, duration, number, when } from "./figures.js";
import { ASKS, OWN_KEYS, TONES, choice, disable, element, keyed, setAttribute, setText } from "./page.js";

const WIDTH = 1000;
const HEIGHT = 24;
const STATES = ["requested", "stopped", "booting", "ready", "deflated", "leaving", "revoked", "refused"];
const HALF = { requested: 1, stopped: 0.5, booting: 2.5, ready: 4.5, deflated: 2.2, leaving: 7 };
const KEY = [["requested"], ["booting"], ["ready", "running"], ["deflated", "with less CPU or network"], ["stopped"], ["leaving", "under notice"], ["revoked"]];
const ENDS = ["revoked", "refused", "deleted"];
const WINDOWS = [["", "whole life"], ["3600", "last hour"], ["600", "last 10 minutes"]];

const HOLE = 2.5;  // times as long as between others: more than one measure is missing

/** The steps per second of a VM: [time, speed] in order; no line is drawn over more than `reach` seconds without any.
 * @typedef {{points: [number, number][], reach: number}} Speed */

/** How fast each VM was, by its name: of trials that share it their sum.
 * @param {Partial<import("./snapshot").Curves>} curves of the run that is drawn @param {import("./snapshot").Speeds[]} others */
export function speedsOf(curves, others) {
  const { run = "", time = [], width = 0, workers = {} } = curves;
  const own = Object.fromEntries(Object.entries(workers).map(([name, each]) => [name, each.speed]));
  /** @type {Map<string, Speed>} */
  const found = new Map();
  for (const each of [{ run, time, width, workers: own }, ...others.filter((other) => other.run !== run)]) {
    const between = each.time.slice(1).map((at, index) => at - each.time[index]).sort((left, right) => left - right);
    const reach = HOLE * Math.max(each.width, between[between.length >> 1] ?? 0);  // rows may come less often than their width
    for (const [vm, speeds] of Object.entries(each.workers)) {
      const points = /** @type {[number, number][]} */ (each.time.map((at, index) => [at, speeds[index]]).filter(([, speed]) => speed !== null));
      const one = { points, reach };
      const other = found.get(vm);
      found.set(vm, other ? summed(one, other) : one);
    }
  }
  return found;
}

/** @param {Speed} one @param {Speed} other */
function summed(one, other) {
  const times = [...new Set([...one.points, ...other.points].map(([at]) => at))].sort((left, right) => left - right);
  const points = times.map((at) => /** @type {[number, number]} */ ([at, (speedAt(one, at) ?? 0) + (speedAt(other, at) ?? 0)]));
  return { points, reach: Math.max(one.reach, other.reach) };
}

/** Between two measures what lies between them, else nothing. @param {Speed} speed @param {number} at */
export function speedAt({ points, reach }, at) {
  let [next, behind] = [0, points.length];
  while (next < behind) {
    const middle = (next + behind) >> 1;
    if (points[middle][0] < at) next = middle + 1;
    else behind = middle;
  }
  if (next === points.length) return null;
  const [[until, then], [since, before]] = [points[next], points[next - 1] ?? [-Infinity, 0]];
  if (until === at) return then;
  return until - since > reach ? null : before + ((then - before) * (at - since)) / (until - since);
}

/** The state of the table that its lanes share: the time from where to where, how fast each VM was, and the fastest. */
const SPAN = { from: 0, to: 1, fastest: 0, speeds: /** @type {Map<string, Speed>} */ (new Map()) };

function bar(state, x, width) {
  return `M${x.toFixed(1)} ${HEIGHT / 2 - HALF[state]}h${width.toFixed(1)}v${2 * HALF[state]}H${x.toFixed(1)}z`;
}

/** @param {import("./snapshot").Part[]} life @param {string} name @param {boolean} own @param {typeof SPAN} span */
function bars(life, name, own, span) {
  const paths = Object.fromEntries(STATES.map((state) => [state, ""]));
  const scale = WIDTH / Math.max(1, span.to - span.from);
  for (const [vm, state, begin, end] of life) {
    const until = end || span.to;
    if ((vm === name) !== own || until < span.from || state === "deleted") continue;
    const x = Math.max(0, (begin - span.from) * scale);
    if (!(state in paths)) continue;
    if (ENDS.includes(state)) paths[state] += `M${x.toFixed(1)} 2h4v20h-4z`;
    else paths[state] += bar(state, x, Math.max(2, (until - span.from) * scale - x));
  }
  return paths;
}

/** @param {import("./snapshot").Part[]} life @param {typeof SPAN} span */
function line(life, span) {
  const scale = WIDTH / Math.max(1, span.to - span.from);
  let path = "";
  for (const vm of new Set(life.map((part) => part[0]))) {
    const { points, reach } = span.speeds.get(vm) ?? { points: [], reach: 0 };
    let last = -Infinity;
    for (const [at, speed] of points) {
      if (at < span.from) continue;
      path += `${at - last > reach ? "M" : "L"}${((at - span.from) * scale).toFixed(1)} ${(HEIGHT - 1 - (speed / span.fastest) * (HEIGHT - 2)).toFixed(1)}`;
      last = at;
    }
  }
  return path;
}

/** What a part of a life was. @param {import("./snapshot").Part} part @param {import("./snapshot").Figure | undefined} speed @param {number} now */
export function partWords([vm, state, begin, end], speed, now) {
  if (ENDS.includes(state)) return `${vm} was ${state} at ${clock(begin)}`;
  const words = state === "ready" ? "running" : state === "leaving" ? "under notice" : state === "deflated" ? "deflated, running" : state;
  const until = end ? `to ${clock(end)}` : "until now";
  const took = ` (${duration((end || now) - begin)})`;
  return `${vm} ${words} from ${clock(begin)} ${until}${took}${speed ? `, ${number(speed)} steps/s` : ""}`;
}

/** The VMs that may have a log of the run: not those that train in others alone, unless they were `measured` in it.
 * @param {import("./snapshot").Lane[]} vms @param {string} run @param {string[]} measured */
export function logged(vms, run, measured = []) {
  const none = ["requested", "refused"];
  return vms.filter((vm) => !none.includes(vm.state) && (!vm.runs.length || vm.runs.includes(run) || measured.includes(vm.name))).map((vm) => vm.name);
}

/** @param {typeof SPAN} span */
function lane(span, tell) {
  const before = element("g", { class: "transient-before" });
  const own = element("g");
  const speed = element("path", { class: "transient-speed", d: "M0 0" });
  const paths = (parent) => Object.fromEntries(STATES.map((state) => {
    const path = element("path", { "data-tone": TONES[state] ?? "quiet", "data-state": state });
    parent.append(path);
    return [state, path];
  }));
  const drawn = [[before, false, paths(before)], [own, true, paths(own)]];
  const node = element("svg", { class: "transient-lane", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "slider", tabindex: "-1", "aria-valuemin": 1 },
    before, own, speed);
  /** @type {import("./snapshot").Lane} */
  let vm;
  let chosen = -1;
  node.addEventListener("pointermove", point);
  node.addEventListener("pointerdown", point);
  function point(event) {
    const box = node.getBoundingClientRect();
    const at = span.from + ((event.clientX - box.left) / box.width) * (span.to - span.from);
    const near = (4 * (span.to - span.from)) / box.width;
    const part = vm.life.find(([, state, begin]) => ENDS.includes(state) && Math.abs(at - begin) < near)
      ?? vm.life.findLast(([, , begin, end]) => begin <= at && at <= (end || span.to));
    const fast = part && span.speeds.get(part[0]);
    tell(part ? partWords(part, fast ? speedAt(fast, at) ?? speedAt(fast, at - fast.reach) : null, span.to) : "", event.clientX, box);
  }
  node.addEventListener("pointerleave", () => tell(""));
  node.addEventListener("blur", () => tell(""));
  node.addEventListener("focus", () => node.step(0));
  function says() {
    const at = chosen < 0 ? vm.life.length - 1 : Math.min(chosen, vm.life.length - 1);
    setAttribute(node, "aria-valuemax", vm.life.length);
    setAttribute(node, "aria-valuenow", at + 1);
    setAttribute(node, "aria-valuetext", at < 0 ? "" : partWords(vm.life[at], null, span.to));
  }
  node.step = (by) => {
    chosen = by === 0 ? vm.life.length - 1 : Math.min(vm.life.length - 1, Math.max(0, chosen + by));
    const part = vm.life[chosen];
    if (!part) return;
    says();
    const box = node.getBoundingClientRect();
    const x = box.left + (box.width * (Math.max(part[2], span.from) - span.from)) / (span.to - span.from);
    tell(partWords(part, null, span.to), x, box, true);
  };
  node.update = (next) => {
    vm = next;
    setAttribute(node, "aria-label", `life of ${vm.name}`);
    if (chosen >= 0 || !node.hasAttribute("aria-valuetext")) says();
    for (const [, isOwn, parts] of drawn) {
      const now = bars(vm.life, vm.name, isOwn, span);
      for (const state of STATES) setAttribute(parts[state], "d", now[state] || "M0 0");
    }
    setAttribute(speed, "d", (span.fastest > 0 && line(vm.life, span)) || "M0 0");
  };
  return node;
}

function row(span, send, now, tell) {
  return (/** @type {import("./snapshot").Lane} */ first) => {
    const name = element("th", { scope: "row", title: first.terms }, element("span", { text: first.name }));
    const where = element("span", { class: "transient-where" });
    if (first.role === "parameter server") name.append(element("abbr", { class: "transient-tag", title: "parameter server", text: "PS" }));
    if (first.chief) name.append(element("abbr", { class: "transient-tag", title: "the chief, which saves checkpoints and is the last to go", text: "chief" }));
    name.append(where);
    const machine = element("td");
    const zone = element("td", { class: "transient-zone" });
    const life = lane(span, tell);
    const state = element("span", { class: "transient-state" });
    const revoke = element("button", {
      type: "button", class: "transient-quiet", text: "Revoke", ...ASKS,
      "aria-label": `Revoke ${first.name}`, title: "Have the emulator take this VM back, with the 30-second notice",
      onclick: () => { disable(revoke, true); send({ do: "revoke", worker: first.name }); },
    });
    const node = element("tr", {}, name, machine, zone, element("td", { class: "transient-life" }, life), element("td", {}, state), element("td", {}, revoke));
    let vm = first;
    node.lane = life;
    /** @param {import("./snapshot").Lane} next */
    node.update = (next) => {
      if (next.state !== vm.state) disable(revoke, false);
      vm = next;
      setText(machine, vm.machine);
      for (const node of [zone, where]) setText(node, vm.zone);
      setAttribute(node, "data-state", vm.state);
      setAttribute(state, "data-tone", TONES[vm.state] ?? "quiet");
      node.classList.toggle("transient-gone", ["revoked", "deleted", "refused"].includes(vm.state));
      revoke.hidden = !vm.revocable;
      life.update(vm);
      node.tick();
    };
    node.refused = () => disable(revoke, false);
    node.tick = () => {
      const left = Math.ceil(vm.leaves_at - now());
      setText(state, vm.leaves_at ? vm.words.replace(/ in \d+ s$/, left > 0 ? ` in ${left} s` : "") : vm.words);
      setAttribute(state, "title", vm.words);
      if (vm.life.some((part) => !part[3])) life.update(vm);
    };
    return node;
  };
}

/** What the bars mean. */
function key() {
  const shape = (state) => {
    const path = element("path", { "data-tone": TONES[state], "data-state": state, d: ENDS.includes(state) ? "M9 2h4v20h-4z" : bar(state, 0, 22) });
    return element("svg", { class: "transient-lane", viewBox: `0 0 22 ${HEIGHT}`, "aria-hidden": "true" }, path);
  };
  const line = element("svg", { class: "transient-lane", viewBox: `0 0 22 ${HEIGHT}`, "aria-hidden": "true" }, element("path", { class: "transient-speed", d: "M0 14L7 10L14 13L22 9" }));
  const before = element("svg", { class: "transient-lane", viewBox: `0 0 22 ${HEIGHT}`, "aria-hidden": "true" },
    element("g", { class: "transient-before" }, element("path", { "data-tone": "good", "data-state": "ready", d: bar("ready", 1, 20) })));
  return element("div", { class: "transient-foot transient-key", role: "note", "aria-label": "What the bars mean" },
    ...KEY.map(([state, words = state]) => element("span", {}, shape(state), words)),
    element("span", {}, before, "whose place was taken"), element("span", {}, line, "steps per second"));
}

/** All VMs of a large cluster in a strip, counted by what they do, and a button for their lanes. */
function strip(changed) {
  const words = element("span");
  const cells = element("span", { class: "transient-cells", "aria-hidden": "true" });
  const all = element("button", { type: "button", "aria-pressed": "false", onclick: () => {
    node.all = !node.all;
    setAttribute(all, "aria-pressed", String(node.all));
    changed();
  } });
  const node = element("div", { class: "transient-strip", role: "group", "aria-label": "All VMs" }, words, cells, all);
  node.all = false;
  /** @param {import("./snapshot").Lane[]} vms */
  node.update = (vms) => {
    node.hidden = vms.every((vm) => vm.first);
    if (node.hidden) return;
    const counts = new Map();
    for (const { words } of vms) {
      const what = words.replace(/( in \d+ s|[,:] .*)$/, "").replace(/^training .*/, "training").replace(/^runs .*/, "at work");
      counts.set(what, (counts.get(what) ?? 0) + 1);
    }
    setText(words, [...counts].sort(([, one], [, other]) => other - one).map(([what, many]) => `${many} ${what}`).join(", "));
    keyed(cells, vms, (vm) => vm.name, () => {
      const cell = element("i");
      cell.update = (vm) => { setAttribute(cell, "data-tone", TONES[vm.state] ?? "quiet"); setAttribute(cell, "title", `${vm.name}: ${vm.words}`); };
      return cell;
    });
    setText(all, node.all ? `Show ${vms.filter((vm) => vm.first).length} of ${vms.length} lanes` : `Show all ${vms.length} lanes`);
  };
  return node;
}

/** The table of VMs: `update(view, curves)`, and `tick()` between snapshots. `now` is the kernel's time; `lost`: the
 * kernel no longer sends it. */
export function vmTable(send, now, lost) {
  const span = { ...SPAN };
  let shown = "";
  /** @type {import("./snapshot").View} */
  let view;
  const body = element("tbody", OWN_KEYS);
  /** @type {Partial<import("./snapshot").Curves>} */
  let drawn;
  /** @type {import("./snapshot").Speeds[]} */
  let others;
  const many = strip(() => node.update(view, drawn, others));
  const from = element("span");
  const to = element("span");
  const zoom = choice("Which part of the VMs' lives", WINDOWS, (value) => { shown = value; node.tick(); });
  const tip = element("div", { class: "transient-tip", role: "tooltip", hidden: "" });
  const told = element("span", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const heads = ["VM", "Machine", "Zone"].map((text) => element("th", { scope: "col", text }));
  const table = element("table", { class: "transient-vms", "aria-label": "Virtual machines" },
    element("thead", {}, element("tr", {}, ...heads,
      element("th", { scope: "col", class: "transient-life", "aria-label": "Life" }, element("div", { class: "transient-axis" }, from, zoom, to)),
      element("th", { scope: "col", text: "State" }), element("td"))), body);
  const node = element("section", { class: "transient-lanes", "aria-label": "Lives of the virtual machines" }, many, table, key(), tip, told);

  function tell(text, x, box, aloud = false) {
    tip.hidden = !text;
    if (!text) return;
    setText(tip, text);
    if (aloud) setText(told, text);
    const frame = node.getBoundingClientRect();
    const left = Math.min(x - frame.left, frame.width - tip.offsetWidth - 4);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${box.top - frame.top - tip.offsetHeight - 2}px`;
  }
  const make = row(span, send, now, tell);

  body.addEventListener("keydown", (event) => {
    const lanes = [...body.children].map((child) => child.lane);
    const index = lanes.indexOf(event.target);
    if (index >= 0 && event.key === "Escape" && !tip.hidden) {
      event.stopPropagation();
      tell("");
    }
    const moves = { ArrowUp: -1, ArrowDown: 1 };
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (index < 0 || !(event.key in moves || event.key in steps)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key in steps) lanes[index].step(steps[event.key]);
    else lanes[Math.min(lanes.length - 1, Math.max(0, index + moves[event.key]))].focus();
  });
  function measure() {
    const end = view.until || now();
    span.to = Math.max(end, view.since + 10);
    span.from = shown ? Math.max(view.since, end - Number(shown)) : view.since;
    setText(from, `${shown ? "" : "declared "}${when(span.from, span.to)}`);
    setText(to, view.until ? clock(view.until) : lost() ? clock(end) : "now");
    zoom.hidden = end - view.since < 600;
  }
  /** @param {import("./snapshot").View} next @param {Partial<import("./snapshot").Curves>} curves
   * @param {import("./snapshot").Speeds[]} [speeds] of runs whose curves are not drawn */
  node.update = (next, curves, speeds = []) => {
    view = next;
    node.hidden = !view.vms.length;
    if (drawn !== curves || others !== speeds) {
      [drawn, others] = [curves, speeds];
      span.speeds = speedsOf(curves, speeds);
      span.fastest = Math.max(0, ...[...span.speeds.values()].flatMap(({ points }) => points.map(([, speed]) => speed)));
    }
    measure();
    many.update(view.vms);
    keyed(body, many.all ? view.vms : view.vms.filter((vm) => vm.first), (vm) => vm.name, make);
    const lanes = [...body.children].map((child) => child.lane);
    const current = lanes.find((each) => each === document.activeElement) ?? lanes[0];
    for (const each of lanes) setAttribute(each, "tabindex", each === current ? "0" : "-1");
  };
  /** What was asked for last is refused, and may be asked for again. */
  node.refused = () => {
    for (const child of body.children) child.refused();
  };
  node.tick = () => {
    measure();
    for (const child of body.children) child.tick();
  };
  return node;
}
