"""A reader opens every page of the static site, with no network but the page's own origin."""

import contextlib
import functools
import http.server
import threading

import pytest
from playwright.sync_api import expect

from tests.site_fixture import EXECUTED


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module", params=["file", "http"])
def origin(request, site):
    with contextlib.nullcontext(site.as_uri()) if request.param == "file" else served(site) as address:
        yield address


over_http = pytest.mark.parametrize("origin", ["http"], indirect=True)  # once is enough for looks


@pytest.fixture
def pages(site):
    return sorted(path.name for path in site.glob("*.html"))


STATE = """async explorer => {
    const image = explorer.querySelector("img");
    await image.decode();  // fails if the picture cannot be drawn
    return {
        picture: image.src,
        words: image.alt,
        caption: explorer.querySelector("figcaption").textContent,
        values: [...explorer.querySelectorAll("output")].map(output => output.value),
    };
}"""


def move(explorer, slider):
    """Every key that moves a slider changes picture, words and the value beside it."""
    seen, after = set(), explorer.evaluate(STATE)
    for key in ("Home", "ArrowRight", "End", "ArrowLeft"):
        before, at = after, slider.input_value()
        slider.press(key)
        after = explorer.evaluate(STATE)
        seen.add(slider.input_value())
        if slider.input_value() != at:
            assert all(before[part] != after[part] for part in before), f"{key}: {before['words']}"
        assert after["caption"] == after["words"]
        assert slider.get_attribute("aria-valuetext") in after["values"]
    assert seen >= {"0", slider.get_attribute("max")}


def test_every_slider_of_every_page_moves(page, origin, pages):
    moved = 0
    # Served as a site they are the same files: there the two with sliders are enough.
    for name in pages if origin.startswith("file") else [f"{name}.html" for name in EXECUTED]:
        page.goto(f"{origin}/{name}")
        for explorer in page.locator("figure.explorer").all():
            for slider in explorer.get_by_role("slider").all():
                expect(slider).to_be_enabled()
                expect(slider).to_have_accessible_name(slider.locator("xpath=..").inner_text().strip())
                move(explorer, slider)
                moved += 1
    assert moved


@over_http
def test_a_phone_scrolls_down_only(page, origin, pages, shots):
    page.set_viewport_size({"width": 360, "height": 740})
    for name in pages:
        page.goto(f"{origin}/{name}")
        page.screenshot(path=shots / f"phone-{name}.png")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 360, name


@over_http
def test_pictures_keep_a_white_ground_on_a_dark_page(page, origin, pages, shots):
    ground = "getComputedStyle(document.body).backgroundColor"
    for name in pages:
        page.emulate_media(color_scheme="light")
        page.goto(f"{origin}/{name}")
        light = page.evaluate(ground)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(ground) != light
        for picture in page.locator("figure img").all():
            expect(picture).to_have_css("background-color", "rgb(255, 255, 255)")
        page.screenshot(path=shots / f"dark-{name}.png")
