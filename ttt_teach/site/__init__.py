"""The static site, and the executed twins and the figures of the notebooks (``python -m ttt_teach.site``)."""

from .execute import SiteError, figures
from .pages import build

__all__ = ["SiteError", "build", "figures"]
