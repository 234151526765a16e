"""Colours that can be read, in the light and in the dark (WCAG AA: 4.5 to 1)."""

import re
from pathlib import Path

import pytest

import ttt_teach.site

STYLE = (Path(ttt_teach.site.__file__).parent / "style.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w{6})", root)) for root in re.findall(r":root \{(.*?)\}", STYLE, re.S))
GROUNDS = {"ground", "raised"}
INKS = set(LIGHT) - GROUNDS - {"line"}


def luminance(colour):
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ground", sorted(GROUNDS))
@pytest.mark.parametrize("ink", sorted(INKS))
def test_contrast(theme, ground, ink):
    low, high = sorted(luminance(theme[name]) for name in (ground, ink))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_both_themes_define_the_same_colours_and_all_are_used():
    assert LIGHT.keys() == DARK.keys()
    assert set(re.findall(r"var\(--(\w+)\)", STYLE)) == LIGHT.keys()
