/* What waits to be agreed to: a sentence, and a button that asks once. */

import { ASKS, disable, element, setText } from "./page.js";

const AGAIN_SECONDS = 10;

/** A box with `update(proposal)`; `title` says what the button does, `agree` is called with the proposal's number. */
export function proposalBox(title, agree) {
  /** @type {import("./snapshot").Proposal | null} */
  let shown = null;
  const words = element("span");
  const button = element("button", { type: "button", text: "Agree", ...ASKS, title, onclick: () => {
    const asked = shown?.number;
    disable(button, true);
    agree(asked);
    setTimeout(() => { if (shown?.number === asked) disable(button, false); }, 1000 * AGAIN_SECONDS);  // it was refused
  } });
  const node = element("div", { class: "transient-notice transient-tools", "data-tone": "warn", role: "group", "aria-label": "Proposal", hidden: "" }, words, button);
  /** @param {import("./snapshot").Proposal | null | undefined} proposal */
  node.update = (proposal) => {
    if (proposal?.number !== shown?.number) disable(button, false);
    shown = proposal ?? null;
    setText(words, shown?.text ?? "");
    node.hidden = !shown;
  };
  return node;
}
