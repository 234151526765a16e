"""Every rule on one GPU beside the other libraries: times in turn within one run, and errors against float64.

The sizes are those of published layers: 16 sequences of 2048 tokens with 12 heads of width 128, and LaCT's layers of
760 million and 3 billion parameters. The results are kept as JSON, a rule at a time; ``table`` makes text of them.
"""

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ttt_teach import CG, PCG, SwiGLU, delta, lact, linear, mesa, osdn
from ttt_teach.bench import clock, peers
from ttt_teach.bench.peers import Jax

RESULTS = Path(__file__).parent / "results" / "device.json"
START = time.perf_counter()
ROUNDS, TURN, MOST = 20, 12.0, 24  # rounds; ms of a turn; calls in it
SCANS = 3  # rounds of the recurrences, which are slow
UPSTREAM = (1.0, 1e-4, 1e-6)
PASSES = ("forward", "forward+backward")
LAYER = {"B": 16, "T": 2048, "H": 12, "D": 128}
JUDGED = {"B": 1, "T": 1024, "H": 2}  # the first so many of each, whose errors are looked at
GAMMA = 0.99  # decays are drawn between it and 1, as near 1 as trained layers have them
STEPS, TOL = 30, 3e-3  # of Mesa's solvers: the literature's steps; less than a bfloat16 rounding can be, 2^-8
EXACT = CG(max_steps=None, tol=1e-13)


class Case(NamedTuple):
    """One rule at one size, and what stands beside it."""

    rule: Callable
    takes: tuple[str, ...]  # arguments besides q, k and v
    ours: dict[str, dict]  # options of the rule by name; the first that runs is what the others are compared with
    exact: dict  # options for the truth
    peers: str  # whose contestants they are
    same: bool = True  # whether those compute this rule, or only one that is near it
    sizes: dict[str, int] = LAYER
    judged: dict[str, int] = JUDGED
    shared: dict = {}  # noqa: RUF012 - options of ours, of the truth and of the peers; nobody changes it


SCAN = {"form": "recurrent"}
FORMS = {"kernel": {"form": "kernel"}, "chunk": {"form": "chunk"}, "scan": SCAN}
MESA = {
    "kernel": {"form": "kernel", "solver": PCG(STEPS, TOL)},
    "kernel, CG": {"form": "kernel", "solver": CG(STEPS, TOL)},
    "kernel, 30 steps": {"form": "kernel", "solver": CG(STEPS)},
    "chunk": {"form": "chunk", "solver": PCG(STEPS, TOL)},
    "scan": SCAN | {"solver": CG(STEPS, TOL)},
}


def layer(width: int, muon: bool) -> Case:
    """A LaCT layer of the language models: 4 heads of one sequence cost what 4 sequences of one head do."""
    return Case(
        lact,
        ("lr", "weights"),
        {form: {"form": form} for form in ("kernel", "chunk")},
        {"form": "definition"},
        "lact",
        sizes={"B": 4, "T": 32768, "H": 1, "D": width},
        judged={"B": 1, "T": 4096, "H": 1},
        shared={"chunk": 2048, "muon": muon},
    )


CASES = {
    "mesa": Case(mesa, ("beta", "lam", "log_decay"), MESA, SCAN | {"solver": EXACT}, "mesa"),
    "linear": Case(linear, ("log_decay",), FORMS, SCAN, "linear"),
    "delta": Case(delta, ("beta",), FORMS, SCAN, "delta"),
    "gated delta": Case(delta, ("beta", "log_decay"), FORMS, SCAN, "gated delta"),
    "osdn": Case(osdn, ("beta",), FORMS, SCAN, "delta", same=False),
    "gated osdn": Case(osdn, ("beta", "log_decay"), FORMS, SCAN, "gated delta", same=False),
    "lact 760M": layer(384, muon=False),
    "lact 760M muon": layer(384, muon=True),
    "lact 3B": layer(768, muon=False),
    "lact 3B muon": layer(768, muon=True),
}


# -- one case ----------------------------------------------------------------------------------------------------------


def draw(case: Case) -> tuple[dict, jax.Array]:
    """Arguments as a layer makes them (q and k: SiLU, then unit length), and an upstream gradient; tokens in bf16."""
    B, T, H, D = case.sizes.values()
    keys = iter(jax.random.split(jax.random.key(0, impl="rbg"), 12))

    def normal(*shape):
        return jax.random.normal(next(keys), shape, jnp.float32)

    def uniform(low, high, *shape):
        return jax.random.uniform(next(keys), shape, jnp.float32, low, high)

    def unit(x):
        x = jax.nn.silu(x)
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    drawn = {
        "q": unit(normal(B, T, H, D)).astype(jnp.bfloat16),
        "k": unit(normal(B, T, H, D)).astype(jnp.bfloat16),
        "v": normal(B, T, H, D).astype(jnp.bfloat16),
        "beta": uniform(0, 1, B, T, H),
        "log_decay": jnp.log(uniform(GAMMA, 1, B, T, H)),
        "lam": uniform(0.25, 1.25, H, D),
        "lr": uniform(1e-3, 1e-2, B, T, H, 3),
        "weights": SwiGLU(*(normal(B, H, D, D) / D**0.5 for _ in SwiGLU._fields)),
    }
    return {name: drawn[name] for name in ("q", "k", "v", *case.takes)}, normal(B, T, H, D).astype(jnp.bfloat16)


class Row:
    """What is being measured for a case. Whoever fails is left out of what follows, and what it said is kept."""

    def __init__(self, case: Case, others: Mapping[str, tuple[str, Any]], absent: Mapping[str, str]):
        """others: name -> (library, Jax or Torch)."""
        self.case, (self.args, self.do) = case, draw(case)
        self.sides = {name: Jax(partial(case.rule, **options, **case.shared)) for name, options in case.ours.items()}
        self.ours = [name for name in self.sides if name != "scan"]
        self.sides |= {name: side for name, (library, side) in others.items() if library not in absent}
        self.without = {name: {"all": absent[library]} for name, (library, _) in others.items() if library in absent}

    def attempt(self, name: str, part: str, use: Callable, *args) -> Any:
        """``use(*args)``, or None if it fails."""
        try:
            return use(*args)
        except Exception as error:  # of whatever kind: it is part of the result
            self.without.setdefault(name, {})[part] = told(error)

    def make(self, name: str, part: str) -> Callable | None:
        """Of the forward pass a function of nothing, of both passes one of the upstream gradient."""
        side = self.sides[name]
        if part == "forward":
            return self.attempt(name, part, lambda: side.forward(self.args))
        return self.attempt(name, part, lambda: side.both(self.args, side.array(self.do)))

    def compile(self) -> dict[tuple[str, str], Callable | None]:
        """All that JAX must compile, in as many threads as there are cores."""
        tasks = [(n, part) for part in PASSES for n in self.sides if n != "scan" or part == "forward"]
        tasks = [task for task in tasks if isinstance(self.sides[task[0]], Jax)]
        with ThreadPoolExecutor(clock.cores()) as pool:
            return dict(zip(tasks, pool.map(lambda task: self.make(*task), tasks), strict=True))

    def race(self, part: str, runs: Mapping[str, Callable | None], rounds: int) -> dict:
        """Times of those that run."""

        def warm(side, run):
            run = run if part == "forward" else partial(run, side.array(self.do))
            side.wait(run())
            return side.timed(run)

        timed = {n: self.attempt(n, part, warm, self.sides[n], run) for n, run in runs.items() if run is not None}
        return times(clock.in_turn({n: run for n, run in timed.items() if run}, rounds, TURN, MOST), self.ours)

    def measure(self) -> Iterator[dict]:
        """What is known so far, each time it has become more."""
        begun = time.perf_counter()
        row = {"date": datetime.date.today().isoformat(), "sizes": self.case.sizes, "without": self.without}
        with ThreadPoolExecutor(1) as aside:
            truth = aside.submit(exact, self.case, self.args, self.do)
            made = self.compile()
        for part in PASSES:
            for name in self.sides:  # PyTorch's are made only now: nothing else runs on the card while they tune
                if name != "scan" and (name, part) not in made:
                    made[name, part] = self.make(name, part)
            row[part] = self.race(part, {n: made[n, part] for n in self.sides if n != "scan"}, ROUNDS)
            yield row
        if "scan" in self.sides:
            row["forward"]["ms"] |= self.race("forward", {"scan": made["scan", "forward"]}, SCANS)["ms"]
        found = {
            name: self.attempt(name, "errors", gradients, self.sides[name], made[name, part], self.do, self.case.judged)
            for name in row[part]["ms"]
            if self.case.same or name in self.ours
        }
        row["errors"] = {"of": self.case.judged} | errors(truth.result(), {n: x for n, x in found.items() if x})
        row["seconds"] = round(time.perf_counter() - begun, 1)
        yield row


def told(error: Exception, most: int = 400) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= most else text[:most] + " ..."


def times(turns: Mapping[str, list[clock.Turn]], ours: list[str]) -> dict:
    """Medians and quartiles of ms, and of each other's time over ours, round by round."""
    each = {name: np.array([turn.ms for turn in some]) for name, some in turns.items()}
    medians = {name: spread(x) for name, x in each.items()}
    for name, some in turns.items():
        medians[name] |= {"rounds": len(some), "host": rounded(np.median([turn.host for turn in some]))}
    ratio = {us: {n: spread(each[n] / each[us]) for n in each if n not in ours} for us in ours if us in each}
    return {"ms": medians, "ratio": ratio}


def spread(x: np.ndarray) -> dict:
    low, median, high = np.percentile(x, [25, 50, 75])
    return {"median": rounded(median), "quartiles": [rounded(low), rounded(high)]}


def rounded(x: float) -> float | None:
    """Four digits; None where it is no number, for which JSON has no word."""
    return float(f"{x:.4g}") if np.isfinite(x) else None


# -- errors ------------------------------------------------------------------------------------------------------------


def first(judged: Mapping[str, int], **arrays) -> dict:
    """The part of the arguments, of their gradients or of o that belongs to the first sequences, tokens and heads."""
    B, T, H = judged.values()
    layouts = {"lam": np.s_[:H], "weights": np.s_[:B, :H]}
    return {name: jax.tree.map(itemgetter(layouts.get(name, np.s_[:B, :T, :H])), x) for name, x in arrays.items()}


def gradients(side, run: Callable, do: jax.Array, judged: Mapping[str, int]) -> dict[str, dict[str, np.ndarray]]:
    """o, and the gradients for each scale of the upstream gradient, which is zero but for the first ones.

    Sequences and heads do not know each other, and no output knows what comes later: so these are the gradients of the
    first ones by themselves, from a call of the size that is timed.
    """
    within = jnp.zeros_like(do).at[np.s_[: judged["B"], : judged["T"], : judged["H"]]].set(first(judged, do=do)["do"])
    found = {}
    for scale in UPSTREAM:
        o, slopes, _ = run(side.array((within.astype(jnp.float32) * scale).astype(do.dtype)))
        leaves = jax.tree_util.tree_leaves_with_path(first(judged, **slopes))
        found[f"{scale:g}"] = {named(path): side.numbers(x) for path, x in leaves}
    return {"o": {"o": side.numbers(first(judged, o=o)["o"])}} | found


def named(path) -> str:
    return "d" + jax.tree_util.keystr(path, simple=True, separator=".")


class Float64(Jax):
    """The same rounded inputs, computed in float64."""

    def array(self, x):
        return jax.tree.map(lambda x: jnp.asarray(np.asarray(x).astype(np.float64)), x)


def exact(case: Case, args: dict, do: jax.Array) -> dict[str, dict[str, np.ndarray]]:
    """The first ones alone, on the CPU, where the many small steps of a recurrence cost less than on the card."""
    args, do = first(case.judged, **args), first(case.judged, do=do)["do"]
    side = Float64(partial(case.rule, **case.exact, **case.shared))
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        return gradients(side, side.both(side.array(args), side.array(do)), do, case.judged)


def errors(truth: dict, found: Mapping[str, dict]) -> dict:
    """The norm of the difference relative to that of the truth, by contestant, upstream scale and array."""

    def error(x, y):
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return rounded(np.linalg.norm(x.reshape(y.shape) - y) / np.linalg.norm(y))

    return {
        name: {
            part: {array: error(results[part][array], y) for array, y in arrays.items()}
            for part, arrays in truth.items()
        }
        for name, results in found.items()
    }


# -- the file and the table --------------------------------------------------------------------------------------------


def write(results: dict, out: Path) -> None:
    """All or nothing: whoever stops the run finds what was written before."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".part")
    beside.write_text(json.dumps(results, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(beside, out)


def table(results: dict) -> Iterator[str]:
    """Medians. Beside those of others stands their time over ours, and in words where it is ours that is slower."""
    yield ", ".join(["{date}, {device}, Python {python}, jax {jax}".format(**results), *versions(results)])
    yield f"{'rule':30}{'forward':>10}  {'ratio':18}{'with backward':>13}  {'ratio':18}"
    for name, row in results["rows"].items():
        when = "" if row.get("date", results["date"]) == results["date"] else f" ({row['date']})"
        yield f"{name}: " + ", ".join(f"{letter} {size}" for letter, size in row.get("sizes", {}).items()) + when
        passes = [row.get(part, {"ms": {}, "ratio": {}}) for part in PASSES]
        for who in dict.fromkeys(who for part in passes for who in part["ms"]):
            forward, both = (cells(who, part) for part in passes)
            yield f"  {who:28}{forward[0]:>10}  {forward[1]:18}{both[0]:>13}  {both[1]:18}".rstrip()
        yield from missing(row.get("without", {}))
        if "failed" in row:
            yield f"  failed: {row['failed'].splitlines()[0]}"
    yield "ms, median; ratio: time over that of the rule's first line, round by round; *: mostly of starting it"
    yield from error_table(results)


def versions(results: dict) -> dict[str, None]:
    """The other libraries of all rows, each once, in their order."""
    rows = results["rows"].values()
    return dict.fromkeys(f"{n} {version}" for row in rows for n, version in row.get("versions", {}).items())


def missing(without: dict[str, dict[str, str]]) -> Iterator[str]:
    """One line for each reason."""
    for who, parts in without.items():
        for why in dict.fromkeys(parts.values()):
            which = ", ".join(part for part, said in parts.items() if said == why)
            yield f"  without {who} ({which}): {why.splitlines()[0]}"


def cells(who: str, part: dict) -> tuple[str, str]:
    """Time and ratio to the first of ours."""
    if who not in part["ms"]:
        return "", ""
    told = part["ms"][who]
    ms = f"{told['median']:.3g}" + ("*" if told["host"] >= 0.9 * told["median"] else " ")
    ratio = next(iter(part["ratio"].values()), {}).get(who)
    return ms, "" if ratio is None else verdict(ratio)


def verdict(ratio: dict) -> str:
    """Between the quartiles lies half of the rounds: where 1 is among them, none is called slower."""
    low, high = ratio["quartiles"]
    word = ", ours slower" if high < 1 else ", even" if low <= 1 else ""
    return f"{ratio['median']:.2f}{word}"


def error_table(results: dict) -> Iterator[str]:
    yield f"{'relative error':30}{'o':>9}" + "".join(f"{f'worst at {scale:g}':>26}" for scale in UPSTREAM)
    for name, row in results["rows"].items():
        judged = {who: told for who, told in row.get("errors", {}).items() if who != "of"}
        if judged:
            yield f"{name}: " + ", ".join(f"{letter} {size}" for letter, size in row["errors"]["of"].items())
        for who, told in judged.items():
            worst = (max(told[f"{scale:g}"].items(), key=badness) for scale in UPSTREAM)
            yield f"  {who:28}{digits(told['o']['o']):>9}" + "".join(f"{f'{n} {digits(x)}':>26}" for n, x in worst)
    yield "against float64, of o and of the worst gradient, for upstream gradients of three sizes"


def badness(item: tuple[str, float | None]) -> float:
    return np.inf if item[1] is None else item[1]


def digits(x: float | None) -> str:
    return "not finite" if x is None else f"{x:.1e}"


# -- the command -------------------------------------------------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on a GPU", "instead of the tables: " + __doc__.splitlines()[0])
    group.add_argument("--device", action="store_true", help="measure this package's rules in all forms, write JSON")
    libraries = ", ".join(peers.LIBRARIES)
    group.add_argument("--peers", action="store_true", help=f"and beside them those that are installed of {libraries}")
    group.add_argument("--lact", metavar="FOLDER", help="a checkout of the official LaCT code, a1600012888/LaCT")
    group.add_argument("--only", metavar="RULE,RULE", help=f"of {', '.join(CASES)}; or all of a rule, such as lact")
    group.add_argument("--resume", action="store_true", help="only what the file has not, or not to its end")
    group.add_argument("--out", metavar="FILE", type=Path, default=RESULTS, help=f"default: {RESULTS.name} in results/")
    group.add_argument("--show", action="store_true", help="measure nothing, print what the file has")


def wanted(asked: argparse.Namespace) -> bool:
    """Whether to measure on a GPU. Raises ValueError for options that do not go together."""
    if asked.device and asked.tables:
        raise ValueError(f"--device is no table, and prints no other; expected no {asked.tables[0]} beside it")
    alone = [name for name in ("peers", "lact", "only", "resume", "show") if getattr(asked, name)]
    if alone and not asked.device:
        raise ValueError(f"--{alone[0]} is for --device; expected both")
    if asked.lact and not asked.peers:
        raise ValueError("--lact is for --peers; expected both")
    return asked.device


def selected(only: str | None) -> list[str]:
    """Cases by name, or all of a rule. Raises ValueError for another."""
    if only is None:
        return list(CASES)
    names = [name.strip() for name in only.split(",")]
    rules = {name: case.rule.__name__ for name, case in CASES.items()}
    if unknown := [name for name in names if name not in CASES and name not in rules.values()]:
        raise ValueError(f"--only names {unknown[0]!r}; expected some of {', '.join(CASES)}")
    return [name for name, rule in rules.items() if name in names or rule in names]


def begin(out: Path) -> dict:
    """What the file holds, if it is of this device and these versions. Raises ValueError if it is of others."""
    here = clock.device()
    if not out.exists():
        return here | {"rows": {}}
    there = json.loads(out.read_text(encoding="utf-8"))
    for name in ("device", "jax"):
        if there[name] != here[name]:
            raise ValueError(f"{out} has {name} {there[name]}, and here is {here[name]}; name another file as --out")
    return here | {"rows": there["rows"]}


def run(asked: argparse.Namespace) -> None:
    """Measure the cases asked for and keep each row as soon as there is something of it. Raises ValueError."""
    names = selected(asked.only)
    if asked.show:
        print(*table(json.loads(asked.out.read_text(encoding="utf-8"))), sep="\n")
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too
    if jax.default_backend() != "gpu":
        raise ValueError(f"--device measures on a GPU, and JAX computes on {jax.devices()[0].device_kind} here")
    results = begin(asked.out)
    versions, absent, operation = peers.look(asked.lact) if asked.peers else ({}, {}, None)
    for library, why in absent.items():
        say(f"{library} is {why}")
    for name in names:
        if asked.resume and "seconds" in results["rows"].get(name, {}):
            say(f"{name}: kept")
            continue
        case = CASES[name]
        others = peers.contestants(case.peers, operation, **case.shared) if asked.peers else {}
        for row in guarded(case, others, absent):
            row["versions"] = versions
            results["rows"][name] = row
            write(results, asked.out)
            say(f"{name}: {list(row)[-1]}")
    print(*table(results), sep="\n")


def guarded(*args) -> Iterator[dict]:
    """The measurements of a ``Row``; where they break, what there was of them, and why."""
    row = {}
    try:
        for row in Row(*args).measure():
            yield row
    except Exception as error:
        yield row | {"failed": told(error)}


def say(what: str) -> None:
    print(f"{time.perf_counter() - START:6.0f} s  {what}", file=sys.stderr, flush=True)
