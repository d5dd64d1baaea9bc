"""JupyterLab and Chromium, started once for all browser tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from .lab import Lab, chromium, jupyterlab


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def running_lab(tmp_path_factory: pytest.TempPathFactory, chrome: Browser) -> Iterator[Lab]:
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("notebooks")
    with jupyterlab(home, folder, chrome) as lab:
        yield lab


@pytest.fixture
def lab(running_lab: Lab) -> Iterator[Lab]:
    """JupyterLab, in its light theme; pages are closed after each test."""
    running_lab.theme("light")
    yield running_lab
    running_lab.close_pages()
