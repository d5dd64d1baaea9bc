/* What becomes of the messages to a panel that anywidget has given up. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { hear } from "../hearing.js";

/** ipywidgets' model, anywidget's around it, and the page's end of their channel. */
function anywidget(ready) {
  class Widget {
    constructor() {
      this.heard = [];
      this.sent = [];
      this.comm = { on_msg: (act) => { this.handle = act; }, send: (message) => this.sent.push(message) };
      this.handle = (message) => this._handle_comm_msg(message);
    }
    async _handle_comm_msg(message) { if (message.content.data.method) this.heard.push(message.content.data.method); }
  }
  class AnyModel extends Widget {
    async _handle_comm_msg(message) { await ready; return super._handle_comm_msg(message); }
  }
  return new AnyModel();
}
const UPDATE = { content: { data: { method: "update" } } };

test("a model that anywidget has given up hears its kernel, and asks for what it missed", async () => {
  const given = Promise.reject(new Error("[anywidget] Failed to initialize model."));
  const own = anywidget(given);
  await assert.rejects(own.handle(UPDATE));
  const manager = { get_model: async (id) => (id === "abc" ? own : undefined) };
  await hear({ widget_manager: manager, get: () => "transient-abc" });
  await own.handle(UPDATE);
  assert.deepEqual(own.heard, ["update"]);
  assert.deepEqual(own.sent, [{ method: "request_state" }]);
});

test("a model whose code came in time is left as it is, as are those of other front ends", async () => {
  const own = anywidget(Promise.resolve());
  const before = own.handle;
  await hear({ widget_manager: { get_model: async () => own }, get: () => "transient-abc" });
  assert.deepEqual([own.handle, own.heard, own.sent], [before, [], []]);
  await hear({ widget_manager: { get_model: async () => { throw new Error("widget model not found"); } }, get: () => "transient-abc" });
  await hear({ widget_manager: undefined, get: () => "transient-abc" });
});
