/* A panel hears its kernel also where its page was slow.
 *
 * anywidget keeps every message back until a panel's code is loaded, and waits two seconds for that. In a page that is busy
 * for longer (it opens a long notebook, or many panels at once) it gives the model up: the panel is drawn all the same, and
 * each message to it is dropped from then on, without a word. When the code runs there is nothing left to wait for.
 */

const NAMED = "transient-";
const NOTHING = { content: { data: {} } };

/** The model itself, of which anywidget shows a part only; the kernel names its panels' places after them. */
async function modelOf({ widget_manager: manager, get }) {
  try {
    return await manager.get_model(get("place").slice(NAMED.length));
  } catch {
    return undefined;  // a front end that keeps its models in another way
  }
}

/** Where anywidget has given up this model, let it handle its messages itself, as any widget does, and ask for what it missed. */
export async function hear(model) {
  const own = await modelOf(model);
  if (!own?.comm) return;
  try {
    await own._handle_comm_msg(NOTHING);
  } catch {
    const widget = Object.getPrototypeOf(Object.getPrototypeOf(own));
    own.comm.on_msg((message) => widget._handle_comm_msg.call(own, message));
    own.comm.send({ method: "request_state" });
  }
}
