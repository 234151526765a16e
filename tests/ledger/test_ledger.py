"""Claims are shown, recorded, and stop whoever makes them when they go the other way."""

import json
import runpy
import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import ttt_teach.ledger
from ttt_teach.ledger import ClaimError, check, claim, margin

GOOD = dict(id="C02.1", says="a is b", source="Eq. 1", error=2.2e-16, tol=1e-12)


@pytest.fixture(autouse=True)
def new_ledger(monkeypatch):
    monkeypatch.setattr(ttt_teach.ledger, "_SAID", {})


@pytest.fixture
def shell(monkeypatch):
    """What a notebook has: displayed outputs, with metadata."""
    shell = InteractiveShell()
    monkeypatch.setattr(ttt_teach.ledger, "get_ipython", lambda: shell)
    monkeypatch.setattr(InteractiveShell, "_instance", shell)
    return shell


def test_a_claim_prints_one_line(capsys):
    claim(**GOOD)
    expected = "C02.1 holds: a is b - error 2.2e-16, tolerance 1e-12 (4.5e+03 times below). Eq. 1.\n"
    assert capsys.readouterr().out == expected


def test_an_erratum_prints_one_line(capsys):
    claim("X02.1", "a is b", source="App. C", error=0.5, tol=0.001, expect=False)
    expected = "X02.1 does not hold: a is b - error 0.5, tolerance 0.001 (5e+02 times above). App. C.\n"
    assert capsys.readouterr().out == expected


def test_in_a_notebook_it_is_one_output_with_an_exact_record(shell):
    with capture_output() as captured:
        claim(**GOOD | {"says": "a < b & c"})
    (output,) = captured.outputs
    assert output.data["text/plain"].startswith("C02.1 holds: a < b & c - error 2.2e-16")
    assert 'id="C02.1"' in output.data["text/html"]
    assert "a &lt; b &amp; c" in output.data["text/html"]
    record = json.loads(json.dumps(output.metadata["ttt_teach"], allow_nan=False))
    assert record.pop("date").count("-") == 2
    assert record == GOOD | {"says": "a < b & c", "expect": True}


def test_it_runs_in_plain_python(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"from ttt_teach.ledger import check, claim\nclaim(**{GOOD})\ncheck('02.1', ..., None)\n")
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    first, second = run.stdout.splitlines()
    assert first.startswith("C02.1 holds") and second == "02.1 not tried yet"
    runpy.run_path(str(script))


@pytest.mark.parametrize("value", [1e-3, np.float32(1e-3), np.array(1e-3), jnp.bfloat16(1e-3), jnp.array(1e-3), 0])
def test_errors_may_be_any_real_scalar(value):
    claim(**GOOD | {"error": value, "tol": 1e-2})


def test_a_failing_claim_stops():
    with pytest.raises(ClaimError, match=r"^C02.1 fails: a is b - error 3, tolerance 1 \(3 times above\). Eq. 1.$"):
        claim(**GOOD | {"error": 3.0, "tol": 1.0})
    assert issubclass(ClaimError, AssertionError)


def test_an_erratum_that_was_repaired_stops():
    with pytest.raises(ClaimError, match=r"^X02.1 now holds: a is b"):
        claim(**GOOD | {"id": "X02.1", "expect": False})


def test_an_integer_statement_has_tolerance_zero():
    claim(**GOOD | {"error": 0, "tol": 0})
    with pytest.raises(ClaimError, match=r"error 1, tolerance 0 \(not exact\)"):
        claim(**GOOD | {"error": 1, "tol": 0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": "C2.1"}, "id is 'C2.1'; expected an id such as"),
        ({"id": 2.1}, "id is 2.1; expected an id such as"),
        ({"id": "X02.1"}, "expect is True; expected True for a claim (C), False for an erratum (X)"),
        ({"expect": False}, "expect is False; expected True for a claim (C), False for an erratum (X)"),
        ({"says": " "}, "says is ' '; expected plain text"),
        ({"says": "$a$ is b"}, "says is '$a$ is b'; expected plain text"),
        ({"source": None}, "source is None; expected plain text"),
        ({"error": float("nan")}, "error is nan; expected one finite number >= 0"),
        ({"error": np.inf}, "error is inf; expected one finite number >= 0"),
        ({"error": -1e-3}, "error is -0.001; expected one finite number >= 0"),
        ({"error": np.ones(1)}, "error is array([1.]); expected one finite number >= 0"),
        ({"error": True}, "error is True; expected one finite number >= 0"),
        ({"error": jnp.array(True)}, "error is Array(True, dtype=bool); expected one finite number >= 0"),
        ({"error": "0"}, "error is '0'; expected one finite number >= 0"),
        ({"error": Fraction(1, 2)}, "error is Fraction(1, 2); expected one finite number >= 0"),
        ({"error": 1j}, "error is 1j; expected one finite number >= 0"),
        ({"tol": -1.0}, "tol is -1.0; expected one finite number >= 0"),
        ({"tol": float("nan")}, "tol is nan; expected one finite number >= 0"),
    ],
)
def test_bad_arguments_are_named(change, message):
    with pytest.raises(ValueError) as raised:
        claim(**GOOD | change)
    assert message in str(raised.value)


def test_an_id_stands_for_one_statement():
    claim(**GOOD)
    claim(**GOOD | {"error": 0.0})
    with pytest.raises(ValueError, match=r"says is 'a is c'; expected 'a is b', which C02.1 said before"):
        claim(**GOOD | {"says": "a is c"})


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_the_margin_says_on_which_side_the_error_is(error, tol):
    assert margin(error, tol).endswith("below" if error <= tol else "above")


def doubles(f):
    return None if f(3) == 6 else f"f(3) is {f(3)}, not 6"


@pytest.mark.parametrize(
    ("attempt", "verdict"),
    [
        (..., "not tried yet"),
        (lambda x: ..., "not tried yet"),
        (lambda x: 2 * x, "right"),
        (jax.jit(lambda x: 2 * x), "right"),
        (lambda x: x**2, "not yet: f(3) is 9, not 6"),
    ],
)
def test_check_says_how_an_exercise_stands(attempt, verdict, capsys):
    check("02.1", attempt, doubles)
    assert capsys.readouterr().out == f"02.1 {verdict}\n"


def test_check_takes_values(capsys):
    check("02.2", 5, lambda n: None if n == 5 else "count again")
    check("02.2", 6, lambda n: None if n == 5 else "count again")
    assert capsys.readouterr().out == "02.2 right\n02.2 not yet: count again\n"


def test_check_tells_the_readers_exception_from_an_answer_of_the_wrong_kind(capsys):
    def mine(x):
        return 1 / 0

    check("02.1", mine, doubles)
    check("02.1", lambda x: None, lambda f: None if f(3) + 1 == 7 else "no")
    raised, unusable = capsys.readouterr().out.splitlines()
    assert raised == "02.1 not yet: mine raised ZeroDivisionError: division by zero"
    assert unusable.startswith("02.1 not yet: checking your answer raised TypeError: unsupported operand")


def test_check_takes_no_nan_for_an_answer(capsys):
    """A test that asks whether an error is too large would call it right."""

    def near(answer):
        return "too far off" if abs((answer(3) if callable(answer) else answer) - 6) > 1e-9 else None

    def mine(x):
        return float("nan")

    check("02.1", mine, near)
    check("02.1", lambda x: (1.0, np.array([2.0, np.nan])), lambda f: None if f(3) else "no")
    check("02.1", float("nan"), near)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "02.1 not yet: mine gave nan" and second == "02.1 not yet: <lambda> gave nan"
    assert third == "02.1 not yet: your answer is nan"


def test_check_works_through_jax_transformations(capsys):
    check("02.3", lambda x: ..., lambda f: None if jax.grad(f)(1.0) == 2 else "no")
    check("02.3", lambda x: x**2, lambda f: None if jax.grad(f)(1.0) == 2 else "no")
    assert capsys.readouterr().out == "02.3 not tried yet\n02.3 right\n"


def test_check_needs_an_id():
    with pytest.raises(ValueError, match=r"id is 'C02.1'; expected an id such as"):
        check("C02.1", ..., doubles)
