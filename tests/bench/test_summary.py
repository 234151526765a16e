"""The README's part about a GPU: the committed measurements, word for word, and what is shown of any."""

from pathlib import Path

from tests.bench.test_device import RESULT
from ttt_teach.bench import summary

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_the_committed_measurements():
    results = summary.read()
    text = README.read_text(encoding="utf-8")
    for lines in (summary.times(results), summary.errors(results)):
        assert "\n".join(f"    {line}".rstrip() for line in lines) in text


def test_where_ours_is_slower_it_says_so():
    first, _, ours, *others = summary.times(RESULT | {"rows": {"mesa": RESULT["rows"]["mesa"]}})
    assert first == "some GPU, 2030-01-02, jax 0.11.2, fla-core 0.6.0"
    assert ours.split() == ["mesa", "1.5", "4"]
    assert [line.split() for line in others[:3]] == [
        ["fla", "0.9", "0.60,", "ours", "slower", "-"],
        ["jla", "1.51", "1.01,", "even", "-"],
        ["slow", "33", "22.00", "-"],
    ]


def test_a_rule_that_failed_has_no_numbers():
    assert ["lact", "-", "-"] in [line.split() for line in summary.times(RESULT)]


def test_what_is_missing_is_named_with_the_reason():
    absent, *reasons = summary.missing(RESULT)
    assert absent.startswith("not measured in this run: linear, delta, gated delta")
    assert reasons == ["without LaCT (mesa): absent (no --lact)", "without kernel (mesa): ValueError: x"]


def test_errors_are_of_the_kernel_and_of_others():
    _, ours, _ = summary.errors(RESULT)
    assert ours.split() == "mesa 1.0e-03 dlam 5.0e-03 dlam 5.0e-03 dlam not finite".split()
