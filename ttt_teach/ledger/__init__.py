"""Claims that run: each is checked where it is made, printed, and recorded for the ledger page of the site.

    claim("C02.1", "the two reads agree", source="Eq. 7", error=gap, tol=1e-12)
    claim("X02.1", "a stale gate changes nothing", source="App. C", error=gap, tol=1e-3, expect=False)
    check("02.1", my_function, a_test)

A claim (C) holds when its error is within the tolerance; an erratum (X) is a statement printed somewhere that
running it contradicts. Either stops the notebook when it goes the other way.
"""

import datetime
import functools
import html
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from IPython import get_ipython
from IPython.display import display

__all__ = ["ClaimError", "check", "claim", "margin"]

_SAID: dict[str, str] = {}  # what each id has stood for since this Python started


class ClaimError(AssertionError):
    """A claim that fails, or an erratum that no longer is one."""


def claim(id: str, says: str, *, source: str, error: float, tol: float, expect: bool = True) -> None:
    """Check that ``error <= tol`` (for an erratum, ``expect=False``: that it is not), show and record it.

    id: "C02.1", or "X02.1" for an erratum. says: the statement in plain text, for an erratum as it is printed
    at its source. error: a finite number >= 0, NumPy and JAX scalars included. tol: > 0, or 0 for a statement
    about integers.

    Raises ClaimError when it went the other way, ValueError when an argument is not as said here.
    """
    _require("id", id, re.fullmatch(r"[CX][0-9]{2}\.[0-9]+", str(id)), 'an id such as "C02.1" or "X02.1"')
    _require("expect", expect, expect is (id[0] == "C"), "True for a claim (C), False for an erratum (X)")
    for name, words in (("says", says), ("source", source)):
        plain = isinstance(words, str) and words.strip() and "$" not in words
        _require(name, words, plain, "plain text without $maths$")
    before = _SAID.setdefault(id, says)
    _require("says", says, before == says, f"{before!r}, which {id} said before (restart to change it)")
    error, tol = _number("error", error), _number("tol", tol)
    date = datetime.date.today().isoformat()
    record = dict(id=id, says=says, source=source, error=error, tol=tol, expect=expect, date=date)

    holds = error <= tol
    if holds is not expect:
        raise ClaimError(_text(record, "now holds" if holds else "fails"))
    _show(record, "holds" if holds else "does not hold")


def margin(error: float, tol: float) -> str:
    """How far an error is from its tolerance, in words."""
    if error == 0:
        return "exact"
    if tol == 0:
        return "not exact"
    return f"{tol / error:.2g} times below" if error <= tol else f"{error / tol:.2g} times above"


def check(id: str, attempt: Any, test: Callable[[Any], str | None]) -> None:
    """Say whether a reader's attempt at an exercise is right, not yet, or not tried yet; never fails.

    id: "02.1". attempt: a function or a value; an Ellipsis, or a function that returns one, is not tried yet.
    test: takes the attempt, returns None if it is right, else a sentence with a counterexample.
    """
    _require("id", id, re.fullmatch(r"[0-9]{2}\.[0-9]+", str(id)), 'an id such as "02.1"')
    print(id, _verdict(attempt, test))


def _require(name: str, value: Any, holds: Any, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {value!r}; expected {expected}")


def _number(name: str, value: Any) -> float:
    """A finite float >= 0 from whatever kind of real scalar."""
    expected = "one finite number >= 0"
    array = np.asarray(value)
    _require(name, value, array.ndim == 0 and array.dtype.kind not in "bcmMOSU", expected)
    number = float(array)
    _require(name, value, 0 <= number < math.inf, expected)
    return number


def _figures(record: dict) -> str:
    error, tol = record["error"], record["tol"]
    return f"error {error:.2g}, tolerance {tol:.2g} ({margin(error, tol)})"


def _text(record: dict, verdict: str) -> str:
    return f"{record['id']} {verdict}: {record['says']} - {_figures(record)}. {record['source']}."


def _show(record: dict, verdict: str) -> None:
    """One output: words for consoles, HTML that needs no style, and the exact record in its metadata."""
    text = _text(record, verdict)
    if get_ipython() is None:
        print(text)
        return
    id, says, source = (html.escape(record[key]) for key in ("id", "says", "source"))
    page = (
        f'<div class="claim" id="{id}"><strong>{id}</strong> {verdict}: {says}<br>'
        f"<small>{_figures(record)}. {source}.</small></div>"
    )
    display({"text/html": page, "text/plain": text}, raw=True, metadata={"ttt_teach": record})


class _NotTried(Exception):
    """The reader's function still returns an Ellipsis."""


class _Raised(Exception):
    """The reader's function raised the exception that caused this one."""


def _verdict(attempt: Any, test: Callable[[Any], str | None]) -> str:
    if attempt is ...:
        return "not tried yet"
    try:
        if _holds_nan(attempt):
            return "not yet: your answer is nan"
        objection = test(_watched(attempt) if callable(attempt) else attempt)
    except _NotTried:
        return "not tried yet"
    except _Raised as raised:
        return f"not yet: {raised}"
    except (Exception, SystemExit) as error:  # what the reader gave cannot be computed with
        return f"not yet: checking your answer raised {_named(error)}"
    return "right" if objection is None else f"not yet: {objection}"


def _watched(function: Callable) -> Callable:
    """The reader's function, telling its own exceptions, and nan, from what the test around it finds."""
    name = getattr(function, "__name__", "your function")

    @functools.wraps(function)
    def watched(*args, **kwargs):
        try:
            answer = function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise _Raised(f"{name} raised {_named(error)}") from error
        if answer is ...:
            raise _NotTried
        if _holds_nan(answer):
            raise _Raised(f"{name} gave nan")  # which is neither more nor less than any tolerance
        return answer

    return watched


def _holds_nan(answer: Any) -> bool:
    if isinstance(answer, tuple | list):
        return any(map(_holds_nan, answer))
    try:
        return bool(np.isnan(np.asarray(answer)).any())
    except Exception:  # no number, or one that JAX has yet to compute
        return False


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")
