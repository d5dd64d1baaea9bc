/* The runs of a cluster beside the one whose curves are shown: those that train, and those that wait. */

import { TONES, element, keyed, setAttribute, setText } from "./page.js";

export function besideSection() {
  const list = element("ul", { class: "transient-beside", "aria-label": "Other runs of this cluster" });
  list.hidden = true;
  /** @param {import("./snapshot").Beside[]} runs */
  list.update = (runs) => {
    list.hidden = !runs.length;
    keyed(list, runs, (run) => run.name, (first) => {
      const state = element("span", { class: "transient-state" }, element("span", { class: "transient-run-name", text: first.name }));
      const words = element("span", { class: "transient-run-words" });
      const fill = element("div");
      const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": `Training steps of ${first.name}`, "aria-valuemin": 0 }, fill);
      const node = element("li", {}, element("div", { class: "transient-run-head" }, state, words), bar);
      node.update = (run) => {
        setAttribute(state, "data-tone", run.phase_words === "waiting" ? "quiet" : TONES[run.phase_words] ?? TONES[run.phase] ?? "quiet");
        setText(words, run.words);
        bar.hidden = run.phase === "declared";
        setAttribute(bar, "aria-valuemax", run.steps);
        setAttribute(bar, "aria-valuenow", Math.min(run.step, run.steps));
        fill.style.width = `${run.steps ? Math.min(100, (100 * run.step) / run.steps) : 0}%`;
      };
      return node;
    });
  };
  return list;
}
