/* What a cluster costs, and what happened to it. */

import { money, when } from "./figures.js";
import { OWN_KEYS, choice, element, fact, keyed, setAttribute, setText } from "./page.js";

const STARTING = ["unknown", "provisioning"];

/** What has cost `total` costs some hours later; NaN where that is not known.
 * @param {import("./snapshot").Figure} total @param {import("./snapshot").Figure} hourly @param {number} hours */
export function later(total, hourly, hours) {
  return total === null || hourly === null ? NaN : total + hourly * hours;
}

/** `update(view, elapsed)`: the cost meter advances by the seconds that have elapsed since the snapshot. */
export function costSection() {
  const total = fact("cluster so far");
  const rate = fact("cluster now");
  const onDemand = fact("on demand so far");
  const saved = fact("saved against Google's on-demand price");
  const fill = element("div");
  const meter = element("div", { class: "transient-bar transient-meter", role: "meter", "aria-label": "Used of the limits", "aria-valuemin": 0, "aria-valuemax": 100 }, fill);
  const limit = element("div", { class: "transient-foot" });
  const lines = element("div", { class: "transient-foot" });
  const transfer = element("div", { class: "transient-foot" });
  const ending = element("div", { class: "transient-foot" });
  const foot = element("div", { class: "transient-foot" });
  const node = element("section", { "aria-label": "Cost" },
    element("div", { class: "transient-facts" }, total, rate, onDemand, saved), lines, meter, limit, transfer, foot, ending);
  /** @param {import("./snapshot").View} view @param {number} elapsed */
  node.update = (view, elapsed) => {
    const cost = view.cost;
    const hours = view.over ? 0 : elapsed * (cost.pace || 0) / 3600;
    const now = later(cost.total, cost.hourly, hours);
    const full = later(cost.on_demand, cost.on_demand_hourly, hours);
    total.set(money(now), view.over ? "cluster in all" : "cluster so far");
    rate.set(cost.hourly_words, STARTING.includes(view.phase) ? "cluster" : "cluster now");
    onDemand.set(money(full));
    rate.hidden = view.over;
    setText(lines, cost.lines_words);
    meter.hidden = limit.hidden = view.over || !cost.limit_words;
    const used = Math.round(100 * (cost.limit_used || 0));
    setAttribute(meter, "aria-valuenow", used);
    setAttribute(meter, "data-tone", used > 90 ? "bad" : used > 70 ? "warn" : "quiet");
    fill.style.width = `${used}%`;
    setText(limit, `${used < 1 ? "Less than 1" : used}% of the limit of ${cost.limit_words}, which ends the cluster.`);
    setText(transfer, cost.transfer_words);
    setText(ending, view.ending);
    saved.hidden = !full;
    saved.set(full > 0 && now < full * 0.995 ? `${Math.round(100 * (1 - now / full))}%` : "-");
    const notes = [view.emulated ? "Emulated, nothing is billed." : "", cost.source ? `Prices: ${cost.source}.` : ""];
    setText(foot, notes.filter(Boolean).join(" "));
  };
  return node;
}

const FAMILIES = [["", "all events"], ["VMs", "VMs"], ["training", "training"], ["trouble", "trouble"]];

/** The latest events, first the newest, of a kind or with a word in them. */
export function eventSection() {
  /** @type {import("./snapshot").EventLine[]} */
  let events = [];
  let family = "";
  let now = 0;
  const kind = choice("Which events", FAMILIES, (value) => { family = value; fill(); });
  const words = element("input", { type: "search", placeholder: "filter", "aria-label": "Only events with these words", oninput: () => fill(), ...OWN_KEYS });
  const list = element("ol", { class: "transient-events", tabindex: "0", "aria-label": "Latest events", ...OWN_KEYS });
  const nothing = element("div", { class: "transient-foot", text: "No recent event matches." });
  const node = element("section", { "aria-label": "Events" },
    element("div", { class: "transient-tools" }, element("span", { class: "transient-label", text: "latest events" }), element("span", { class: "transient-gap" }), kind, words), list, nothing);
  function fill() {
    const sought = words.value.trim().toLowerCase();
    const chosen = events.filter((event) => (!family || event.family === family || (family === "trouble" && ["warn", "bad"].includes(event.tone)))
      && event.text.toLowerCase().includes(sought));
    nothing.hidden = chosen.length > 0;
    keyed(list, chosen, (event) => `${event.at} ${event.text}`, (event) => {
      const time = element("time", Number.isFinite(event.at) ? { datetime: new Date(event.at * 1000).toISOString() } : {});
      const item = element("li", { "data-tone": event.tone }, time, element("span", { text: event.text }));
      item.update = () => setText(time, when(event.at, now));
      return item;
    });
  }
  node.update = (next, at) => {
    [events, now] = [next, at];
    node.hidden = !events.length;
    fill();
  };
  return node;
}
