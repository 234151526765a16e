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
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_page(chromium, origin):
    """A context with a fresh page that reaches `origin` (a fixture of the test module) and nothing else."""

    @contextlib.contextmanager
    def new_page():
        outside, errors = [], []

        def gate(route):
            if route.request.url.startswith(origin):
                return route.continue_()
            outside.append(route.request.url)
            return route.abort()

        with contextlib.closing(chromium.new_context(viewport={"width": 1280, "height": 1000})) as context:
            context.route("**/*", gate)
            page = context.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
            yield page
        assert not outside, f"requests to other hosts: {outside}"
        assert not errors, f"errors in the page: {errors}"

    return new_page


@pytest.fixture
def page(new_page):
    with new_page() as page:
        yield page


@pytest.fixture
def shots(tmp_path):
    """The folder for screenshots; TTT_TEACH_SHOTS names one that is kept."""
    folder = Path(os.environ.get("TTT_TEACH_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder
