/* The jobs of a cluster, or its Dask clusters: those that run, those that wait, and the latest one. */

import { TONES, element, keyed, setAttribute, setText } from "./page.js";

/** @param {string} label what they are */
export function jobSection(label) {
  const list = element("ul", { class: "transient-beside", "aria-label": label });
  list.hidden = true;
  /** @param {import("./snapshot").JobLine[]} jobs */
  list.update = (jobs) => {
    list.hidden = !jobs.length;
    keyed(list, jobs, (job) => job.name, (first) => {
      const state = element("span", { class: "transient-state" }, element("span", { class: "transient-run-name", text: first.name }));
      const words = element("span", { class: "transient-run-words" });
      const node = element("li", {}, element("div", { class: "transient-run-head" }, state, words));
      node.update = (job) => {
        setAttribute(state, "data-tone", TONES[job.phase] ?? "quiet");
        setText(words, job.words);
      };
      return node;
    });
  };
  return list;
}
