/* The version of the snapshots that this page reads (transient_magics/panels/snapshot/contract.py), and the message that
 * replaces a section which cannot be drawn.
 */

import { element, setText } from "./page.js";

export const VERSION = 1;

/** Draws part by part: one that cannot be drawn is named, and takes none of the others with it. */
export function boundary() {
  const words = element("span");
  const node = element("div", { class: "transient-notice", "data-tone": "bad", role: "alert", hidden: "" }, words);
  /** @type {Map<string, string>} */
  const faults = new Map();
  let version = VERSION;
  function say() {
    const said = [];
    if (version !== VERSION) said.push(`This page draws version ${VERSION} of the panels, its kernel sends version ${version}: save the notebook and reload the page.`);
    if (faults.size) said.push(`What the kernel sent could not be drawn in full: ${[...faults].map(([part, why]) => `${part} (${why})`).join(", ")}.`);
    setText(words, said.join(" "));
    node.hidden = !said.length;
  }
  return {
    node,
    /** `again`: only what was drawn before is kept going, and what could not be stays named.
     * @param {string} part @param {() => void} draw @param {boolean} [again] */
    part(part, draw, again = false) {
      if (again && faults.has(part)) return;
      try {
        draw();
        faults.delete(part);
      } catch (error) {
        if (!faults.has(part)) console.error(error);
        faults.set(part, error instanceof Error ? error.message : String(error));
      }
      say();
    },
    /** @param {unknown} sent */
    reads(sent) {
      version = Number(sent ?? 0);
      say();
    },
  };
}
