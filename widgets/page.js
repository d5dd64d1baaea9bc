/* What all panels share: making elements, changing only what differs, colours, and buttons that ask first.
 *
 * Whatever comes from the kernel is set as text or as an attribute that holds text, never as markup.
 */

export const TONES = {
  ready: "good", deflated: "good", training: "good", running: "good", finished: "good",
  requested: "busy", booting: "busy", stopping: "busy", stopped: "busy", provisioning: "busy", declared: "busy", starting: "busy", unknown: "busy",
  evaluating: "good", leaving: "warn", deleting: "warn", refused: "warn",
  revoked: "bad", failed: "bad",
};

/** An element: tag, attributes (text: its text, onclick: ...), children; it may get methods of its own.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {(Node | string)[]} children @returns {any} */
export function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "g", "title", "circle", "text"].includes(tag);
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
  const many = new Map();
  items.forEach((item, index) => {
    const alike = many.get(key(item)) ?? 0;  // two that say the same are two
    many.set(key(item), alike + 1);
    const name = alike ? `${key(item)} #${alike}` : String(key(item));
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

/** A part for each item by its name: `update(items)`; parts have an `end()` for when theirs is gone. */
export function sectionList(looks, make) {
  const node = element("div", { class: looks, hidden: "" });
  node.update = (items) => {
    node.hidden = !items.length;
    const gone = [...node.children].filter((child) => !items.some((item) => item.name === child.dataset.key));
    for (const child of gone) child.end();
    keyed(node, items, (item) => item.name, make);
  };
  node.end = () => { for (const child of node.children) child.end(); };
  return node;
}

/** Where keys mean something of our own, the notebook must not take them for its shortcuts (0 0 restarts the kernel). */
export const OWN_KEYS = { "data-lm-suppress-shortcuts": "true" };

/** The mark of controls that send requests to the kernel; `hush` disables them while the link is lost. */
export const ASKS = { "data-asks": "" };

/** Disable the controls in `parent` while `hushed`. Controls that are disabled for another reason stay disabled. */
export function hush(parent, hushed) {
  parent.toggleAttribute("data-hushed", hushed);
  for (const node of parent.querySelectorAll("[data-asks]")) node.disabled = hushed || "disabled" in node.dataset;
}

/** Disable a control for a reason of its own. */
export function disable(node, disabled) {
  node.toggleAttribute("data-disabled", disabled);
  node.disabled = disabled || node.closest("[data-hushed]") !== null;
}

/** A colour of the panel's style sheet as it is now, for canvases: colour(node, "busy"). */
export function colour(node, name) {
  return getComputedStyle(node).getPropertyValue(`--${name}`).trim() || "gray";
}

/** Call `changed` whenever the page's theme is another; returns what ends that. */
export function onTheme(changed) {
  let later = 0;
  const observer = new MutationObserver(() => { clearTimeout(later); later = setTimeout(changed, 50); });
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "class"] });
  return () => { observer.disconnect(); clearTimeout(later); };
}

/** Have the reader keep `content` (a string or a Blob) as a file. */
export function download(name, content) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: "text/csv" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** A choice among a few, for narrow places: options are [value, label]. */
export function choice(label, options, changed) {
  const node = element("select", { "aria-label": label, onchange: () => changed(node.value) },
    ...options.map(([value, text]) => element("option", { value, text })));
  return node;
}

/** A button that asks before it acts: `label`, then `question` with yes and no in its place; without a question, at once. */
export function asking({ label, question, yes, no = "Keep", act, looks = "" }) {
  const first = element("button", { type: "button", class: looks, text: label, ...ASKS, onclick: () => (question() ? toggle(true) : act()) });
  const words = element("span", { text: question() });
  const confirm = element("button", { type: "button", class: "transient-danger", text: yes, ...ASKS, onclick: () => { act(); toggle(false); } });
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
  node.disable = (disabled) => { for (const button of [first, confirm]) disable(button, disabled); };
  return node;
}

export function fact(name) {
  const value = element("span", { class: "transient-value" });
  const label = element("span", { class: "transient-label", text: name });
  const node = element("div", {}, label, value);
  node.set = (text, now = name) => { setText(value, text); setText(label, now); };
  return node;
}
