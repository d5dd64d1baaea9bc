/* Scales, lives in words, costs that grow, and lists that keep their elements. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { later } from "../feed.js";
import { money } from "../figures.js";
import { logged, partWords, speedAt, speedsOf } from "../lanes.js";
import { keyed } from "../page.js";
import { scale } from "../scale.js";

test("a scale is even where values are close, and by their logarithm where they are not", () => {
  assert.equal(scale([1, 3], 0, 100)(2), 50);
  const bent = scale([1, 100], 0, 100);
  assert.ok(Math.abs(bent(10) - 50) < 8, "the middle of their logarithms");
  assert.equal(bent.shows(1000), false);
});

test("a phase of a VM has its length by the kernel's clock", () => {
  const said = partWords(["worker-1", "ready", 60, 0], 4.256, 180);
  assert.match(said, /^worker-1 running from \d\d:\d\d:00 until now \(2 min\), 4.26 steps\/s$/);
  assert.match(partWords(["worker-1", "revoked", 60, 60], null, 180), /^worker-1 was revoked at \d\d:\d\d:00$/);
});

test("a run's log menu names the VMs that may have a log of it, and none that trains in another run", () => {
  const vms = [["ps-0", "ready"], ["worker-1", "ready", "run-1"], ["worker-2", "ready", "run-2"], ["worker-3", "revoked"], ["worker-4", "requested"], ["worker-5", "ready", "run-2", "run-1"]];
  const lanes = vms.map(([name, state, ...runs]) => ({ name, state, runs }));
  assert.deepEqual(logged(/** @type {import("../snapshot").Lane[]} */ (lanes), "run-1"), ["ps-0", "worker-1", "worker-3", "worker-5"]);
  const after = logged(/** @type {import("../snapshot").Lane[]} */ (lanes), "run-1", ["worker-1", "worker-2"]);
  assert.deepEqual(after, ["ps-0", "worker-1", "worker-2", "worker-3", "worker-5"], "worker-2 trained in it before");
});

test("a VM is as fast as the trials on it together, while both train, and one after the other as each of them", () => {
  const of = (run, time, speeds) => ({ run, width: 2, time, workers: { "worker-0": speeds } });
  const lane = (...runs) => speedsOf({}, runs).get("worker-0");
  const both = lane(of("search-0", [0, 2, 4, 6], [4, 4, null, 4]), of("search-1", [3, 5, 7], [1, 3, 3]));
  assert.deepEqual(both?.points, [[0, 4], [2, 4], [3, 5], [5, 7], [6, 7], [7, 3]]);
  const after = lane(of("search-0", [0, 2], [4, 4]), of("search-1", [3, 5], [1, 3]));
  assert.deepEqual(after?.points, [[0, 4], [2, 4], [3, 1], [5, 3]]);
  const apart = lane(of("search-0", [0, 2, 60, 62], [4, 4, 2, 4]));
  assert.deepEqual([1, 30, 61, 63].map((at) => apart && speedAt(apart, at)), [4, null, 3, null]);
  const seldom = lane(of("search-0", [0, 20, 40], [4, 2, 4]));
  assert.equal(seldom && speedAt(seldom, 30), 3, "measured each 20 seconds, over 2 each");
});

test("a cost grows by the hour, and is unknown if one of its parts is", () => {
  assert.equal(later(1, 2, 0.5), 2);
  assert.equal(money(later(1, null, 0.5)), "-");
});

test("a list keeps what it has by its key, and two that say the same are two", () => {
  const parent = { children: [], insertBefore(child, before) {
    this.children = this.children.filter((each) => each !== child);
    this.children.splice(before ? this.children.indexOf(before) : this.children.length, 0, child);
  } };
  const make = (item) => ({ dataset: {}, item, remove() { parent.children = parent.children.filter((each) => each !== this); } });
  const show = (...items) => {
    keyed(parent, items, (item) => item, make);
    return parent.children.map((child) => child.item);
  };
  assert.deepEqual(show("a", "b", "b"), ["a", "b", "b"]);
  const [, first] = parent.children;
  assert.deepEqual(show("b", "c"), ["b", "c"]);
  assert.equal(parent.children[0], first, "it is moved and not created again");
});
