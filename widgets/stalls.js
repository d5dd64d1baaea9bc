/* Where the time of a step goes, as it was measured: a stacked bar and a table for each kind of VM, advice, and what if.
 * What is changed goes to the kernel, which computes the step; here it is only drawn.
 */

import { AGAIN, kernelLink } from "./link.js";
import { mount } from "./mount.js";
import { OWN_KEYS, element, keyed, setAttribute, setText } from "./page.js";

const WAIT_MS = 150;
/** As works/runs/stalls/view.py has them; each reads on light and dark. */
const COLOURS = { compute: "#2a9d5c", serialisation: "#7d8186", network: "#3f83c8", contention: "#a05fc7", preparation: "#d98e04", fetch: "#cf4436" };
/** The parts of a predicted step, in which waiting for input is one. */
const PREDICTED = { ...COLOURS, computing: COLOURS.compute, "waiting for input": COLOURS.preparation };
const HEADS = ["part", "a step", "share", "of each dollar"];
/** What can be changed: its name, label, and what it is about. */
const CHANGES = [
  ["cache", "data in a cache", "which never evicts"], ["cores", "cores", "that prepare examples"], ["disk", "disk", "bytes a second"],
  ["link", "link", "to the parameter servers"], ["gpu", "GPU", "its speed"], ["batch", "mini-batch", "examples"], ["ps", "servers", "of parameters"],
];
const FETCHING = ["cache", "disk"];

/** A stacked bar, by the scale of the `longest` step. @param {[string, number | null, boolean][]} parts */
function stack(parts, longest, label) {
  const node = element("div", { class: "transient-split-bar", role: "img" });
  setAttribute(node, "aria-label", label);
  node.replaceChildren(...parts.map(([name, seconds, sure]) => {
    const width = longest ? (100 * Math.max(seconds ?? 0, 0)) / longest : 0;
    return element("i", { style: `width: ${width}%; background: ${PREDICTED[name]}; opacity: ${sure ? 1 : 0.35}`, title: name });
  }));
  return node;
}

const total = (parts) => parts.reduce((sum, [, seconds]) => sum + Math.max(seconds ?? 0, 0), 0);
/** @param {import("./snapshot").StallBar} bar @returns {[string, number | null, boolean][]} */
const partsOf = (bar) => bar.parts.map(({ name, seconds, sure }) => [name, seconds, sure]);

/** What was measured of one kind of VM. */
function measured() {
  const heading = element("div", {});
  const place = element("div", {});
  const body = element("tbody");
  const table = element("table", { class: "transient-vms transient-stall-parts" },
    element("thead", {}, element("tr", {}, ...HEADS.map((text) => element("th", { scope: "col", text })))), body);
  const advice = element("div", { class: "transient-stall-advice" });
  const node = element("section", { class: "transient-stall" }, heading, place, element("div", { class: "transient-wide" }, table), advice);
  /** @param {import("./snapshot").StallBar} bar @param {number} longest */
  node.show = (bar, longest) => {
    setAttribute(node, "aria-label", bar.vm);
    setAttribute(table, "aria-label", `Parts of a step on ${bar.vm}`);
    setText(heading, bar.heading);
    setText(advice, bar.advice);
    advice.hidden = !bar.advice;
    place.replaceChildren(stack(partsOf(bar), longest, bar.parts.map(({ name, share }) => `${name} ${share}`).join(", ")));
    keyed(body, bar.parts, (part) => part.name, (part) => {
      const cells = [element("td"), element("td"), element("td")];
      const row = element("tr", {}, element("th", { scope: "row", style: `--of: ${COLOURS[part.name]}`, text: part.name }), ...cells);
      row.update = (now) => {
        row.classList.toggle("transient-gone", !now.sure);
        [now.words, now.share, now.dollar.replace(" of each dollar", "")].forEach((text, at) => setText(cells[at], text));
      };
      return row;
    });
  };
  return node;
}

/** The sliders. `changed` is called when one was moved. */
function sliders(changed) {
  const rows = CHANGES.map(([name, label, about]) => {
    const share = name === "cache";
    const [min, max, step] = share ? [0, 1, 0.05] : [-2, 4, 0.5];
    const words = element("output", {});
    const node = element("input", { type: "range", min, max, step, "aria-label": label, title: about, ...OWN_KEYS, oninput: () => { say(); changed(); } });
    const value = () => (share ? Number(node.value) : Number((2 ** Number(node.value)).toPrecision(2)));
    const say = () => {
      const told = share ? `${Math.round(100 * value())}%` : `× ${value()}`;
      setText(words, told);
      setAttribute(node, "aria-valuetext", told);
    };
    const line = element("label", { class: "transient-what-if-row", title: about }, element("span", { text: label }), node, words);
    const reset = () => { node.value = 0; say(); };
    reset();
    return { name, node, line, value, reset };
  });
  return {
    nodes: rows.map(({ line }) => line),
    change: () => Object.fromEntries(rows.map(({ name, value }) => [name, value()])),
    reset: () => rows.forEach(({ reset }) => reset()),
    disable: (disabled, reads) => {
      for (const { name, node } of rows) node.disabled = disabled || (!reads && FETCHING.includes(name));
    },
  };
}

function render({ model, el }) {
  let asked = 0;
  let later = 0;
  const link = kernelLink(model, () => draw(), { beats: false });
  const name = element("span", { class: "transient-name" });
  const about = element("span", { class: "transient-about", role: "status", "aria-live": "polite" });
  const wrong = element("div", { class: "transient-trouble", "data-tone": "warn", role: "alert" });
  const list = element("div", { class: "transient-column" });
  const below = element("div", { class: "transient-foot" });

  function ask(wait = WAIT_MS) {
    asked += 1;
    clearTimeout(later);
    later = setTimeout(() => model.send({ do: "what-if", vm: vms.value, change: moved.change(), asked }), wait);
  }
  const moved = sliders(() => ask());
  const vms = element("select", { "aria-label": "VM", ...OWN_KEYS, onchange: () => { draw(); ask(); } });
  const which = element("label", { class: "transient-what-if-row" }, element("span", { text: "VM" }), vms);
  const again = element("button", { type: "button", class: "transient-quiet", text: "As measured", onclick: () => { moved.reset(); ask(0); } });
  const said = element("div", { role: "status", "aria-live": "polite" });
  const bars = element("div", { class: "transient-what-if-bars" });
  const whatIf = element("section", { class: "transient-what-if", "aria-label": "What if" },
    element("div", { class: "transient-split-head" }, element("span", { class: "transient-label", text: "what if" }), again),
    which, ...moved.nodes, bars, said);
  const panel = element("section", { class: "transient-panel", role: "region" },
    element("header", { class: "transient-head" }, name, about), wrong,
    element("div", { class: "transient-body" }, list, element("div", { class: "transient-column" }, whatIf)), below);

  function draw() {
    /** @type {import("./snapshot").Stalls} */
    const view = model.get("view");
    setAttribute(panel, "aria-label", `Stalls ${view.name}`);
    setText(name, view.name);
    setText(about, view.words);
    const longest = Math.max(0, ...view.bars.map((bar) => total(partsOf(bar))));
    keyed(list, view.bars, (bar) => bar.vm, measured);
    view.bars.forEach((bar, at) => list.children[at].show(bar, longest));
    below.replaceChildren(...view.below.map((text) => element("div", { text })));
    whatIf.hidden = !view.bars.length;
    const before = vms.value;
    if ([...vms.options].map((each) => each.value).join() !== view.bars.map((bar) => bar.vm).join()) {
      vms.replaceChildren(...view.bars.map((bar) => element("option", { value: bar.vm, text: bar.vm })));
      if (view.bars.some((bar) => bar.vm === before)) vms.value = before;
    }
    which.hidden = view.bars.length < 2;
    moved.disable(link.lost, chosen(view)?.reads);
    again.disabled = vms.disabled = link.lost;
    answer();
  }
  const chosen = (view) => view.bars.find((bar) => bar.vm === vms.value) ?? view.bars[0];

  function answer() {
    /** @type {import("./snapshot").StallAnswer} */
    const told = model.get("answer");
    if (told.asked < asked && !link.lost) return;  // the answer to an older question
    setText(wrong, link.lost ? AGAIN : told.error);
    wrong.hidden = !wrong.textContent;
    const bar = chosen(model.get("view"));
    if (!bar || told.error || !told.parts.length) {
      bars.replaceChildren();
      setText(said, "");
      return;
    }
    const now = partsOf(bar);
    /** @type {[string, number | null, boolean][]} */
    const then = told.parts.map(([part, seconds]) => [part, seconds, true]);
    const longest = Math.max(total(now), total(then));
    bars.replaceChildren(
      element("span", { text: "measured" }), stack(now, longest, "As measured"),
      element("span", { text: "then" }), stack(then, longest, then.map(([part, seconds]) => `${part} ${(1000 * (seconds ?? 0)).toFixed(1)} ms`).join(", ")));
    setText(said, told.words);
  }
  function renew() {
    draw();
    if (model.get("view").bars.length && !link.lost) ask();
  }

  model.on("change:view", renew);
  model.on("change:answer", answer);
  el.append(panel);
  renew();
  return () => {
    clearTimeout(later);
    link.end();
    model.off("change:view", renew);
    model.off("change:answer", answer);
  };
}

export default { initialize: (given) => mount(given, render), render };
