/* Lines of work on a cluster: runs beside the one whose curves are shown, and kinds of work without a section. Each has its Stop button. */

import { TONES, asking, element, keyed, setAttribute, setText } from "./page.js";

/** @param {(message: object) => void} send @param {string} label of the whole list */
export function workSection(send, label) {
  const list = element("ul", { class: "transient-beside", "aria-label": label });
  list.hidden = true;
  /** @param {import("./snapshot").WorkLine[]} lines */
  list.update = (lines) => {
    list.hidden = !lines.length;
    keyed(list, lines, (line) => line.name, (first) => line(send, first.name));
  };
  return list;
}

/** The lists of kinds of work without a section of their own. @param {(message: object) => void} send */
export function workSections(send) {
  const node = element("div");
  /** @param {import("./snapshot").WorkGroup[]} groups */
  node.update = (groups) => keyed(node, groups, (group) => group.kind, (first) => {
    const list = workSection(send, first.title);
    const lines = list.update;
    list.update = (group) => lines(group.lines);
    return list;
  });
  return node;
}

function line(send, name) {
  const state = element("span", { class: "transient-state" }, element("span", { class: "transient-run-name", text: name }));
  const words = element("span", { class: "transient-run-words" });
  const stop = asking({ label: "Stop", yes: "Stop", looks: "transient-quiet", question: () => `Stop ${name}?`, act: () => send({ do: "stop", name }) });
  const fill = element("div");
  const bar = element("div", { class: "transient-bar", role: "progressbar", "aria-label": `Training steps of ${name}`, "aria-valuemin": 0 }, fill);
  const node = element("li", {}, element("div", { class: "transient-run-head" }, state, words, stop), bar);
  node.update = (work) => {
    setAttribute(state, "data-tone", TONES[work.phase] ?? "quiet");
    setText(words, work.words);
    stop.hidden = !work.stoppable;
    bar.hidden = !work.steps;
    setAttribute(bar, "aria-valuemax", work.steps);
    setAttribute(bar, "aria-valuenow", Math.min(work.step, work.steps));
    fill.style.width = `${work.steps ? Math.min(100, (100 * work.step) / work.steps) : 0}%`;
  };
  return node;
}
