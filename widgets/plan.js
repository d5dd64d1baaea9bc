/* A search of the catalog: time against cost, the clusters that no other beats, and what if. What is changed goes to the
 * kernel, which searches again; a cluster that is picked puts its line into the next cell.
 */

import { money } from "./figures.js";
import { AGAIN, kernelLink } from "./link.js";
import { mount } from "./mount.js";
import { element, keyed, setText } from "./page.js";
import { scale } from "./scale.js";

const WAIT_MS = 250;
const BOX = { width: 760, height: 280, left: 56, right: 14, top: 12, bottom: 30 };

function time(hours) {
  return hours < 1 ? `${Number((60 * hours).toPrecision(3))} min` : `${Number(hours.toPrecision(3))} h`;
}

/** Put `line` into the cell below the one that shows `el`; false outside a JupyterLab notebook. */
function fillNextCell(model, el, line, before) {
  const notebook = model.widget_manager?.context?.model?.sharedModel;
  const cell = el.closest(".jp-Cell");
  if (!notebook?.insertCell || !cell) return false;
  const told = cell.dataset.windowedListIndex ?? [...cell.parentElement.querySelectorAll(":scope > .jp-Cell")].indexOf(cell);
  const index = Number(told) + 1;
  const next = notebook.cells[index];
  if (next?.cell_type === "code" && (next.source.trim() === "" || next.source === before)) next.setSource(line);
  else notebook.insertCell(index, { cell_type: "code", source: line, metadata: {} });
  return true;
}

function render({ model, el }) {
  let asked = 0;
  let later = 0;
  let filled = "";
  const said = element("span", { class: "transient-about", role: "status", "aria-live": "polite" });

  async function pick(line) {
    if (fillNextCell(model, el, line, filled)) {
      filled = line;
      setText(said, "It is in the next cell.");
      return;
    }
    try {
      await navigator.clipboard.writeText(line);
      setText(said, "Copied.");
    } catch {
      setText(said, line);
    }
  }

  function changed() {
    asked += 1;
    clearTimeout(later);
    later = setTimeout(() => {
      setText(said, "Searching …");
      model.send({ do: "search", choices: choices(), asked });
    }, WAIT_MS);
  }

  const link = kernelLink(model, () => draw(), { beats: false });
  const first = model.get("choices");
  const control = (label, node) => element("label", { class: "transient-field" }, element("span", { class: "transient-label", text: label }), node);
  const select = (label, options, chosen) => {
    const node = element("select", { "aria-label": label, onchange: changed });
    node.replaceChildren(...options.map(([name, text]) => element("option", { value: name, text })));
    node.value = chosen;
    return control(label, node);
  };
  const stepsWords = element("span", {});
  const steps = element("input", { type: "range", min: -1, max: 1, step: 0.05, "aria-label": "Steps", oninput: () => { sayLimits(); changed(); } });
  steps.value = 0;
  const touched = new Set();  // what the reader has not touched stays as it was asked for, to the last digit
  const slider = (name, what) => element("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": name, oninput: () => { touched.add(what); sayLimits(); changed(); } });
  const hours = slider("At most, hours", "max_hours");
  const dollars = slider("At most, dollars", "max_cost");
  const hoursWords = element("span", {});
  const dollarsWords = element("span", {});
  const objective = select("marked", [["knee", "the knee"], ["time", "the fastest"], ["cost", "the cheapest"]], first.objective);
  const risk = select("revocations", [["published", "as in 2019"], ["none", "none"]], first.revocations);
  const range = (words, node) => element("label", { class: "transient-field" }, element("span", { class: "transient-label" }, words), node);
  const whatIf = element("div", { class: "transient-fields", role: "group", "aria-label": "What if" },
    range(stepsWords, steps), range(hoursWords, hours), range(dollarsWords, dollars), risk, objective);

  const reach = model.get("view").reach;  // of the whole front, before anything was limited
  const limit = (node, [low, high]) => (Number(node.value) >= 1 ? null : low * (high / low) ** Number(node.value));
  const place = (most, [low, high]) => (most ? Math.min(1, Math.max(0, Math.log(most / low) / (Math.log(high / low) || 1))) : 1);
  hours.value = place(first.max_hours, reach.hours);
  dollars.value = place(first.max_cost, reach.dollars);
  const trainSteps = () => Math.max(1, Math.round(first.train_steps * 10 ** Number(steps.value)));
  const factor = () => trainSteps() / first.train_steps;
  function choices() {
    const most = (what, node, ends) => {
      if (!touched.has(what)) return first[what] ?? null;
      const value = limit(node, ends);
      return value === null ? null : value * factor();
    };
    return {
      train_steps: trainSteps(), max_hours: most("max_hours", hours, reach.hours), max_cost: most("max_cost", dollars, reach.dollars),
      objective: objective.querySelector("select").value, revocations: risk.querySelector("select").value,
    };
  }
  function sayLimits() {
    const now = choices();
    setText(stepsWords, `${now.train_steps.toLocaleString("en-US")} steps`);
    setText(hoursWords, now.max_hours === null ? "any time" : `at most ${time(now.max_hours)}`);
    setText(dollarsWords, now.max_cost === null ? "any cost" : `at most ${money(now.max_cost)}`);
  }

  const name = element("span", { class: "transient-name" });
  const about = element("span", { class: "transient-about" });
  const wrong = element("div", { class: "transient-trouble", "data-tone": "warn", role: "alert" });
  const plot = element("div", { class: "transient-plan-plot" });
  const legend = element("div", { class: "transient-plan-legend" });
  const body = element("tbody");
  const head = element("tr");
  const table = element("table", { class: "transient-vms transient-plan-table", "aria-label": "Clusters that no other beats" }, element("thead", {}, head), body);
  const notes = element("div", { class: "transient-foot" });
  const panel = element("section", { class: "transient-panel", role: "region", "aria-label": "Plan a cluster" },
    element("header", { class: "transient-head" }, name, about), whatIf, wrong, plot, legend, element("div", { class: "transient-wide" }, table),
    element("div", { class: "transient-fields" }, said), notes);

  function dot(point, across, up) {
    const [x, y] = [across(point.hours), up(point.dollars)];
    const [left, right] = point.hours_interval.map(across);
    const [low, high] = point.dollars_interval.map(up);
    const node = element("g", {
      tabindex: -1, role: "button", "aria-label": point.words, class: point.best ? "transient-plan-best" : "transient-plan-point",
      onclick: () => pick(point.line),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(point.line); } },
    },
    element("title", { text: point.words }),
    element("path", { d: `M${left} ${y}H${right}M${x} ${low}V${high}` }),
    element("circle", { cx: x, cy: y, r: 4.5 }));
    if (point.knee) node.append(element("circle", { cx: x, cy: y, r: 9, class: "transient-plan-knee" }));
    return node;
  }

  /** One stop of the Tab key for all points, the arrow keys from one to the next. `chosen`: which had the focus. */
  function rove(dots, chosen) {
    const start = chosen < 0 ? 0 : chosen;
    dots[start]?.setAttribute("tabindex", 0);
    if (chosen >= 0) dots[chosen].focus();
    dots.forEach((node, index) => node.addEventListener("keydown", (event) => {
      const to = dots[index + ({ ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key] ?? NaN)];
      if (!to) return;
      event.preventDefault();
      event.stopPropagation();
      node.setAttribute("tabindex", -1);
      to.setAttribute("tabindex", 0);
      to.focus();
    }));
  }

  function draw() {
    const view = model.get("view");
    if ((view.asked ?? 0) < asked && !link.lost) return;  // the answer to an older question
    setText(said, "");
    setText(wrong, link.lost ? AGAIN : view.error ?? "");
    wrong.hidden = !wrong.textContent;
    for (const node of whatIf.querySelectorAll("input, select")) node.disabled = link.lost;
    panel.classList.toggle("transient-wrong", Boolean(view.error));
    if (view.error) return;
    setText(name, view.title);
    setText(about, view.about);
    const across = scale(view.front.flatMap((each) => each.hours_interval), BOX.left, BOX.width - BOX.right);
    const up = scale(view.front.flatMap((each) => each.dollars_interval), BOX.height - BOX.bottom, BOX.top);
    const floor = BOX.height - BOX.bottom;
    const chosen = [...plot.querySelectorAll("[tabindex]")].indexOf(document.activeElement);
    const dots = view.front.map((each) => dot(each, across, up));
    plot.replaceChildren(element("svg", { viewBox: `0 0 ${BOX.width} ${BOX.height}`, role: "group", "aria-label": "Time against cost" },
      element("path", { class: "transient-plan-axes", d: `M${BOX.left} ${BOX.top}V${floor}H${BOX.width - BOX.right}` }),
      element("path", { class: "transient-plan-grid", d: [
        ...across.ticks(across.high < 1 ? 1 / 60 : 1).map((tick) => `M${across(tick)} ${BOX.top}V${floor}`),
        ...up.ticks(1).map((tick) => `M${BOX.left} ${up(tick)}H${BOX.width - BOX.right}`),
      ].join("") }),
      element("text", { x: BOX.width - BOX.right, y: floor - 6, "text-anchor": "end", text: "time" }),
      element("text", { x: BOX.left + 6, y: BOX.top + 10, text: "cost" }),
      ...across.ticks(across.high < 1 ? 1 / 60 : 1).map((tick) => element("text", { x: across(tick), y: floor + 17, "text-anchor": "middle", text: time(tick) })),
      ...up.ticks(1).map((tick) => element("text", { x: BOX.left - 7, y: up(tick) + 4, "text-anchor": "end", text: money(tick) })),
      ...view.points.filter((each) => across.shows(each.hours) && up.shows(each.dollars))
        .map((each) => element("circle", { class: "transient-plan-other", cx: across(each.hours), cy: up(each.dollars), r: 2 })),
      element("path", { class: "transient-plan-front", d: "M" + view.front.map((each) => `${across(each.hours)} ${up(each.dollars)}`).join("L") }),
      ...dots));
    legend.replaceChildren(...(view.legend ?? []).map(([tone, sign, text]) => element("span", {}, element("span", { style: `color: var(--${tone})`, text: `${sign} ` }), text)));
    rove(dots, Math.min(chosen, dots.length - 1));
    keyed(head, view.header, (text) => text, (text) => element("th", { scope: "col", text }));
    keyed(body, view.rows, (row) => row.line, ({ line, cells }) => {
      const words = line.split(" ").flatMap((word, at) => [at ? " " : "", element("span", { text: word })]);
      const button = element("button", { type: "button", title: "Into the next cell", onclick: () => pick(line) }, ...words);
      const values = cells.slice(0, -1).map(() => element("td"));
      const node = element("tr", {}, ...values, element("td", {}, button));
      node.update = (row) => {
        button.classList.toggle("transient-primary", row.best);
        values.forEach((cell, index) => setText(cell, row.cells[index]));
      };
      return node;
    });
    notes.replaceChildren(...view.notes.map((text) => element("div", { text })));
  }

  model.on("change:view", draw);
  el.append(panel);
  sayLimits();
  draw();
  return () => {
    clearTimeout(later);
    link.end();
    model.off("change:view", draw);
  };
}

export default { initialize: (given) => mount(given, render), render };
