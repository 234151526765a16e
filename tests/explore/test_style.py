"""The style is ours inside a picture and nowhere else, and never relies on colour alone."""

import itertools
import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from ttt_teach.explore import COLORS, figure_axes
from ttt_teach.explore.style import style


def contrast_on_white(color):
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return 1.05 / (linear @ [0.2126, 0.7152, 0.0722] + 0.05)


def test_importing_changes_nothing_of_the_readers_matplotlib():
    code = "import matplotlib as m; a = dict(m.rcParams); import ttt_teach.explore; assert dict(m.rcParams) == a"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_changes_nothing_and_pyplot_never_sees_the_figure():
    before = dict(matplotlib.rcParams)
    fig, ax = figure_axes()
    ax.plot([1, 2])
    assert dict(matplotlib.rcParams) == before
    assert not plt.get_fignums()
    assert tuple(fig.get_size_inches()) == (6.4, 3.6)


def test_axes_come_as_from_plt_subplots():
    _, grid = figure_axes(2, 3, figsize=(8, 5), sharex=True)
    assert grid.shape == (2, 3)


def test_lines_differ_by_dash_as_well_as_by_colour():
    _, ax = figure_axes()
    lines = [ax.plot([0, 1])[0] for _ in range(20)]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20
    for one, other in itertools.pairwise(lines):
        assert one.get_color() != other.get_color()
        assert one.get_linestyle() != other.get_linestyle()


def test_line_colours_are_okabe_and_itos_and_stand_out_on_white():
    with style():
        colors = set(plt.rcParams["axes.prop_cycle"].by_key()["color"])
    assert colors < set(COLORS.values())
    assert min(map(contrast_on_white, colors)) > 3


def test_the_readers_own_style_does_not_reach_a_picture():
    with plt.style.context("dark_background"):
        _, ax = figure_axes()
    assert ax.xaxis.label.get_color() == "black"
    assert ax.get_facecolor() == (1, 1, 1, 1)


@pytest.mark.parametrize("name", COLORS)
def test_colours_are_hex(name):
    assert matplotlib.colors.to_hex(COLORS[name]).upper() == COLORS[name]
