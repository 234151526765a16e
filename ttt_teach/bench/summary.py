"""What the README shows of the measurements on a GPU: ``python -m ttt_teach.bench.summary`` prints its lines.

Of each rule the kernel (or what is first of ours) and whoever else has the rule; ``device.table`` has all forms.
"""

import json
from collections.abc import Iterator

from ttt_teach.bench.device import CASES, PASSES, RESULTS, UPSTREAM, badness, digits, verdict, versions


def read() -> dict:
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def ours(part: dict) -> str | None:
    """Whom the others are compared with in this pass."""
    return next(iter(part.get("ratio", {})), None)


def times(results: dict) -> Iterator[str]:
    """Milliseconds, and each other's time over ours; in words where ours is slower."""
    rows = results["rows"]
    yield ", ".join(["{device}, {date}, jax {jax}".format(**results), *versions(results)])
    yield f"{'':36}{'forward':>9}  {'ratio':18}{'with backward':>13}  ratio"
    for name, row in rows.items():
        passes = [row.get(part, {}) for part in PASSES]
        others = dict.fromkeys(who for part in passes for told in part.get("ratio", {}).values() for who in told)
        form = next((ours(part) for part in passes if ours(part)), "kernel")
        for who in (None, *others):
            forward, both = (cells(part, who) for part in passes)
            label = (
                name + f", {form}" * (form != "kernel")
                if who is None
                else f"  {who}" + ("" if CASES[name].same else f" ({CASES[name].peers})")
            )
            yield f"{label:36}{forward[0]:>9}  {forward[1]:18}{both[0]:>13}  {both[1]}".rstrip()
    yield "ms, medians; ratio: time over ours, round by round; -: not measured; in brackets: a rule that is near"
    yield from missing(results)


def missing(results: dict) -> Iterator[str]:
    """Rules that were not measured, and who is missing beside those that were, with the reason."""
    if absent := [name for name in CASES if name not in results["rows"]]:
        yield f"not measured in this run: {', '.join(absent)}"
    reasons = {}
    for name, row in results["rows"].items():
        for who, parts in row.get("without", {}).items():
            for why in dict.fromkeys(parts.values()):
                reasons.setdefault((who, why.splitlines()[0]), []).append(name)
    for (who, why), names in reasons.items():
        yield f"without {who} ({', '.join(names)}): {why}"


def cells(part: dict, who: str | None) -> tuple[str, str]:
    """Time and ratio of another; the time of ours for None."""
    mine = ours(part)
    name = mine if who is None else who
    if name is None or name not in part.get("ms", {}):
        return "-", ""
    return f"{part['ms'][name]['median']:.3g}", "" if who is None else verdict(part["ratio"][mine][who])


def errors(results: dict) -> Iterator[str]:
    """Of o and of the worst gradient against float64, for upstream gradients of three sizes; ours and others'."""
    yield f"{'':36}{'o':>9}" + "".join(f"{f'worst at {scale:g}':>26}" for scale in UPSTREAM)
    for name, row in results["rows"].items():
        mine = ours(row.get(PASSES[1], {}))
        others = row.get(PASSES[1], {}).get("ratio", {}).get(mine, {})
        for who in (mine, *others):
            if (told := row.get("errors", {}).get(who)) is None:
                continue
            worst = (max(told[f"{scale:g}"].items(), key=badness) for scale in UPSTREAM)
            label = name if who == mine else f"  {who}"
            yield f"{label:36}{digits(told['o']['o']):>9}" + "".join(f"{f'{n} {digits(x)}':>26}" for n, x in worst)
    yield "relative errors against float64 on the same rounded inputs, of o and of the worst gradient"


if __name__ == "__main__":
    results = read()
    print(*times(results), "", *errors(results), sep="\n")
