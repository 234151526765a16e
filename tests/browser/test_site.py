"""A reader opens every page of the static site, with no network but the page's own origin."""

import contextlib
import functools
import http.server
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import shoot
from tests.site_fixture import EXECUTED
from ttt_teach.site.prose import PAPERS

ROOT = Path(__file__).parents[2]
NAMES = ["index", "ledger"] + [
    path.stem for path in sorted([*ROOT.glob("notebooks/*.py"), *ROOT.joinpath(PAPERS).glob("*.md")])
]

# Served as a site they are the same files: there those with sliders are enough.
pytestmark = pytest.mark.parametrize(
    ("origin", "opened"),
    [("file", name) for name in NAMES] + [("http", name) for name in EXECUTED],
    indirect=True,
    scope="module",
)


@contextlib.contextmanager
def served(folder):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def origin(request, site):
    assert {path.stem for path in site.glob("*.html")} == set(NAMES)
    with contextlib.nullcontext(site.as_uri()) if request.param == "file" else served(site) as address:
        yield address


@pytest.fixture(scope="module")
def opened(request, new_page, origin):
    """A page of the site, opened once for all tests: drawing its maths and pictures takes longer than any of them."""
    with new_page() as page:
        page.goto(f"{origin}/{request.param}.html")
        yield page


@pytest.fixture
def name(opened):
    return Path(opened.url).stem


GROUND = "getComputedStyle(document.body).backgroundColor"
GROUNDS = "[...document.querySelectorAll('figure img')].map(image => getComputedStyle(image).backgroundColor)"

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


def test_every_slider_moves(opened, name):
    sliders = opened.locator("figure.explorer").get_by_role("slider").all()
    for slider in sliders:
        expect(slider).to_be_enabled()
        expect(slider).to_have_accessible_name(slider.locator("xpath=..").inner_text().strip())
        move(slider.locator("xpath=ancestor::figure"), slider)
    assert bool(sliders) == (name in EXECUTED)


def test_pictures_keep_a_white_ground_on_a_dark_page(opened, name):
    opened.emulate_media(color_scheme="light")
    light = opened.evaluate(GROUND)
    opened.emulate_media(color_scheme="dark")
    assert opened.evaluate(GROUND) != light
    assert set(opened.evaluate(GROUNDS)) <= {"rgb(255, 255, 255)"}
    shoot(opened, f"dark-{name}.png")


def test_a_phone_scrolls_down_only(opened, name):
    opened.set_viewport_size({"width": 360, "height": 740})
    shoot(opened, f"phone-{name}.png")
    assert opened.evaluate("document.scrollingElement.scrollWidth") <= 360
