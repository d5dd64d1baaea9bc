"""A panel in a page without JupyterLab: the bundled front end, a stand-in for its model, JupyterLab's own colours.

Such a page is there in a second. What JupyterLab does with a panel is tested in JupyterLab.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

from transient_magics.panels import assets

_THEMES = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab"
_MODEL = """
class Model {
  constructor(values) { this.values = values; this.heard = {}; this.sent = []; }
  get(name) { return this.values[name]; }
  on(event, act) { (this.heard[event] ??= new Set()).add(act); }
  off(event, act) { this.heard[event]?.delete(act); }
  send(message) { this.sent.push(message); }
  set(name, value) { this.values[name] = value; for (const act of this.heard[`change:${name}`] ?? []) act(); }
}
globalThis.show = async (source, values) => {
  globalThis.failures = [];
  addEventListener("error", ({ message }) => failures.push(message));
  const { default: panel } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  globalThis.model = new Model(values);
  globalThis.end = panel.render({ model, el: document.body });
};
"""


@contextmanager
def bare(
    browser: Browser,
    kind: str,
    values: Mapping[str, Any],
    *,
    theme: str = "light",
    width: int = 1100,
    height: int = 900,
) -> Iterator[Page]:
    """The panel `kind` (cluster, declare, plan) of a model with these values, in a page of its own.

    In the page, `model.set(name, value)` is what the kernel sends, `model.sent` what it hears.
    """
    colours = (_THEMES / f"theme-{theme}-extension" / "index.css").read_text(encoding="utf-8")
    panel = assets.path("panel.css").read_text(encoding="utf-8")
    style = f"{colours}\n{panel}\nbody {{ background: var(--jp-layout-color0) }}"
    context = browser.contexts[0] if browser.contexts else browser.new_context()  # a new one starts a process
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": height})
    try:
        page.set_content(f"<!doctype html><style>{style}</style><body data-jp-theme-light='{theme == 'light'}'>")
        page.add_script_tag(content=_MODEL)
        source, sent = assets.path(f"{kind}.js").read_text(encoding="utf-8"), json.loads(json.dumps(values))
        page.evaluate("([source, values]) => show(source, values)", [source, sent])
        yield page
    finally:
        page.close()


def asked(page: Page) -> list[dict[str, Any]]:
    found = [each for each in page.evaluate("model.sent") if each["do"].startswith("stop")]
    return [{name: each[name] for name in each if name != "asked"} for each in found]
