"""The tables of the three papers, as far as the readings of them give them: one observation a row.

    rows = load("mesanet")
    one(rows, model="MesaNet", metric="recall", table="Table 3(b)").value    # 41.79
    models, values = ranked(find(rows, metric="six-set PPL"))                # best first

The files are ``tables/*.csv``. Nothing is in them that no reading says; ``where`` names the slide or the section of the
notes, and ``note`` what the number is over and what the reading leaves out. Numbers stay text until they are loaded, so
that 10.10 keeps its two decimals.
"""

import csv
import os
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np

__all__ = ["PAPERS", "Row", "find", "load", "one", "ranked", "read"]

PAPERS = ("mesanet", "osdn", "lact")
FOLDER = resources.files("ttt_teach.ledger") / "tables"
COLUMNS = ("paper", "table", "model", "size", "tokens", "metric", "unit", "better", "value", "std", "where", "note")
_NEVER_EMPTY = ("paper", "table", "model", "metric", "unit", "value", "where")
_KEY = ("paper", "table", "model", "size", "tokens", "metric", "unit")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Row(NamedTuple):
    """One printed number and what it is of."""

    paper: str  # "mesanet", "osdn" or "lact"
    table: str  # where the paper has it; "stated in the reading" if the reading worked it out
    model: str
    size: str  # parameters, as "1B"; empty where the reading does not say
    tokens: str  # trained on, as "50B"
    metric: str
    unit: str
    better: str  # "lower", "higher", or empty: neither
    value: float
    half: float  # half a unit of the last printed place: what was rounded away is at most that
    std: float  # the number printed after ±, nan where there is none
    where: str  # in the reading
    note: str


def load(paper: str) -> tuple[Row, ...]:
    """All rows of "mesanet", "osdn" or "lact". Raises ValueError for another name."""
    if paper not in PAPERS:
        raise ValueError(f"paper is {paper!r}; expected one of {', '.join(PAPERS)}")
    with resources.as_file(FOLDER / f"{paper}.csv") as path:
        rows = read(path)
    others = {row.paper for row in rows} - {paper}
    if others:
        raise ValueError(f"{paper}.csv has rows of {', '.join(sorted(others))}; expected rows of {paper} alone")
    return rows


def read(path: str | os.PathLike) -> tuple[Row, ...]:
    """The rows of a CSV file with the columns of `COLUMNS`, all of them checked.

    Raises ValueError, with the line, for other columns, a stray quote, an empty cell where there must be none, stray
    spaces, a number that is not plain decimal, a ``better`` or a ``paper`` that is unknown, and two rows for one
    observation.
    """
    with open(path, encoding="utf-8", newline="") as file:
        lines = csv.reader(file, strict=True)
        try:
            return _rows(lines, path)
        except csv.Error as error:
            raise ValueError(f"{path}, line {lines.line_num}: {error}; expected plain CSV") from None


def _rows(lines, path: str | os.PathLike) -> tuple[Row, ...]:
    header = tuple(next(lines, ()))
    if header != COLUMNS:
        raise ValueError(f"{path} has the columns {', '.join(header)}; expected {', '.join(COLUMNS)}")
    rows, first = [], {}
    for cells in lines:
        where = f"{path}, line {lines.line_num}"
        if len(cells) != len(COLUMNS):
            raise ValueError(f"{where} has {len(cells)} cells; expected {len(COLUMNS)}")
        row = dict(zip(COLUMNS, cells, strict=True))
        rows.append(_row(row, where))
        key = tuple(row[name] for name in _KEY)
        if key in first:
            raise ValueError(f"{where} has {' / '.join(filter(None, key))}, which line {first[key]} has")
        first[key] = lines.line_num
    return tuple(rows)


def _row(row: dict[str, str], where: str) -> Row:
    for name, cell in row.items():
        if cell != " ".join(cell.split()):
            raise ValueError(f"{where} has {name} {cell!r}; expected one line, without spaces around it or double ones")
    for name in _NEVER_EMPTY:
        if not row[name]:
            raise ValueError(f"{where} has an empty {name}; expected words or a number")
    for name, allowed in (("paper", PAPERS), ("better", ("lower", "higher", ""))):
        if row[name] not in allowed:
            raise ValueError(f"{where} has {name} {row[name]!r}; expected one of {', '.join(map(repr, allowed))}")
    for name in ("value", "std"):
        if row[name] and not _NUMBER.fullmatch(row[name]):
            raise ValueError(f"{where} has {name} {row[name]!r}; expected a decimal number as it is printed")
    if row["std"].startswith("-"):
        raise ValueError(f"{where} has std {row['std']}; expected none or a number >= 0")
    decimals = len(row["value"].partition(".")[2])
    numbers = {"value": float(row["value"]), "std": float(row["std"] or "nan"), "half": 0.5 * 10.0**-decimals}
    if np.isinf([numbers["value"], numbers["std"]]).any():
        raise ValueError(f"{where} has value {numbers['value']}, std {numbers['std']}; expected what float64 can hold")
    return Row(**row | numbers)


def find(rows: Iterable[Row], **wanted: str) -> tuple[Row, ...]:
    """The rows whose columns are as wanted, ``find(rows, model="OSDN", size="340M")``; perhaps none.

    Raises ValueError for a column that there is not.
    """
    for name in wanted:
        if name not in Row._fields:
            raise ValueError(f"{name!r} is no column; expected some of {', '.join(Row._fields)}")
    return tuple(row for row in rows if all(getattr(row, name) == x for name, x in wanted.items()))


def one(rows: Iterable[Row], **wanted: str) -> Row:
    """The only row that is as wanted. Raises ValueError, naming them, if there are none or several."""
    found = find(rows, **wanted)
    if len(found) != 1:
        tables = ", ".join(f"{row.model} in {row.table}" for row in found) or "nothing"
        raise ValueError(f"{wanted} gives {len(found)} rows ({tables}); expected one")
    return found[0]


def ranked(rows: Sequence[Row]) -> tuple[list[str], np.ndarray]:
    """Models and values of rows of one metric, best first; models that tie stay in the order of the table.

    Raises ValueError if the rows are of several metrics or units, or have no better end.
    """
    kinds = {(row.metric, row.unit, row.better) for row in rows}
    if len(kinds) != 1 or not all(better for *_, better in kinds):
        raise ValueError(f"rows are of {sorted(kinds)}; expected one metric with a better end")
    values = np.array([row.value for row in rows])
    sign = 1 if rows[0].better == "lower" else -1
    order = np.argsort(sign * values, kind="stable")
    return [rows[n].model for n in order], values[order]
