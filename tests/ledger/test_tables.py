"""The tables are read as they are printed, and a file with a slip is refused with its line."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ttt_teach.ledger import tables
from ttt_teach.ledger.tables import COLUMNS, PAPERS, find, load, one, ranked, read

ROOT = Path(__file__).parents[2]
GOOD = "osdn,Table 1,OSDN,340M,10.74B,recall,fraction,higher,0.150,0.02,slide 13,of three"


HEADER = ",".join(COLUMNS)


def file(folder, *lines, header=HEADER):
    path = folder / "some.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


# --- reading


def test_a_row_keeps_the_printed_places(tmp_path):
    (row,) = read(file(tmp_path, GOOD))
    assert (row.value, row.half, row.std) == (0.15, 0.0005, 0.02)
    assert (row.model, row.where, row.note) == ("OSDN", "slide 13", "of three")


def test_whole_numbers_and_missing_spreads(tmp_path):
    (row,) = read(file(tmp_path, GOOD.replace("0.150,0.02", "-31,")))
    assert (row.value, row.half) == (-31, 0.5) and np.isnan(row.std)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("OSDN,340M", ",340M"), "line 2 has an empty model"),
        (("0.150", ""), "line 2 has an empty value"),
        (("0.150", "1e-3"), "line 2 has value '1e-3'; expected a decimal number"),
        (("0.150", "nan"), "line 2 has value 'nan'; expected a decimal number"),
        (("0.02", "about 2"), "line 2 has std 'about 2'; expected a decimal number"),
        (("0.02", "-0.02"), "line 2 has std -0.02; expected none or a number >= 0"),
        (("higher", "up"), "line 2 has better 'up'; expected one of 'lower', 'higher', ''"),
        (("osdn,", "gdn,"), "line 2 has paper 'gdn'; expected one of 'mesanet', 'osdn', 'lact'"),
        (("slide 13,", "slide 13, page 7,"), "line 2 has 13 cells; expected 12"),
        (("OSDN,340M", "OSDN ,340M"), "line 2 has model 'OSDN '; expected one line, without spaces"),
        (("OSDN,340M", "OSDN\u00a0,340M"), "line 2 has model 'OSDN\\xa0'; expected one line, without spaces"),
        ((GOOD, f'{GOOD[:-8]}"of three\n{GOOD}"'), "line 3 has note 'of three\\nosdn,Table 1"),
        (("0.150", "٣.٥"), "line 2 has value '٣.٥'; expected a decimal number"),
        (("0.150", "9" * 400), "line 2 has value inf, std 0.02; expected what float64 can hold"),
        ((GOOD, f'{GOOD[:-8]}"of three\n{GOOD}'), "line 3: unexpected end of data; expected plain CSV"),
        (("of three", '"of" three'), "line 2: ',' expected after '\"'; expected plain CSV"),
        (
            (GOOD, f"{GOOD}\n{GOOD}"),
            "line 3 has osdn / Table 1 / OSDN / 340M / 10.74B / recall / fraction, which line 2",
        ),
    ],
)
def test_a_slip_is_named_with_its_line(tmp_path, change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        read(file(tmp_path, GOOD.replace(*change)))


def test_other_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match="has the columns a, b; expected paper, table"):
        read(file(tmp_path, header="a,b"))


def test_an_empty_file_is_refused(tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("")
    with pytest.raises(ValueError, match="has the columns ; expected paper"):
        read(path)


def test_rows_of_another_paper_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    file(tmp_path, GOOD).rename(tmp_path / "lact.csv")
    with pytest.raises(ValueError, match=r"lact.csv has rows of osdn; expected rows of lact alone"):
        load("lact")


# --- the three files


@pytest.fixture(params=PAPERS)
def paper(request):
    return load(request.param)


def test_a_file_holds_its_paper_alone(paper):
    assert len({row.paper for row in paper}) == 1


def test_every_place_can_be_found_again(paper):
    place = r"slides? \d+(, \d+)*( \(32K\))?"
    for row in paper:
        assert re.fullmatch(rf"{place}(; notes \d\.\d)?|notes \d\.\d", row.where), row


def test_a_spread_says_over_what(paper):
    assert [row for row in paper if not np.isnan(row.std) and "over" not in row.note] == []


def test_shares_are_shares(paper):
    for row in paper:
        if row.unit == "fraction":
            assert 0 <= row.value <= 1, row
        if row.unit == "%":
            assert -10 <= row.value <= 100, row


def test_one_metric_has_one_unit_and_direction_wherever_it_is_printed(paper):
    kinds = {}
    for row in paper:
        if not row.table.startswith("stated"):
            kinds.setdefault(row.metric, set()).add((row.unit, row.better))
    assert {metric: kind for metric, kind in kinds.items() if len(kind) > 1} == {}


def test_what_is_printed_twice_agrees_but_for_the_known_errata(paper):
    known = {("OSDN-APF", "commonsense"), ("all", "training segment"), ("OSKDA", "retention")}
    printed = {}
    for row in paper:
        if not row.table.startswith("stated"):
            printed.setdefault((row.model, row.size, row.metric), set()).add(row.value)
    several = {(model, metric) for (model, _, metric), values in printed.items() if len(values) > 1}
    assert several == (known if paper[0].paper == "osdn" else set())


def test_no_reading_is_quoted_at_length(paper):
    assert max(len(row.note) for row in paper) < 130


def test_another_paper_is_refused():
    with pytest.raises(ValueError, match="paper is 'gpt'; expected one of mesanet, osdn, lact"):
        load("gpt")


def test_git_and_so_the_wheel_take_the_files():
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows what it ignores")
    names = [f"ttt_teach/ledger/tables/{name}.csv" for name in PAPERS]
    ignored = subprocess.run(["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout == ""
    assert sorted(path.stem for path in (ROOT / "ttt_teach/ledger/tables").iterdir()) == sorted(PAPERS)


# --- looking up


def test_find_and_one():
    rows = load("mesanet")
    assert one(rows, model="MesaNet", metric="recall", table="Table 3(b)").value == 41.79
    assert find(rows, model="RetNet") == ()
    with pytest.raises(ValueError, match="'modell' is no column"):
        find(rows, modell="MesaNet")
    with pytest.raises(ValueError, match=r"gives 0 rows \(nothing\); expected one"):
        one(rows, model="RetNet")
    with pytest.raises(ValueError, match=r"gives 3 rows \(OSDN in Table 1, OSDN in Table 1, OSDN in Table 1\)"):
        one([row for row in load("osdn") if row.table == "Table 1" and "recall" in row.metric], model="OSDN")


@pytest.mark.parametrize(
    ("metric", "first", "last"),
    [("six-set PPL", "Hawk-Mesa", "Mamba2"), ("recall", "Transformer", "SWA-4")],
)
def test_ranked_puts_the_best_first(metric, first, last):
    rows = [r for r in load("mesanet") if r.metric == metric and r.table.startswith("Table")]
    models, values = ranked(rows)
    assert (models[0], models[-1]) == (first, last)
    assert len(values) == len(rows)


def test_a_tie_keeps_the_order_of_the_table():
    models, _ = ranked([r for r in load("mesanet") if r.metric == "six-set PPL" and r.table == "Table 2"])
    assert models[1:3] == ["MesaNet", "Transformer"]


def test_only_one_metric_with_a_better_end_is_ranked():
    rows = load("lact")
    with pytest.raises(ValueError, match="expected one metric with a better end"):
        ranked(find(rows, table="Table 2"))
    with pytest.raises(ValueError, match="expected one metric with a better end"):
        ranked(find(rows, metric="parameters"))
