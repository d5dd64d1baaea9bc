"""JupyterLab and Chromium, started once for all browser tests and ended with them: other tests have event loops."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from playwright.sync_api import Browser

from .lab import Lab, chromium, jupyterlab


@pytest.fixture(scope="package")
def chrome() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def running_lab(tmp_path_factory: pytest.TempPathFactory, chrome: Browser) -> Iterator[Lab]:
    home, folder = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("notebooks")
    with jupyterlab(home, folder, chrome) as lab:
        yield lab


_ENDED = pytest.StashKey[bool]()
"""Whether the test itself ended well."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_ENDED] = not report.failed
    return report


@pytest.fixture
def lab(running_lab: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    """JupyterLab in its light theme. Notebooks and kernels end with each test; the log is printed where it failed."""
    running_lab.theme("light")
    yield running_lab
    passed = request.node.stash.get(_ENDED, True)
    if not passed:
        print(running_lab.told())
    running_lab.close_pages(reuse=passed)
    running_lab.end_kernels()
