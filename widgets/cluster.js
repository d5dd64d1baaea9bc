/* The panel of a cluster, or of one run: draws the snapshots that the kernel sends.
 *
 * A snapshot (`view`) is whole, so any of them may be lost. The page is built once and then only changed where a
 * snapshot differs, so that focus, a question being asked and the reader's selection stay. Between snapshots the page
 * counts costs and notices on by itself. What the reader asks for goes to the kernel as a message: {do: ...}.
 */

import { TONES, asking, clock, element, fact, keyed, money, setAttribute, setText } from "./page.js";

const STALE_SECONDS = 20;
const ANNOUNCE_SECONDS = 5;

function chartFigure() {
  const base = element("path", { class: "transient-base", d: "M0 40H300" });
  const marks = element("path", { class: "transient-marks" });
  const curve = element("path", { class: "transient-curve" });
  const picture = element("svg", { viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img" }, base, marks, curve);
  const title = element("span");
  const range = element("span");
  const node = element("figure", {}, picture, element("figcaption", {}, title, range));
  node.update = (chart) => {
    node.hidden = !chart.path;
    setAttribute(curve, "d", chart.path || "M0 0");
    setAttribute(marks, "d", chart.marks.map((x) => `M${x} 0V40`).join("") || "M0 0");
    setText(title, chart.title);
    setText(range, chart.path ? `${chart.low} to ${chart.high}` : "");
    const revocations = chart.marks.length ? `, ${chart.marks.length} revocations marked` : "";
    setAttribute(picture, "aria-label", `${chart.title}, ${chart.low} to ${chart.high}${revocations}`);
  };
  return node;
}

function trainingSection() {
  const state = element("span", { class: "transient-state" });
  const name = element("span", { class: "transient-run-name" });
  const title = element("span", { class: "transient-about" });
  const words = element("span", { class: "transient-run-words" });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": "Training steps", "aria-valuemin": 0 }, fill);
  const facts = element("div", { class: "transient-facts" });
  const charts = element("div", { class: "transient-charts" });
  state.append(name);
  const node = element("section", { "aria-label": "Training" },
    element("div", { class: "transient-run-head" }, state, title, words), bar, facts, charts);
  node.update = (training, focus) => {
    node.hidden = !training;
    if (!training) return;
    state.hidden = title.hidden = focus;
    const tone = TONES[training.phase] ?? "quiet";
    setAttribute(state, "data-tone", tone);
    setText(name, training.name);
    setText(title, training.title);
    const count = `${training.step.toLocaleString("en-US")} of ${training.steps.toLocaleString("en-US")} steps`;
    setText(words, training.phase === "running" ? count : training.words);
    setAttribute(bar, "aria-valuemax", training.steps);
    setAttribute(bar, "aria-valuenow", Math.min(training.step, training.steps));
    setAttribute(bar, "aria-valuetext", count);
    setAttribute(bar, "data-tone", training.phase === "failed" ? "bad" : "good");
    fill.style.width = `${training.steps ? Math.min(100, (100 * training.step) / training.steps) : 0}%`;
    keyed(facts, training.facts, (pair) => pair[0], (pair) => {
      const made = fact(pair[0]);
      made.update = (now) => made.set(now[1]);
      return made;
    });
    keyed(charts, training.charts, (chart) => chart.title, chartFigure);
    charts.hidden = training.charts.every((chart) => !chart.path);
  };
  return node;
}

function vmRow(send, now) {
  return (first) => {
    const name = element("th", { scope: "row" });
    const machine = element("td");
    const zone = element("td");
    const state = element("span", { class: "transient-state" });
    const revoke = element("button", {
      type: "button", class: "transient-quiet", text: "Revoke",
      "aria-label": `Revoke ${first.name}`, title: "Have the emulator take this VM back, with the 30-second notice",
      onclick: () => { revoke.disabled = true; send({ do: "revoke", worker: first.name }); },
    });
    const node = element("tr", {}, name, machine, zone, element("td", {}, state), element("td", {}, revoke));
    let vm = first;
    node.update = (next) => {
      if (next.state !== vm.state) revoke.disabled = false;
      vm = next;
      setText(name, vm.name);
      setText(machine, vm.machine);
      setText(zone, vm.zone);
      setAttribute(node, "data-state", vm.state);
      setAttribute(state, "data-tone", TONES[vm.state] ?? "quiet");
      node.classList.toggle("transient-gone", ["revoked", "deleted", "refused"].includes(vm.state));
      revoke.hidden = !vm.revocable;
      node.tick();
    };
    node.tick = () => {
      const left = Math.ceil(vm.leaves_at - now());
      setText(state, vm.state === "leaving" && vm.leaves_at ? (left > 0 ? `leaving in ${left} s` : "leaving") : vm.words);
    };
    return node;
  };
}

function vmTable(send, now) {
  const body = element("tbody");
  const heads = ["VM", "Machine", "Zone", "State", ""].map((text) => element(text ? "th" : "td", text ? { scope: "col", text } : {}));
  const node = element("table", { class: "transient-vms", "aria-label": "Virtual machines" },
    element("thead", {}, element("tr", {}, ...heads)), body);
  const make = vmRow(send, now);
  node.update = (view) => {
    node.hidden = !view.vms.length;
    keyed(body, view.vms, (vm) => vm.name, make);
  };
  node.tick = () => { for (const row of body.children) row.tick(); };
  return node;
}

function costSection() {
  const total = fact("cost so far");
  const rate = fact("per hour");
  const onDemand = fact("on demand");
  const saved = fact("saved");
  const projected = fact("at the run's end");
  const transfer = element("div", { class: "transient-foot" });
  const ending = element("div", { class: "transient-foot" });
  const foot = element("div", { class: "transient-foot" });
  const node = element("section", { "aria-label": "Cost" },
    element("div", { class: "transient-facts" }, total, rate, onDemand, saved, projected), transfer, foot, ending);
  node.update = (view, elapsed) => {
    const cost = view.cost;
    const hours = view.over ? 0 : elapsed * cost.pace / 3600;
    const now = cost.total + cost.hourly * hours;
    const full = cost.on_demand + cost.on_demand_hourly * hours;
    total.set(money(now));
    rate.set(money(cost.hourly));
    onDemand.set(money(full));
    rate.hidden = view.over;
    projected.hidden = !cost.projected_words;
    projected.set(cost.projected_words || "-");
    setText(transfer, cost.transfer_words);
    setText(ending, view.ending);
    saved.hidden = !full;
    saved.set(full > 0 && now < full * 0.995 ? `${Math.round(100 * (1 - now / full))} %` : "-");
    const notes = [view.emulated ? "Emulated, nothing is billed." : "", cost.source ? `Prices: ${cost.source}.` : ""];
    setText(foot, notes.filter(Boolean).join(" "));
  };
  return node;
}

function eventSection() {
  const list = element("ol", { class: "transient-events" });
  const node = element("section", { "aria-label": "Latest events" },
    element("div", { class: "transient-label", text: "latest events" }), list);
  node.update = (events) => {
    node.hidden = !events.length;
    keyed(list, events, (event) => `${event.at} ${event.text}`, (event) =>
      element("li", { "data-tone": event.tone },
        element("time", { datetime: new Date(event.at * 1000).toISOString(), text: clock(event.at) }),
        element("span", { text: event.text })));
  };
  return node;
}

function render({ model, el }) {
  const send = (message) => model.send(message);
  let view = model.get("view");
  let received = performance.now();
  const elapsed = () => (performance.now() - received) / 1000;
  const now = () => view.at + elapsed();

  const name = element("span", { class: "transient-name" });
  const phase = element("span", { class: "transient-state" });
  const about = element("span", { class: "transient-about" });
  const remove = asking({
    label: "Delete cluster", yes: "Delete",
    question: () => `Delete ${view.name} and all its VMs?`,
    act: () => send({ do: "delete" }),
  });
  const stop = asking({
    label: "Stop run", yes: "Stop",
    question: () => `Stop ${view.focus}?`,
    act: () => send({ do: "stop" }),
  });
  const trouble = element("div", { class: "transient-trouble", "data-tone": "warn", role: "alert" });
  const notice = element("div", { class: "transient-notice" });
  const stale = element("div", { class: "transient-foot", hidden: "" });
  const live = element("div", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const training = trainingSection();
  const table = vmTable(send, now);
  const cost = costSection();
  const events = eventSection();
  const left = element("div", { class: "transient-column" }, training, table);
  const right = element("div", { class: "transient-column" }, cost, events);
  const panel = element("section", { class: "transient-panel", role: "region" },
    element("header", { class: "transient-head" }, name, phase, about, element("span", { class: "transient-actions" }, stop, remove)),
    trouble, notice, element("div", { class: "transient-body" }, left, right), stale, live);

  let announced = { text: "", at: -Infinity };
  function announce() {
    const text = view.events?.[0]?.text ?? "";
    if (text === announced.text || performance.now() - announced.at < 1000 * ANNOUNCE_SECONDS) return;
    announced = { text, at: performance.now() };
    setText(live, text);
  }

  function draw() {
    view = model.get("view");
    received = performance.now();
    if (!view?.at) return;
    const focus = Boolean(view.focus);
    setAttribute(panel, "aria-label", focus ? `Run ${view.focus} on ${view.name}` : `Cluster ${view.name}`);
    setText(name, focus ? view.focus : view.name);
    const run = view.training?.phase ?? "declared";
    setText(phase, focus ? view.training?.phase_words ?? "starting" : view.phase_words);
    setAttribute(phase, "data-tone", TONES[focus ? run : view.phase] ?? "quiet");
    setText(about, view.about);
    setText(trouble, view.trouble);
    trouble.hidden = !view.trouble;
    setText(notice, view.notice?.text ?? "");
    setAttribute(notice, "data-tone", view.notice?.tone ?? "quiet");
    notice.hidden = !view.notice?.text;
    remove.hidden = focus || view.over;
    remove.disable(view.phase === "deleting");
    stop.hidden = !view.training?.stoppable;
    training.update(view.training, focus);
    table.update(view);
    table.hidden ||= focus;
    cost.hidden = focus;
    cost.update(view, 0);
    events.update(view.events);
    left.hidden = training.hidden && table.hidden;
    announce();
    tick();
  }

  function tick() {
    if (!view?.at) return;
    table.tick();
    cost.update(view, elapsed());
    setText(stale, "The kernel is silent or has ended: what you see may be old. The cluster goes on without it"
      + (view.emulated ? ". " : ` and costs ${money(view.cost.hourly)} per hour. `)
      + `To see it again: %transient_cluster attach ${view.name}`);
    stale.hidden = view.over || elapsed() < STALE_SECONDS;
    announce();
  }

  model.on("change:view", draw);
  const timer = setInterval(tick, 1000);
  el.append(panel);
  draw();
  send({ do: "resync" });
  return () => {
    clearInterval(timer);
    model.off("change:view", draw);
  };
}

/** Once per page, as soon as it knows the panel: the kernel learns that somebody looks. */
function initialize({ model }) {
  model.send({ do: "resync" });
}

export default { initialize, render };
