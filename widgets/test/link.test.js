/* A kernel that falls silent is asked, unless there is nothing more to hear. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { kernelLink } from "../link.js";

/** A model as anywidget shows it, of a kernel whose page knows these values. */
function model(values) {
  const sent = [];
  return { sent, get: (name) => values[name], on() {}, off() {}, send: (message) => sent.push(message), widget_manager: {} };
}

/** The seconds of the page's clock, which goes as the test says. */
function clock(t) {
  const time = { now: 0 };
  t.mock.method(performance, "now", () => 1000 * time.now);
  return time;
}

test("a kernel that falls silent before the cluster is over is asked, less and less often", (t) => {
  const time = clock(t);
  const page = model({ view: { over: false } });
  const link = kernelLink(page, () => {});
  const asked = [];
  for (; time.now <= 100; time.now += 1) {
    link.check();
    if (page.sent.splice(0).some((message) => message.do === "resync")) asked.push(time.now);
  }
  assert.deepEqual(asked, [11, 21, 41, 81]);
  link.receive({ over: false });
  time.now += 11;
  link.check();
  assert.equal(page.sent.length, 1, "a message restarts the timeout");
});

test("of a cluster that is over, and by a panel without a heartbeat, nothing is asked", (t) => {
  const time = clock(t);
  const pages = [model({ view: { over: true } }), model({ view: { over: false } })];
  const links = [kernelLink(pages[0], () => {}), kernelLink(pages[1], () => {}, { beats: false })];
  time.now = 1000;
  for (const link of links) link.check();
  assert.deepEqual(pages.map((page) => page.sent), [[], []]);
});
