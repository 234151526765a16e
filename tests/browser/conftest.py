"""One browser for all browser tests, and pages that may talk to one origin only."""

import contextlib
import os
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from run import find_chromium


# Not for the whole session: while Playwright is open no other test could run an asyncio loop.
@pytest.fixture(scope="package")
def chromium():
    path = find_chromium()
    if not path:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("no Chromium or Chrome is installed")
    with sync_playwright() as playwright:
        # It knows no host but this one, so nothing gets out; to stop requests one by one would turn off its cache.
        here = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=path, args=[here])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_page(chromium, origin):
    """A context with a fresh page that reaches `origin` (a fixture of the test module) and nothing else."""

    @contextlib.contextmanager
    def new_page():
        outside, errors = [], []
        with contextlib.closing(chromium.new_context(viewport={"width": 1280, "height": 1000})) as context:
            page = context.new_page()
            page.on("request", lambda asked: asked.url.startswith(origin) or outside.append(asked.url))
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
            yield page
        assert not outside, f"{page.url} asked other hosts: {outside}"
        assert not errors, f"errors in {page.url}: {errors}"

    return new_page


def shoot(page, name):
    """Take a screenshot into the folder that TTT_TEACH_SHOTS names, if it names one."""
    if folder := os.environ.get("TTT_TEACH_SHOTS"):
        page.screenshot(path=Path(folder) / name)
