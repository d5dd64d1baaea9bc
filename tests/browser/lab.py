"""A real JupyterLab, and a real Chromium to look at it, for tests and benchmarks.

`chromium()` is the browser named by CHROMIUM, else the system's, else Playwright's; `jupyterlab(...)` starts JupyterLab
with a home of its own on a loopback port; `lab.notebook(...)` writes a notebook and `lab.open(...)` opens it in a page.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from .ensure_chromium import find

TESTS = Path(__file__).parent.parent
BROWSER_OPTIONS = [
    "--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-gpu",
]  # fmt: skip
PATIENCE = 60_000  # milliseconds, far more than a page takes: a machine with two busy cores is no failure
expect.set_options(timeout=PATIENCE)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


_ATTEMPTS = 3
_ENDING_SECONDS = 15.0
_MOST_TOLD = 8_000
_IS_READY = """(path) => {
    const book = [...(globalThis.jupyterapp?.shell.widgets('main') ?? [])].find(
        each => each.context?.path == path && each.context.sessionContext?.session?.kernel?.status == 'idle');
    if (book && jupyterapp.shell.currentWidget !== book) jupyterapp.shell.activateById(book.id);
    return book !== undefined && jupyterapp.shell.currentWidget === book;
}"""
_CLOSE_ALL = """() => {
    if (document.querySelector('.jp-Dialog')) return 1;
    const open = () => [...jupyterapp.shell.widgets('main')];
    open().forEach(widget => widget.dispose());
    return open().length;
}"""
"""Without asking whether to save."""
_CHANGE_THEME = "async (theme) => { await jupyterapp.commands.execute('apputils:change-theme', {theme}); }"
_SEEN = """() => JSON.stringify({
    widgets: [...(globalThis.jupyterapp?.shell.widgets('main') ?? [])].map(each => [each.id,
        each.context?.sessionContext?.kernelDisplayStatus, each.context?.sessionContext?.session?.kernel?.status]),
    current: globalThis.jupyterapp?.shell.currentWidget?.id,
    dialog: document.querySelector('.jp-Dialog')?.textContent,
})"""


class Lab:
    """A running JupyterLab and the folder that it serves."""

    def __init__(
        self, url: str, token: str, folder: Path, home: Path, browser: Browser, *, clusters: Path, scale: float
    ) -> None:
        self.url, self.folder, self.home = url, folder, home
        self.clusters = clusters
        self._theme: dict[str, str] | None = None
        self._token = token
        self._context = browser.new_context(
            device_scale_factor=scale
        )  # one: each would fetch and compile all of JupyterLab anew
        self._pages: list[Page] = []
        self._idle: Page | None = None
        self._console: list[str] = []

    def notebook(self, name: str, *cells: str) -> Path:
        """Write a notebook with these code cells."""
        path = self.folder / f"{name}.ipynb"
        content = {
            "nbformat": 4, "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            "cells": [
                {"cell_type": "code", "id": secrets.token_hex(4), "metadata": {}, "execution_count": None,
                 "outputs": [], "source": source}
                for source in cells
            ],
        }  # fmt: skip
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def theme(self, name: str) -> None:
        """Set the theme, `light` or `dark`, of pages that are opened from now on."""
        values = {"theme": THEMES[name]}
        if values == self._theme:
            return
        self._theme = values
        self.setting("apputils-extension/themes", values)
        if self._idle:
            self._idle.evaluate(_CHANGE_THEME, THEMES[name])

    def setting(self, plugin: str, values: dict[str, Any]) -> None:
        path = self.home / "settings" / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")

    def open(self, name: str, *, width: int = 1180, height: int = 900) -> Page:
        """Open the notebook and wait until its kernel is idle.

        To load JupyterLab takes longer than most tests do, so the page of an earlier test is used again.
        """
        page = self._idle
        self._idle = None
        if page:
            page.set_viewport_size({"width": width, "height": height})
            self._pages.append(page)
            page.evaluate(
                "path => { jupyterapp.commands.execute('docmanager:open', {path, factory: 'Notebook'}); }",
                f"{name}.ipynb",
            )
            self._until_ready(page, name)
            return page
        page = self._context.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: self._console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._console.append(f"not caught: {error.stack or error}"))
        self._pages.append(page)
        self._load(page, name)
        self._until_ready(page, name)
        self.command(page, "application:toggle-left-area")
        return page

    def _load(self, page: Page, name: str) -> None:
        """Load JupyterLab with this notebook in a workspace of its own."""
        workspace = secrets.token_hex(4)
        page.goto(f"{self.url}/lab/workspaces/{workspace}/tree/{name}.ipynb?token={self._token}", wait_until="commit")

    def reload(self, page: Page) -> None:
        """Load a page again whose kernel goes on."""
        path = page.evaluate("() => jupyterapp.shell.currentWidget.context.path")
        page.reload(wait_until="commit")
        self._until_ready(page, path.removesuffix(".ipynb"))

    def _until_ready(self, page: Page, name: str) -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                page.wait_for_selector(".jp-Notebook .jp-Cell")
                # Asked to run before its kernel is there, JupyterLab opens a dialog that swallows everything. On a busy
                # machine another widget may be the current one until the notebook is made it.
                page.wait_for_function(_IS_READY, arg=f"{name}.ipynb")
                break
            except PlaywrightTimeout as error:
                error.add_note(f"{name}: {page.evaluate(_SEEN)}")
                if not left:
                    raise
                self._load(page, name)  # a kernel whose ports another process took never comes up

    def run_all(self, page: Page) -> None:
        """Run all cells."""
        self.command(page, "notebook:run-all-cells")

    def run_last(self, page: Page) -> None:
        """Run the last cell."""
        page.evaluate(
            "() => { const book = jupyterapp.shell.currentWidget.content;"
            " book.activeCellIndex = book.widgets.length - 1; }"
        )
        self.command(page, "notebook:run-cell")

    def command(self, page: Page, name: str) -> None:
        """Have JupyterLab carry out one of its commands."""
        page.evaluate("name => { jupyterapp.commands.execute(name); }", name)  # its answer is no plain value

    def save(self, page: Page) -> None:
        """Save the notebook; it is on disk then."""
        page.evaluate("async () => { await jupyterapp.commands.execute('docmanager:save'); }")

    def told(self) -> str:
        """What the open pages and their kernels have told: for a test that failed."""
        pages = [each.inner_text() for page in self._pages for each in page.locator(".jp-Notebook").all()]
        log = (self.home / "lab.log").read_text(errors="replace", encoding="utf-8")
        parts = {"notebooks": "\n----\n".join(pages), "console": "\n".join(self._console), "JupyterLab": log}
        return "\n".join(f"=== {name}\n{text[-_MOST_TOLD:]}" for name, text in parts.items())

    def close_pages(self, *, reuse: bool = False) -> None:
        """Close every page; with `reuse` close only the notebooks of the first one, which the next `open` uses."""
        for page in self._pages:
            if reuse and self._idle is None and _without_notebooks(page):
                self._idle = page
            else:
                page.close()
        self._pages.clear()
        self._console.clear()

    def end_kernels(self) -> None:
        """End what pages that are closed have left running; one that is just being restarted ends with JupyterLab."""
        for session in json.loads(self._ask("GET", "sessions")):
            with suppress(OSError):
                self._ask("DELETE", f"sessions/{session['id']}", _ENDING_SECONDS)

    def _ask(self, method: str, what: str, timeout: float = PATIENCE / 1000) -> bytes:
        request = urllib.request.Request(f"{self.url}/api/{what}?token={self._token}", method=method)
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.read()


def _without_notebooks(page: Page) -> bool:
    """Close what is open in a page; return whether it is a JupyterLab in which nothing is left."""
    try:
        left = page.evaluate(_CLOSE_ALL)
    except PlaywrightError:  # it is being loaded, or shows something else
        return False
    return left == 0


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    program = find()
    if program is None:
        raise FileNotFoundError("No Chromium here: `make browser` installs one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=BROWSER_OPTIONS)
        yield browser
        browser.close()


@contextmanager
def jupyterlab(
    home: Path, folder: Path, browser: Browser, clusters: Path | None = None, *, scale: float = 1.0
) -> Iterator[Lab]:
    """Start JupyterLab, which keeps its settings in `home` and serves `folder`; its kernels keep theirs in `clusters`.

    Pictures of its pages have `scale` pixels for each CSS pixel.
    """
    clusters = clusters or home / "transient"
    token = secrets.token_hex(8)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = {
        **os.environ,
        "HOME": str(home),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "TRANSIENT_MAGICS_HOME": str(clusters),
        "PYTHONPATH": str(TESTS.parent),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}",
        "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}",
        "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    log = (home / "lab.log").open("wb")
    process = subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)
    try:
        lab = Lab(f"http://127.0.0.1:{port}", token, folder, home, browser, clusters=clusters, scale=scale)
        lab.setting("apputils-extension/notification", {"fetchNews": "false", "checkForUpdates": False})
        _wait_for(f"{lab.url}/api/status?token={token}", process, home / "lab.log")
        yield lab
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(480):
        if process.poll() is not None:
            raise RuntimeError(f"JupyterLab ended at once:\n{log.read_text(encoding='utf-8')[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=30):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.25)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text(encoding='utf-8')[-2000:]}")
