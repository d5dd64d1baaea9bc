/* What all panels share: making elements, changing only what differs, figures, and buttons that ask first. */

export const TONES = {
  ready: "good", training: "good", running: "good", finished: "good",
  requested: "busy", booting: "busy", provisioning: "busy", declared: "busy", unknown: "busy",
  leaving: "warn", deleting: "warn", refused: "warn",
  revoked: "bad", failed: "bad",
};

/** An element: tag, attributes (text: its text, onclick: ...), children. */
export function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "g"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Make the children of `parent` one per item, in order: kept by key, made where missing, removed where gone. */
export function keyed(parent, items, key, make) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let child = before.get(name);
    before.delete(name);
    if (!child) {
      child = make(item);
      child.dataset.key = name;
    }
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    child.update?.(item);
  });
  for (const child of before.values()) child.remove();
}

export function money(dollars) {
  const digits = dollars < 0.00005 ? 2 : dollars < 0.01 ? 4 : dollars < 1 ? 3 : 2;
  return "$" + dollars.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString("en-GB");
}

/** A button that asks before it acts: `label`, then `question` with yes and no in its place; without a question, at once. */
export function asking({ label, question, yes, no = "Keep", act, looks = "" }) {
  const first = element("button", { type: "button", class: looks, text: label, onclick: () => (question() ? toggle(true) : act()) });
  const words = element("span", { text: question() });
  const confirm = element("button", { type: "button", class: "transient-danger", text: yes, onclick: () => { act(); toggle(false); } });
  const keep = element("button", { type: "button", text: no, onclick: () => toggle(false) });
  const box = element("span", { class: "transient-actions", hidden: "" }, words, confirm, keep);
  box.addEventListener("keydown", (event) => { if (event.key === "Escape") toggle(false); });
  function toggle(asked) {
    setText(words, question());
    first.hidden = asked;
    box.hidden = !asked;
    (asked ? keep : first).focus();
  }
  const node = element("span", {}, first, box);
  node.disable = (disabled) => { first.disabled = disabled; confirm.disabled = disabled; };
  return node;
}

export function fact(name) {
  const value = element("span", { class: "transient-value" });
  const node = element("div", {}, element("span", { class: "transient-label", text: name }), value);
  node.set = (text) => setText(value, text);
  return node;
}
