"""Pictures with words, and sliders over them that work with a kernel and without."""

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.slider import EXPLORED, explore
from ttt_teach.explore.style import COLORS, figure_axes

__all__ = ["COLORS", "EXPLORED", "Picture", "explore", "figure_axes"]
