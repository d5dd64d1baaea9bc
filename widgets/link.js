/* Whether anybody still listens to this panel: a kernel that was restarted or has died hears no click.
 *
 * It is lost at once where the page is told (the channel was closed, JupyterLab says what became of the kernel), else
 * when it stays silent longer than its heartbeat allows, or does not answer a click. Whatever it says revives it.
 *
 * The kernel falls silent too when the cluster is over. Its last words may be lost as any others, so who has not heard
 * that it is over asks for them.
 */

const SILENT_SECONDS = 20;
const ASK_SECONDS = 10;
const ANSWER_SECONDS = 10;
const ENDED = ["restarting", "autorestarting", "terminating", "dead"];
const WORDLESS = ["resync", "pace"];

export const LOST = "This panel is no longer connected";
/** What a panel says of itself that its cell makes anew. */
export const AGAIN = `${LOST}: run its cell again.`;

/** The link of one view; `changed` is called when it is lost or found again. `beats`: the kernel has a heartbeat there. */
export function kernelLink(model, changed, { beats = true } = {}) {
  const panel = crypto.randomUUID?.() ?? String(Math.random());
  let heard = performance.now();
  let asked = null;
  let count = 0;
  let gone = false;
  let lost = false;
  let patience = ASK_SECONDS;
  const since = (moment) => (performance.now() - moment) / 1000;

  function look() {
    if (beats && !gone && since(heard) > patience && !model.get("view")?.over) {
      patience *= 2;  // the questions to a kernel that is busy for long are answered all at once
      model.send({ do: "resync" });
    }
    const unheard = asked !== null && since(asked.at) > ANSWER_SECONDS && heard < asked.at;
    const now = gone || (beats && (since(heard) > SILENT_SECONDS || unheard));
    if (now === lost) return;
    lost = now;
    changed();
  }
  function end() {
    gone = true;
    look();
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
    look,
    send(message) {
      if (WORDLESS.includes(message.do)) return model.send(message);
      asked = { name: `${panel} ${(count += 1)}`, at: performance.now() };
      return model.send({ ...message, asked: asked.name });
    },
    /** A snapshot has come. */
    hears(view) {
      heard = performance.now();
      patience = ASK_SECONDS;
      gone = false;
      if (asked && view?.heard === asked.name) asked = null;
      look();
    },
    end() {
      session?.statusChanged?.disconnect(onStatus);
      session?.kernelChanged?.disconnect(end);
      for (const event of ["comm:close", "comm_live_update"]) model.off(event, end);
    },
  };
}
