from ttt_teach import bench

NOTEBOOK = """
from ttt_teach.explore import Picture, explore, figure_axes

def draw(height, label):
    fig, ax = figure_axes()
    ax.bar([0], [height], label=label)
    return Picture(fig, f"One bar called {label} is {height} high in this picture.", "F99a")

print("not in the table")
explore(draw, height=[1, 2], label=["only"])
"""


def test_every_explorer_of_a_notebook_has_a_row(tmp_path, capsys):
    (tmp_path / "99-a-bar.py").write_text(NOTEBOOK)
    bench.main([str(tmp_path / "99-a-bar.py")])
    *_, last = out = capsys.readouterr().out.splitlines()
    assert len(out) == 4
    notebook, figure, median, worst = last.split()
    assert (notebook, figure) == ("99-a-bar", "F99a")
    assert 0 <= int(median) <= int(worst)
