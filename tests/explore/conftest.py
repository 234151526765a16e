import pytest

from ttt_teach.explore import EXPLORED


@pytest.fixture(autouse=True)
def neither_static_nor_saved(monkeypatch):
    monkeypatch.delenv("TTT_TEACH_STATIC", raising=False)
    monkeypatch.delenv("TTT_TEACH_FIGURES", raising=False)
    EXPLORED.clear()


@pytest.fixture
def static(monkeypatch):
    monkeypatch.setenv("TTT_TEACH_STATIC", "1")
