/* The declare panel: what is chosen goes to the kernel, which answers with the line that it stands for, its price and
 * its risk. Launched, the kernel puts the cluster's panel in its place.
 */

import { AGAIN, kernelLink } from "./link.js";
import { mount } from "./mount.js";
import { asking, element, fact, keyed, setText } from "./page.js";

const SETTLED_MS = 200;
const HEADS = ["VMs", "Machine", "Zone", "Rented", "Price"];

function labelled(label, control) {
  return element("label", { class: "transient-field" }, element("span", { class: "transient-label", text: label }), control);
}

function select(options, chosen, changed, label) {
  const node = element("select", { "aria-label": label, onchange: changed });
  node.fill = (items, value) => {
    node.replaceChildren(...items.map((item) => element("option", { value: item.name, text: item.label })));
    node.value = items.some((item) => item.name === value) ? value : items[0].name;
  };
  node.fill(options, chosen);
  return node;
}

function input(value, changed, attributes) {
  const node = element("input", { type: "text", spellcheck: "false", autocomplete: "off", oninput: changed, ...attributes });
  node.value = value ?? "";
  return node;
}

/** One row: a GPU, how many of it, where. */
function groupRow(menu, group, changed, remove) {
  const zones = (gpu) => [
    { name: "", label: "best zone" },
    ...(menu.gpus.find((each) => each.name === gpu)?.zones ?? []).map((name) => ({ name, label: name })),
  ];
  const zone = select(zones(group.gpu), group.zone, changed, "Zone");
  const gpu = select(menu.gpus, group.gpu, () => { zone.fill(zones(gpu.value), zone.value); changed(); }, "GPU");
  const count = input(group.count, changed, { type: "number", min: 1, max: 1000, "aria-label": "How many" });
  const drop = element("button", { type: "button", class: "transient-quiet", text: "Remove", "aria-label": "Remove this group", onclick: () => remove(node) });
  const node = element("div", { class: "transient-fields", role: "group", "aria-label": "Workers" },
    labelled("GPU", gpu), labelled("workers", count), labelled("zone", zone), drop);
  node.value = () => ({ gpu: gpu.value, count: count.value, zone: zone.value });
  node.only = (alone) => { drop.hidden = alone; };
  return node;
}

function render({ model, el }) {
  const menu = model.get("menu");
  const first = model.get("choices");
  let later = 0;
  let asked = 0;
  function changed() {
    asked += 1;  // until the kernel has answered this one, there is nothing to launch
    settled();
    clearTimeout(later);
    later = setTimeout(() => model.send({ do: "choose", choices: chosen(), asked }), SETTLED_MS);
  }
  function settled() {
    launch.disable(link.lost || Boolean(offer.error) || (offer.asked ?? 0) !== asked);
  }

  const groups = element("div", { class: "transient-groups" });
  function remove(row) {
    row.remove();
    settle();
    add.focus();
  }
  function insert(group) {
    groups.append(groupRow(menu, group, changed, remove));
  }
  function settle() {
    for (const row of groups.children) row.only(groups.children.length === 1);
    changed();
  }
  const add = element("button", { type: "button", text: "Add workers", onclick: () => {
    insert({ gpu: groups.lastElementChild.value().gpu, count: "1", zone: "" });
    settle();
    groups.lastElementChild.querySelector("select").focus();
  } });

  const model_ = select(menu.models, first.model, changed, "Workers are rented");
  const purpose = select(menu.purposes, first.purpose, changed, "It is for");
  const ps = input(first.ps ?? "1", changed, { type: "number", min: 1, max: 16 });
  const hours = input(first.hours, changed, { placeholder: "24h", size: 6 });
  const cost = input(first.cost, changed, { placeholder: "none", size: 6, inputmode: "decimal" });
  const project = input(first.project, changed, { placeholder: "none: emulated and free", size: 22 });
  const machine = input(first.machine, changed, { placeholder: "the usual one", size: 18 });
  const disk = input(first.disk, changed, { placeholder: "50GB", size: 9 });
  const zones = [{ name: "", label: "where most workers are" }, ...menu.zones.map((name) => ({ name, label: name }))];
  const serverZone = select(zones, first.ps_zone ?? "", changed, "Zone of the parameter servers");
  const servers = labelled("parameter servers", ps);
  const serversAt = labelled("parameter servers' zone", serverZone);
  const trains = () => purpose.value !== "jobs";  // else there is nothing to serve
  const options = element("div", { class: "transient-fields", role: "group", "aria-label": "Options" },
    labelled("for", purpose), labelled("rented", model_), servers, labelled("ends after", hours),
    labelled("at most, in dollars", cost), labelled("Google Cloud project", project));
  const machines = element("details", { class: "transient-more" }, element("summary", { text: "Machines and disks" }),
    element("div", { class: "transient-fields", role: "group", "aria-label": "Machines and disks" },
      labelled("workers' machine type", machine), labelled("boot disks", disk), serversAt));
  machines.open = Boolean(first.machine || first.disk || first.ps_zone);
  function chosen() {
    return {
      groups: [...groups.children].map((row) => row.value()),
      purpose: purpose.value, model: model_.value, ps: trains() ? ps.value : "", hours: hours.value, cost: cost.value, project: project.value,
      machine: machine.value, disk: disk.value, ps_zone: trains() ? serverZone.value : "",
    };
  }

  let offer = model.get("offer");
  const link = kernelLink(model, () => redraw(), { beats: false });
  const line = element("code", { class: "transient-line" });
  const copy = element("button", { type: "button", text: "Copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(offer.line);
      setText(said, "Copied.");
    } catch {
      getSelection()?.selectAllChildren(line);
      setText(said, "Marked: copy it with the keyboard.");
    }
  } });
  const launch = asking({
    label: "Launch", yes: "Launch", no: "Not yet", looks: "transient-primary",
    question: () => (offer.billed ? `Rent ${offer.vms} for ${offer.facts[0][1]} per hour?` : ""),
    act: () => {
      launch.disable(true);
      model.send({ do: "launch", choices: chosen(), line: offer.line, asked });
    },
  });
  const said = element("span", { class: "transient-about", role: "status", "aria-live": "polite" });
  const wrong = element("div", { class: "transient-trouble", "data-tone": "bad", role: "alert" });
  const facts = element("div", { class: "transient-facts" });
  const body = element("tbody");
  const table = element("table", { class: "transient-vms transient-offer", "aria-label": "What would be created" },
    element("thead", {}, element("tr", {}, ...HEADS.map((text) => element("th", { scope: "col", text })))), body);
  const notes = element("div", { class: "transient-foot" });
  const panel = element("section", { class: "transient-panel", role: "region", "aria-label": "Declare a cluster" },
    element("header", { class: "transient-head" }, element("span", { class: "transient-name", text: "A cluster of transient GPU servers" })),
    groups, element("div", { class: "transient-fields" }, add), options, machines,
    element("div", { class: "transient-line-row" }, line, copy, launch, said),
    wrong, element("div", { class: "transient-body" }, element("div", { class: "transient-column" }, table), element("div", { class: "transient-column" }, facts, notes)));

  function draw() {
    offer = model.get("offer");
    setText(line, offer.line);
    setText(wrong, link.lost ? AGAIN : offer.error);
    wrong.hidden = !wrong.textContent;
    settled();
    setText(said, "");
    if (offer.error) return;  // what was offered last stays in sight, but greyed
    keyed(facts, offer.facts, (pair) => pair[0], (pair) => {
      const made = fact(pair[0]);
      made.update = (now) => made.set(now[1]);
      return made;
    });
    body.replaceChildren(...offer.rows.map((row) => element("tr", {}, ...row.map((text) => element("td", { text })))));
    notes.replaceChildren(...offer.notes.map((text) => element("div", { text })));
  }
  const redraw = () => { draw(); servers.hidden = serversAt.hidden = !trains(); panel.classList.toggle("transient-wrong", Boolean(offer.error)); };

  for (const group of first.groups) insert(group);
  for (const row of groups.children) row.only(groups.children.length === 1);
  model.on("change:offer", redraw);
  el.append(panel);
  redraw();
  return () => {
    clearTimeout(later);
    link.end();
    model.off("change:offer", redraw);
  };
}

export default { initialize: (given) => mount(given, render), render };
