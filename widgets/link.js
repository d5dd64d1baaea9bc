/* The state of the link to the kernel: a restarted or dead kernel receives no click.
 *
 * The link is lost immediately if the channel is closed or JupyterLab reports the end of the kernel. Otherwise it is lost
 * when the kernel sends nothing for longer than its heartbeat interval, or does not answer a click. Any message restores
 * it.
 *
 * The kernel also stops sending when the cluster is over. Its last message can be lost like any other, so a page that has
 * not received the end requests it.
 */

const SILENT_SECONDS = 20;
const ASK_SECONDS = 10;
const ANSWER_SECONDS = 10;
const ENDED = ["restarting", "autorestarting", "terminating", "dead"];
const WORDLESS = ["resync", "pace"];

export const LOST = "This panel is no longer connected";
/** The message of a panel that only its cell can create again. */
export const AGAIN = `${LOST}: run its cell again.`;

/** The link of one view; `changed` is called when it is lost or found again. `beats`: the kernel has a heartbeat there. */
export function kernelLink(model, changed, { beats = true } = {}) {
  const panel = crypto.randomUUID?.() ?? String(Math.random());
  let answeredAt = performance.now();
  let asked = null;
  let count = 0;
  let gone = false;
  let lost = false;
  let patience = ASK_SECONDS;
  const since = (moment) => (performance.now() - moment) / 1000;

  function check() {
    if (beats && !gone && since(answeredAt) > patience && !model.get("view")?.over) {
      patience *= 2;  // the questions to a kernel that is busy for long are answered all at once
      model.send({ do: "resync" });
    }
    const unanswered = asked !== null && since(asked.at) > ANSWER_SECONDS && answeredAt < asked.at;
    const now = gone || (beats && (since(answeredAt) > SILENT_SECONDS || unanswered));
    if (now === lost) return;
    lost = now;
    changed();
  }
  function end() {
    gone = true;
    check();
  }

  const session = model.widget_manager?.context?.sessionContext;
  const onStatus = (_, status) => { if (ENDED.includes(status)) end(); };
  session?.statusChanged?.connect(onStatus);
  session?.kernelChanged?.connect(end);
  for (const event of ["comm:close", "comm_live_update"]) model.on(event, end);

  return {
    get lost() { return lost; },
    /** Whether the last click is not taken up yet. */
    get asking() { return asked !== null; },
    /** Whether a click is not answered yet, though the kernel says other things: it is busy. */
    get waiting() { return asked !== null && since(asked.at) > ANSWER_SECONDS; },
    check,
    send(message) {
      if (WORDLESS.includes(message.do)) return model.send(message);
      asked = { name: `${panel} ${(count += 1)}`, at: performance.now() };
      return model.send({ ...message, asked: asked.name });
    },
    /** A snapshot has come. */
    receive(view) {
      answeredAt = performance.now();
      patience = ASK_SECONDS;
      gone = false;
      if (asked && view?.received === asked.name) asked = null;
      check();
    },
    end() {
      session?.statusChanged?.disconnect(onStatus);
      session?.kernelChanged?.disconnect(end);
      for (const event of ["comm:close", "comm_live_update"]) model.off(event, end);
    },
  };
}
