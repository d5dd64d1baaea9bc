/* A panel that replaces its static picture as long as the panel's model lives in this page.
 *
 * JupyterLab stores only the picture of a panel, as HTML: a stored view of a widget would show an error line when the
 * notebook is opened without its kernel, and hide the picture. The model stores the class of the picture in `place`. As
 * soon as the page has the model (a cell ran, or the page was reloaded and the kernel still runs), the panel is drawn
 * before each of its pictures, and panel.css hides these. A front end that shows the model as a widget has no picture in
 * the page, and nothing is drawn here.
 */

import { hear } from "./hearing.js";
import { element } from "./page.js";

const OUTPUT = ".jp-OutputArea-output";

/** Update the stored picture in the notebook: after a reload the page finds no display by its id, so the kernel cannot. */
function store({ widget_manager: manager }, place, picture) {
  const cells = manager?.context?.model?.cells;
  for (let index = 0; index < (cells?.length ?? 0); index += 1) {
    const { outputs } = cells.get(index);
    for (let number = 0; number < (outputs?.length ?? 0); number += 1) {
      const output = outputs.get(number);
      const html = [output.data?.["text/html"] ?? ""].flat().join("");
      if (html.includes(place) && html !== picture["text/html"]) output.setData({ data: { ...output.data, ...picture } });
    }
  }
}

/** What to do with a model that has come to be: show `render` in front of its pictures. Returns what ends that. */
export function mount({ model, signal }, render) {
  const place = model.get("place");
  if (!place) return undefined;
  hear(model);
  const pictures = document.getElementsByClassName(place);
  const shown = new Map();

  function look() {
    const outputs = new Set([...pictures].map((picture) => picture.closest(OUTPUT)).filter(Boolean));
    for (const output of shown.keys()) if (!outputs.has(output)) hide(output);
    for (const output of outputs) if (!shown.has(output)) show(output);
  }
  function show(output) {
    const host = element("div", { class: "transient-host" });
    const panel = { host, end: undefined };
    shown.set(output, panel);
    output.before(host);
    try {
      panel.end = render({ model, el: host });
    } catch (error) {
      host.remove();  // the picture is seen instead
      console.error(error);
    }
  }
  function hide(output) {
    const { host, end } = shown.get(output);
    shown.delete(output);
    host.remove();
    end?.();
  }

  const onPicture = () => store(model, place, model.get("picture"));
  model.on("change:picture", onPicture);
  const watcher = new MutationObserver(look);
  watcher.observe(document.body, { childList: true, subtree: true });
  look();
  function end() {
    watcher.disconnect();
    model.off("change:picture", onPicture);
    for (const output of [...shown.keys()]) hide(output);
  }
  signal?.addEventListener("abort", end);
  return end;
}
