"""A reader opens notebook 02 in JupyterLab, runs it and moves a slider."""

import re
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser import driver
from tests.browser.conftest import shoot

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "02-correlated-keys.ipynb"

# Its last cell in these tests: JupyterLab, opened once, takes longer than any of them.
LAST = """
import os
from ttt_teach.explore import Picture, explore, figure_axes

def draw(where):
    fig, ax = figure_axes()
    ax.bar([0, 1, 2], [where == "left", where == "middle", 1 / len(where)])
    return Picture(fig, f"The highest of the 3 bars is on the {where or 'right'}.", "F99a")

def fails_on_the_right(where):
    return draw("" if where == "right" else where)

os.environ["TTT_TEACH_STATIC"] = "1"
display(explore(draw, where=["left", "middle", "right"]))
del os.environ["TTT_TEACH_STATIC"]
display(explore(fails_on_the_right, where=["left", "middle", "right"]))
"""


@pytest.fixture(scope="module")
def origin(chromium, tmp_path_factory):  # chromium first: nothing is started where there is none
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(LAST))
    root = tmp_path_factory.mktemp("notebooks")
    nbformat.write(notebook, root / NOTEBOOK.name)
    with driver.jupyterlab(root) as address:
        yield address


@pytest.fixture(scope="module")
def opened(new_page, origin):
    """The page with the notebook, of which nothing has run."""
    with new_page() as page:
        driver.open_notebook(page, origin, NOTEBOOK.name)
        yield page


@pytest.fixture(scope="module")
def executed(opened):
    """The page with every cell run."""
    driver.run_all(opened)
    return opened


@pytest.fixture
def explorer(executed):
    """The first explorer, whose sliders are angle and lam."""
    explorer = executed.locator(f"{driver.PANEL} .widget-vbox", has=executed.locator("#F02a"))
    explorer.scroll_into_view_if_needed()
    return explorer


def slider(explorer, name):
    return explorer.get_by_role("slider", name=name, exact=True)


def shown(explorer, name):
    """The value beside a slider."""
    return explorer.locator(".widget-hslider", has_text=name).locator(".widget-readout").inner_text()


def test_opened_and_not_run_it_shows_the_start_frames(opened):
    panel = opened.locator(driver.PANEL)
    assert panel.locator(".widget-vbox").count() == 0
    pictures = panel.locator("figure img")
    expect(pictures.first).to_be_visible()
    for picture in pictures.all():
        assert picture.get_attribute("alt")
        assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    assert panel.get_by_text("Error displaying widget").count() == 0


def test_an_arrow_key_changes_the_picture(executed, explorer):
    picture, before = explorer.locator("img"), shown(explorer, "angle")
    source, words = picture.get_attribute("src"), picture.get_attribute("alt")
    slider(explorer, "angle").press("ArrowRight")
    expect(picture).not_to_have_attribute("alt", words)
    assert picture.get_attribute("src") != source
    assert shown(explorer, "angle") != before
    assert picture.get_attribute("alt") == explorer.locator("figcaption").inner_text()
    shoot(executed, "lab.png")


def test_a_screen_reader_hears_name_and_value(explorer):
    expect(slider(explorer, "angle")).to_have_attribute("aria-valuetext", shown(explorer, "angle"))
    expect(slider(explorer, "lam")).to_have_attribute("aria-valuetext", shown(explorer, "lam"))


def test_thirty_quick_moves_end_on_the_value_that_the_slider_shows(executed, explorer):
    handle, picture = slider(explorer, "angle"), explorer.locator("img")
    handle.press("Home")
    start = shown(explorer, "angle")
    for _ in range(30):
        executed.keyboard.press("ArrowRight")
    value = shown(explorer, "angle")
    assert value != start
    says = re.compile(rf"\b{re.escape(value)} degrees")
    expect(picture).to_have_attribute("alt", says)
    driver.wait_until_idle(executed)
    expect(picture).to_have_attribute("alt", says)
    assert picture.count() == 1


def test_the_same_cell_runs_again(executed, explorer):
    cell = executed.locator(f"{driver.PANEL} .jp-CodeCell", has=executed.locator("#F02a"))
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cell.locator(".cm-content").click()
    executed.keyboard.press("Control+Enter")
    expect(prompt).not_to_have_text(before)
    expect(prompt).to_have_text(re.compile(r"^\[\d+\]:$"))
    expect(cell.locator(".widget-vbox img")).to_have_count(1)
    words = explorer.locator("img").get_attribute("alt")
    slider(explorer, "lam").press("ArrowLeft")
    expect(explorer.locator("img")).not_to_have_attribute("alt", words)


def test_sliders_without_kernel_and_errors(executed):
    cell = executed.locator(f"{driver.PANEL} .jp-CodeCell").last
    static, live = cell.locator("figure.explorer"), cell.locator(".widget-vbox")
    for explorer in (static, live):
        expect(explorer.locator("img")).to_have_attribute("alt", re.compile("middle"))
        slider(explorer, "where").press("ArrowLeft")
        expect(explorer.locator("img")).to_have_attribute("alt", re.compile("left"))
    slider(live, "where").press("End")
    expect(live.get_by_role("alert")).to_have_text("ZeroDivisionError: division by zero")
    slider(live, "where").press("ArrowLeft")
    expect(live.locator("img")).to_have_attribute("alt", re.compile("middle"))
