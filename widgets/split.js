/* Where the time of a step goes: a stacked bar of each worker, all by one scale. */

import { element, keyed, setAttribute, setText } from "./page.js";

/** As panels/static/panel.py has them; each reads on light and dark. */
const COLOURS = { input: "#d98e04", pull: "#3f83c8", compute: "#2a9d5c", push: "#a05fc7", barrier: "#cf4436", rest: "#7d8186" };
const MEANINGS = {
  input: "waiting for its examples", pull: "waiting for the variables", compute: "computing", push: "until its gradients were applied",
  barrier: "waiting for other workers", rest: "between two steps",
};

/** The section of a run's bars. `focus`: with all parts in words. @param {boolean} focus */
export function splitSection(focus) {
  const about = element("span", { class: "transient-foot" });
  const key = element("div", { class: "transient-split-key transient-foot" });
  const list = element("ul", { class: "transient-split" });
  const node = element("section", { "aria-label": "Where a step's time goes" },
    element("div", { class: "transient-split-head" }, element("span", { class: "transient-label", text: "where a step's time goes" }), about), list, key);
  node.hidden = true;
  let longest = 0;
  /** @param {import("./snapshot").Split | null | undefined} split */
  node.update = (split) => {
    node.hidden = !split;
    if (!split) return;
    const { names, bars } = split;
    longest = Math.max(...bars.map((bar) => total(bar.parts)));
    setText(about, split.words + (split.more ? ` · and ${split.more} more` : ""));
    keyed(key, names.filter((_, at) => bars.some((bar) => bar.parts[at])), (name) => name, (name) =>
      element("span", { style: `--of: ${COLOURS[name]}`, text: name, title: MEANINGS[name] ?? "" }));
    keyed(list, bars, (bar) => bar.worker, (first) => {
      const parts = names.map((name) => element("i", { style: `background: ${COLOURS[name]}` }));
      const bar = element("div", { class: "transient-split-bar", role: "img" }, ...parts);
      const words = element("span", { class: "transient-split-words" });
      const item = element("li", {}, element("span", { class: "transient-split-name", text: first.worker }), bar, words);
      item.update = (now) => {
        const said = `${now.worker}: ${now.step} a step: ${now.words}`;
        setAttribute(bar, "aria-label", said);
        setAttribute(bar, "title", said);
        setText(words, focus ? `${now.step}: ${now.words}` : now.step);
        parts.forEach((part, at) => { part.style.width = `${longest ? (100 * (now.parts[at] ?? 0)) / longest : 0}%`; });
      };
      return item;
    });
  };
  return node;
}

/** @param {import("./snapshot").Figure[]} parts @returns {number} */
function total(parts) {
  return parts.reduce((/** @type {number} */ sum, part) => sum + (part ?? 0), 0);
}
