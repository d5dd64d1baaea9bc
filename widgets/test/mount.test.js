/* Panels that fail, before their pictures. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { mount } from "../mount.js";

const MODEL = { get: () => "transient-abc", on() {}, off() {} };

/** A page with one picture of a panel; `look` is what is called when it changes. */
function picture(t) {
  const page = { hosts: [], pictures: [{ closest: () => output }], look: () => {} };
  const output = { before(host) { page.hosts.push(host); } };
  const document = {
    body: {}, getElementsByClassName: () => page.pictures,
    createElement() {
      const host = { setAttribute() {}, append() {}, remove() { page.hosts = page.hosts.filter((each) => each !== host); } };
      return host;
    },
  };
  const observer = class { constructor(look) { page.look = look; } observe() {} disconnect() {} };
  Object.assign(globalThis, { document, MutationObserver: observer });
  t.after(() => { for (const name of ["document", "MutationObserver"]) delete globalThis[name]; });
  t.mock.method(console, "error", () => {});
  return page;
}

test("a panel that cannot be drawn leaves its picture, and is not retried forever", (t) => {
  const page = picture(t);
  let tried = 0;
  mount({ model: MODEL }, () => { tried += 1; throw new Error("no canvas"); });
  for (let change = 0; change < 3; change += 1) page.look();
  assert.deepEqual([tried, page.hosts], [1, []]);
});

test("a panel that fails at its end is gone all the same", (t) => {
  const page = picture(t);
  mount({ model: MODEL }, () => () => { throw new Error("no chart"); });
  assert.equal(page.hosts.length, 1);
  page.pictures.length = 0;
  assert.throws(() => page.look());
  assert.deepEqual(page.hosts, []);
});
