from ttt_teach.bench import sliders

NOTEBOOK = """
from ttt_teach.explore import Picture, explore, figure_axes

def draw(height, label):
    fig, ax = figure_axes()
    ax.bar([0], [height], label=label)
    return Picture(fig, f"One bar called {label} is {height} high in this picture.", "F99a")

print("not in the table")
explore(draw, height=[1, 2], label=["only"])
"""


def test_every_explorer_of_a_notebook_has_a_row(tmp_path):
    notebook = tmp_path / "99-a-bar.py"
    notebook.write_text(NOTEBOOK)
    _, row = sliders.rows([notebook])
    name, figure, median, worst = row.split()
    assert (name, figure) == ("99-a-bar", "F99a")
    assert 0 <= int(median) <= int(worst)
