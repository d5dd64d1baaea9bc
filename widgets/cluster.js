/* The panel of a cluster, or of one run: draws the snapshots that the kernel sends.
 *
 * A snapshot (`view`, and for the charts `curves` with `tail`) is whole, so any of them may be lost. The page is built once and then
 * only changed where a snapshot differs, so that focus, a question being asked and the reader's selection stay. Between
 * snapshots the page updates costs and notices itself. It draws at most once per frame, and asks the kernel to send less
 * often when drawing takes long or the panel is not visible. Requests of the reader go to the kernel as {do: ...}.
 */

import { boundary } from "./contract.js";
import { costSection, eventSection } from "./feed.js";
import { money, when } from "./figures.js";
import { grown, lacks } from "./growth.js";
import { vmTable } from "./lanes.js";
import { LOST, kernelLink } from "./link.js";
import { mount } from "./mount.js";
import { ASKS, OWN_KEYS, TONES, asking, element, hush, setAttribute, setText } from "./page.js";
import { proposalBox } from "./proposal.js";
import { SECTIONS } from "./sections.js";
import { trainingSection } from "./training.js";
import { workSection, workSections } from "./work.js";

const ANNOUNCE_SECONDS = 5;
const BUSY_SHARE = 0.15;
const QUICKEST_SECONDS = 0.1;
const SLOWEST_SECONDS = 2;

/** How often this page wants snapshots: so that drawing them takes a small share of its time. */
function pacemaker(send) {
  const page = crypto.randomUUID?.() ?? String(Math.random());
  let usual = 0;
  let told = QUICKEST_SECONDS;
  const tell = () => {
    const wanted = document.hidden ? SLOWEST_SECONDS : Math.min(SLOWEST_SECONDS, Math.max(QUICKEST_SECONDS, usual / BUSY_SHARE));
    if (wanted < told / 1.5 || wanted > told * 1.5) send({ do: "pace", page, seconds: (told = wanted) });
  };
  document.addEventListener("visibilitychange", tell);
  return {
    drew(seconds) { usual = 0.9 * usual + 0.1 * seconds; tell(); },
    end() { document.removeEventListener("visibilitychange", tell); },
  };
}

/** A change of the workers: asked for here, priced by the kernel, and asked again before it happens. */
function resizing(send) {
  const spec = element("input", { type: "text", size: 16, spellcheck: "false", autocomplete: "off", "aria-label": "The workers to have instead" });
  const go = element("button", { type: "button", text: "Price it", ...ASKS, onclick: () => send({ do: "resize", spec: spec.value }) });
  const form = element("div", { role: "group", "aria-label": "Other workers", class: "transient-tools", hidden: "", ...OWN_KEYS }, element("span", { text: "workers" }), spec, go);
  const words = element("span");
  const yes = element("button", { type: "button", class: "transient-primary", text: "Resize", ...ASKS });
  const no = element("button", { type: "button", text: "Not now" });
  const question = element("div", { class: "transient-notice transient-tools", "data-tone": "warn", role: "group", "aria-label": "Resize?", hidden: "" }, words, yes, no);
  const open = element("button", { type: "button", text: "Resize", "aria-expanded": "false", ...ASKS, onclick: () => toggle(form.hidden) });
  /** @type {import("./snapshot").Question} */
  let asked = {};
  function toggle(shown) {
    form.hidden = !shown;
    setAttribute(open, "aria-expanded", String(shown));
    (shown ? spec : open).focus();
  }
  function answered(agreed) {
    send({ do: "resize", spec: asked.spec, agreed });
    toggle(false);
  }
  yes.addEventListener("click", () => answered(true));
  no.addEventListener("click", () => { send({ do: "nothing" }); toggle(false); });
  spec.addEventListener("keydown", (event) => { if (event.key === "Enter") go.click(); });
  for (const box of [form, question]) box.addEventListener("keydown", (event) => { if (event.key === "Escape") { if (asked.text) send({ do: "nothing" }); toggle(false); } });
  return {
    open, form, question,
    /** @param {import("./snapshot").Frame} view */
    update(view) {
      open.hidden = view.focus || view.over || view.phase === "deleting";
      if (open.hidden) form.hidden = true;
      if (document.activeElement !== spec && form.hidden) spec.value = view.spec;
      const before = asked.text;
      asked = view.question ?? {};
      setText(words, asked.text ?? "");
      question.hidden = !asked.text;
      if (asked.text && asked.text !== before) no.focus();
    },
  };
}

function render({ model, el }) {
  const link = kernelLink(model, () => draw());
  const send = link.send;
  /** @type {import("./snapshot").Frame} */
  let view = model.get("view");
  let curves = grown(model.get("curves") ?? {}, model.get("tail") ?? {});
  let received = performance.now();
  const elapsed = () => (link.lost ? 0 : (performance.now() - received) / 1000);  // nothing is known while the link is lost
  const now = () => view.at + elapsed();
  const focus = Boolean(view?.focus);

  const name = element("span", { class: "transient-name" });
  const phase = element("span", { class: "transient-state" });
  const about = element("span", { class: "transient-about" });
  const remove = asking({
    label: "Delete cluster", yes: "Delete",
    question: () => `Delete ${view.name} and all its VMs?`,
    act: () => send({ do: "delete" }),
  });
  const resize = resizing(send);
  const trouble = element("div", { class: "transient-trouble", "data-tone": "warn", role: "alert" });
  const proposal = proposalBox("Give them up now", (number) => send({ do: "agree", number }));
  const notice = element("div", { class: "transient-notice", role: "status" });
  const attach = element("code");
  const lostWords = element("span");
  const lost = element("div", { class: "transient-notice", "data-tone": "bad", role: "alert", hidden: "" }, lostWords, attach);
  const waiting = element("div", { class: "transient-notice", "data-tone": "warn", role: "status", hidden: "", text: "The kernel is busy and has not taken this up yet." });
  const whole = boundary();
  const live = element("div", { class: "transient-hidden", role: "status", "aria-live": "polite" });
  const training = trainingSection(send, focus);
  const table = vmTable(send, now, () => link.lost);
  const beside = workSection(send, "Other runs of this cluster");
  const work = workSections(send);
  /** By kind of work. */
  const sections = Object.fromEntries(Object.entries(SECTIONS).map(([kind, section]) => [kind, section(send)]));
  const cost = costSection();
  const events = eventSection();
  const top = element("div", { class: "transient-body" }, ...(focus ? [training] : [element("div", {}, training, beside, work), cost]));
  const panel = element("section", { class: `transient-panel${focus ? " transient-focus" : ""}`, role: "region" },
    element("header", { class: "transient-head" }, name, phase, about, element("span", { class: "transient-actions" }, ...training.actions, resize.open, remove)),
    lost, whole.node, resize.form, resize.question, trouble, proposal, notice, waiting, top, ...(focus ? [] : [...Object.values(sections), table]), events, live);

  const due = new Set();
  let announced = { text: "", at: -Infinity };
  function announce() {
    const text = view.events?.[0]?.text ?? "";
    if (text === announced.text || performance.now() - announced.at < 1000 * ANNOUNCE_SECONDS) return;
    announced = { text, at: performance.now() };
    setText(live, text);
  }

  function draw() {
    if (!view?.at) return;
    setAttribute(panel, "aria-label", focus ? `Run ${view.focus} on ${view.name}` : `Cluster ${view.name}`);
    setText(name, focus ? view.focus : view.name);
    const run = view.training?.phase ?? "declared";
    setText(phase, focus ? view.training?.phase_words ?? "starting" : view.phase_words);
    setAttribute(phase, "data-tone", TONES[focus ? run : view.phase] ?? "quiet");
    setText(about, view.about);
    setText(trouble, view.trouble);
    trouble.hidden = !view.trouble;
    proposal.update(view.proposal);
    setText(notice, view.notice?.text ?? "");
    setAttribute(notice, "data-tone", view.notice?.tone ?? "quiet");
    setAttribute(notice, "role", view.notice?.tone === "bad" ? "alert" : "status");
    notice.hidden = !view.notice?.text;
    remove.hidden = focus || view.over;
    remove.disable(view.phase === "deleting");
    whole.reads(view.version);
    whole.part("workers", () => resize.update(view));
    whole.part("training", () => training.update(view.training, view.vms, !due.has("curves")));
    whole.part("other runs", () => beside.update(view.beside ?? []));
    whole.part("work", () => work.update(view.work ?? []));
    if (!focus) whole.part("VMs", () => table.update(view, curves, model.get("speeds") ?? []));
    if (view.notice?.tone === "bad" && !link.asking) table.refused();
    top.classList.toggle("transient-alone", training.hidden);
    whole.part("events", () => { events.update(view.events, view.at); announce(); });
    connected(!link.lost || view.over);
    tick();
  }

  /** Show that the link is lost, and disable the buttons: requests over a lost link would be swallowed. */
  function connected(yes) {
    if (!yes) setText(phase, `${phase.textContent}, last seen ${when(view.at, Date.now() / 1000)}`);
    if (!yes) setAttribute(phase, "data-tone", "quiet");
    panel.classList.toggle("transient-lost", !yes);
    lost.hidden = yes;
    setText(lostWords, `${LOST}, and what it shows may be old. ${view.name} continues without it`
      + `${view.emulated ? "" : ` and costs ${money(view.cost?.hourly)} per hour`}. To see it again: `);
    setText(attach, `%transient_cluster attach ${view.name}`);
    hush(panel, !yes);
  }

  function tick() {
    if (!view?.at) return;
    if (!focus) whole.part("VMs", () => table.tick(), true);
    whole.part("cost", () => cost.update(view, elapsed()));
    link.check();
    waiting.hidden = !link.waiting || link.lost || view.over;
    whole.part("events", announce, true);
    whole.part("training", () => training.tick(), true);
  }

  /** Sections of kinds of work are sent by themselves, and less often than the rest. */
  function sectioned() {
    const found = focus ? {} : model.get("sections") ?? {};
    for (const [kind, section] of Object.entries(sections)) {
      whole.part(kind, () => section.update(found[kind] ?? []));
      hush(section, link.lost && !view?.over);
    }
  }

  const pace = pacemaker(send);
  let frame = 0;
  function draws() {
    frame = 0;
    const began = performance.now();
    if (due.has("curves")) whole.part("curves", () => { curves = grown(model.get("curves") ?? {}, model.get("tail") ?? {}); });
    draw();
    if (due.has("curves")) whole.part("curves", () => training.draw(curves), true);
    if (due.has("sections")) sectioned();
    due.clear();
    panel.getBoundingClientRect();  // has the page lay it out now, so that this time is counted too
    pace.drew((performance.now() - began) / 1000);
  }
  function news(what) {
    due.add(what);
    frame ||= requestAnimationFrame(draws);
  }
  const onView = () => { view = model.get("view"); received = performance.now(); link.receive(view); news("view"); };
  let missed = 0;
  function onCurves() {
    const [base, tail] = [model.get("curves") ?? {}, model.get("tail") ?? {}];
    if (lacks(base, tail) && tail.base !== missed) {
      missed = tail.base;
      send({ do: "resync" });
    }
    news("curves");
  }
  const onSections = () => news("sections");
  const onSpeeds = () => news("view");
  const onLog = () => training.log(model.get("log"));
  model.on("change:view", onView);
  model.on("change:curves", onCurves);
  model.on("change:tail", onCurves);
  model.on("change:sections", onSections);
  model.on("change:speeds", onSpeeds);
  model.on("change:log", onLog);
  const timer = setInterval(tick, 1000);
  el.append(panel);
  draw();
  whole.part("curves", () => training.draw(curves));
  sectioned();
  send({ do: "resync" });
  return () => {
    clearInterval(timer);
    cancelAnimationFrame(frame);
    link.end();
    pace.end();
    training.end();
    for (const section of Object.values(sections)) section.end();
    model.off("change:view", onView);
    model.off("change:curves", onCurves);
    model.off("change:tail", onCurves);
    model.off("change:sections", onSections);
    model.off("change:speeds", onSpeeds);
    model.off("change:log", onLog);
  };
}

/** Request a snapshot when the page creates the panel: the kernel sends only to panels that are open. */
function initialize(given) {
  given.model.send({ do: "resync" });
  return mount(given, render);
}

export default { initialize, render };
