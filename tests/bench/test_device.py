"""The comparison on a GPU, without one: rows of fake contestants with fake clocks, the file, the table, refusals."""

import argparse
import importlib
import itertools
import json
import sys
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ttt_teach import SwiGLU, linear
from ttt_teach.bench import __main__ as command
from ttt_teach.bench import clock, device, peers
from ttt_teach.bench.clock import Turn

TINY = device.CASES["linear"]._replace(
    sizes={"B": 2, "T": 70, "H": 2, "D": 8}, judged={"B": 1, "T": 64, "H": 1}, ours={"kernel": {"form": "kernel"}}
)
WITH_CHUNK = TINY._replace(ours=device.FORMS)


class Fake:
    """Computes the rule, off by so much, in so many ms a call."""

    def __init__(self, ms, off=0.0, fails=()):
        self.ms, self.off, self.fails = ms, off, fails

    def array(self, x):
        return x

    def forward(self, args):
        if "forward" in self.fails:
            raise RuntimeError("this card is too old\nand more")
        return lambda: None

    def both(self, args, do):
        if "both" in self.fails:
            raise RuntimeError("no way back")
        run = peers.Jax(partial(linear, form="chunk")).both(args, do)
        return lambda do: jax.tree.map(lambda x: (1 + self.off) * x, run(do))

    def wait(self, results):
        pass

    def timed(self, run):
        run()
        drift = itertools.count()
        return lambda calls: Turn(self.ms * (1 + next(drift) / 100), 0.0)

    def numbers(self, x):
        return np.asarray(x).astype(np.float64)


def measured(case, others, absent=None):
    *_, row = device.guarded(case, {name: (name, side) for name, side in others.items()}, absent or {})
    return json.loads(json.dumps(row, allow_nan=False))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(device, "ROUNDS", 5)
    monkeypatch.setattr(device, "TURN", 0.1)


def test_a_row_has_times_of_ours_and_of_others_and_errors_against_float64(quick):
    row = measured(WITH_CHUNK, {"a": Fake(1e6, off=0.5), "b": Fake(1e-6)})
    assert set(row["forward"]["ms"]) == {"chunk", "a", "b", "scan"}
    assert set(row["forward+backward"]["ms"]) == {"chunk", "a", "b"}
    told = row["forward"]["ms"]["chunk"]
    assert told["quartiles"][0] <= told["median"] <= told["quartiles"][1] and told["rounds"] == 5
    assert row["forward"]["ms"]["scan"]["rounds"] == device.SCANS
    assert row["forward"]["ratio"]["chunk"]["a"]["median"] > 1e3 > 1 > row["forward"]["ratio"]["chunk"]["b"]["median"]
    assert row["without"] == {"kernel": dict.fromkeys(device.PASSES, row["without"]["kernel"]["forward"])}
    assert row["without"]["kernel"]["forward"].startswith("ValueError: form is 'kernel', which takes K = V in {64,")
    assert row["errors"]["of"] == WITH_CHUNK.judged and row["seconds"] > 0
    for scale in device.UPSTREAM:  # of each array, and bf16 has 2^-9 = 2e-3
        assert set(row["errors"]["chunk"][f"{scale:g}"]) == {"dq", "dk", "dv", "dlog_decay"}
        assert max(row["errors"]["chunk"][f"{scale:g}"].values()) < 4e-3
        np.testing.assert_allclose(list(row["errors"]["a"][f"{scale:g}"].values()), 0.5, rtol=1e-2)
    assert row["errors"]["a"]["o"]["o"] == pytest.approx(0.5, rel=1e-2)


def test_who_fails_is_named_and_the_others_go_on(quick):
    others = {"old": Fake(1, fails=("forward",)), "one way": Fake(1, fails=("both",)), "well": Fake(1), "gone": Fake(1)}
    row = measured(TINY, others, absent={"gone": "absent (ImportError: no gone); to have it: pip install gone"})
    assert set(row["forward"]["ms"]) == {"one way", "well"} and set(row["forward+backward"]["ms"]) == {"old", "well"}
    assert row["without"]["old"] == {"forward": "RuntimeError: this card is too old\nand more"}
    assert row["without"]["one way"] == {"forward+backward": "RuntimeError: no way back"}
    assert row["without"]["gone"] == {"all": "absent (ImportError: no gone); to have it: pip install gone"}
    assert row["forward"]["ratio"] == {} and set(row["errors"]) == {"of", "old", "well"}


def test_others_that_compute_another_rule_are_timed_and_not_judged(quick):
    row = measured(TINY._replace(same=False), {"near": Fake(1)})
    assert set(row["forward"]["ms"]) == {"near"} and set(row["errors"]) == {"of"}


def test_a_row_that_breaks_keeps_what_it_had(quick, monkeypatch):
    def broken(*args):
        raise RuntimeError("illegal address")

    monkeypatch.setattr(device, "errors", broken)
    row = measured(TINY, {"well": Fake(1)})
    assert row["failed"] == "RuntimeError: illegal address" and row["forward"]["ms"]["well"]["median"] > 0


def test_turns_go_back_and_forth_and_are_as_long_as_asked():
    order = []

    def timed(name, ms):
        return lambda calls: order.append((name, calls)) or Turn(ms, 0.0)

    turns = clock.in_turn({"slow": timed("slow", 50.0), "quick": timed("quick", 0.5)}, rounds=2, ms=10.0, most=8)
    assert order == [("slow", 2), ("quick", 2), ("slow", 1), ("quick", 8), ("quick", 8), ("slow", 1)]
    assert turns == {"slow": [Turn(50.0, 0.0)] * 2, "quick": [Turn(0.5, 0.0)] * 2}


def test_queued_calls_are_all_made_and_the_last_is_waited_for():
    run, calls = jax.jit(lambda x: x + 1).lower(1.0).compile(), []
    turn = clock.queued(lambda: calls.append(1) or run(1.0), 5)
    assert len(calls) == 5 and 0 < turn.host <= turn.ms


def test_ratios_are_of_the_same_round():
    turns = {"kernel": [1, 2, 4], "chunk": [2, 4, 8], "peer": [3, 6, 12]}
    told = device.times({n: [Turn(ms, 0.1) for ms in some] for n, some in turns.items()}, ["kernel", "chunk"])
    same = {"median": 3.0, "quartiles": [3.0, 3.0]}
    assert told["ratio"]["kernel"] == {"peer": same} and told["ratio"]["chunk"]["peer"]["median"] == 1.5
    assert told["ms"]["peer"] == {"median": 6.0, "quartiles": [4.5, 9.0], "rounds": 3, "host": 0.1}


def test_a_number_that_is_none_becomes_null():
    assert device.rounded(np.nan) is None and device.rounded(np.inf) is None and device.rounded(1.23456) == 1.235


def told(ms, host=0.0):
    return {"median": ms, "quartiles": [ms, ms], "rounds": 20, "host": host}


def ratio(median, low, high):
    return {"median": median, "quartiles": [low, high]}


RESULT = {
    "date": "2030-01-02",
    "device": "some GPU",
    "python": "3.12",
    "jax": "0.11.2",
    "rows": {
        "mesa": {
            "date": "2030-01-01",
            "sizes": {"B": 1, "T": 2},
            "versions": {"fla-core": "0.6.0"},
            "without": {"LaCT": {"all": "absent (no --lact)"}, "kernel": {"forward": "ValueError: x\ny"}},
            "forward": {
                "ms": {"kernel": told(1.5), "fla": told(0.9), "jla": told(1.51), "slow": told(33.0)},
                "ratio": {
                    "kernel": {"fla": ratio(0.6, 0.5, 0.7), "jla": ratio(1.01, 0.99, 1.02), "slow": ratio(22, 21, 23)}
                },
            },
            "forward+backward": {"ms": {"kernel": told(4.0, 3.9)}, "ratio": {"kernel": {}}},
            "errors": {
                "of": {"B": 1},
                "kernel": {"o": {"o": 1e-3}}
                | {f"{scale:g}": {"dq": 2e-3, "dlam": None if scale == 1e-6 else 5e-3} for scale in device.UPSTREAM},
            },
        },
        "lact": {"failed": "RuntimeError: out of memory\nat once"},
    },
}  # made up


def test_the_table_says_where_ours_is_slower_and_what_is_missing():
    lines = list(device.table(RESULT))
    assert lines[0] == "2030-01-02, some GPU, Python 3.12, jax 0.11.2, fla-core 0.6.0"
    found = {line.split("  ")[1].strip(): line for line in lines if line.startswith("  ")}
    assert "mesa: B 1, T 2 (2030-01-01)" in lines
    assert found["fla"].split() == ["fla", "0.9", "0.60,", "ours", "slower"]
    assert found["jla"].split() == ["jla", "1.51", "1.01,", "even"]
    assert found["slow"].split() == ["slow", "33", "22.00"]
    assert "  without LaCT (all): absent (no --lact)" in lines and "  without kernel (forward): ValueError: x" in lines
    assert "  failed: RuntimeError: out of memory" in lines
    (times, errors) = (line.split() for line in lines if line.startswith("  kernel "))
    assert times == ["kernel", "1.5", "4*"]  # starting it took nearly as long
    assert errors == ["kernel", "1.0e-03", "dlam", "5.0e-03", "dlam", "5.0e-03", "dlam", "not", "finite"]


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """As if there were one, and rows that come at once; gives the arguments."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setattr(device, "CASES", {name: device.CASES[name] for name in ("mesa", "delta", "gated delta")})
    asked = {"only": None, "show": False, "peers": False, "lact": None, "resume": False, "out": tmp_path / "d.json"}
    return lambda **changed: argparse.Namespace(**asked | changed)


def rows_of(*rows):
    return lambda *args: iter([dict(row) for row in rows])


def kept(asked):
    return json.loads(asked.out.read_text())["rows"]


def test_each_row_is_in_the_file_as_soon_as_there_is_something_of_it(gpu, monkeypatch, capsys):
    asked, seen = gpu(), []

    def rows(*args):
        yield {"forward": {"ms": {}, "ratio": {}}}
        seen.append(len(kept(asked)))
        if len(seen) == 2:
            raise KeyboardInterrupt
        yield {"forward": {"ms": {}, "ratio": {}}, "seconds": 1.0}

    monkeypatch.setattr(device, "guarded", rows)
    with pytest.raises(KeyboardInterrupt):
        device.run(asked)
    assert seen == [1, 2] and "seconds" in kept(asked)["mesa"] and "seconds" not in kept(asked)["delta"]

    monkeypatch.setattr(device, "guarded", rows_of({"seconds": 2.0}))
    device.run(gpu(resume=True))
    assert [row["seconds"] for row in kept(asked).values()] == [1.0, 2.0, 2.0]
    assert "mesa: kept" in capsys.readouterr().err

    monkeypatch.setattr(device, "guarded", rows_of({"seconds": 3.0}))
    device.run(gpu(only="mesa"))
    assert [row["seconds"] for row in kept(asked).values()] == [3.0, 2.0, 2.0]
    assert list(asked.out.parent.iterdir()) == [asked.out]


def test_a_file_of_another_device_is_not_mixed_with(gpu, monkeypatch):
    asked = gpu()
    asked.out.write_text(json.dumps(clock.device() | {"device": "another", "rows": {}}))
    with pytest.raises(ValueError, match=r"has device another, and here is cpu; name another file as --out"):
        device.run(asked)


def test_show_prints_the_file(gpu, capsys):
    asked = gpu(show=True)
    asked.out.write_text(json.dumps(RESULT))
    device.run(asked)
    assert "ours slower" in capsys.readouterr().out


def test_absent_libraries_are_named_with_how_to_get_them(gpu, monkeypatch, capsys):
    def none(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(peers.importlib, "import_module", none)
    given = []
    monkeypatch.setattr(device, "guarded", lambda *args: given.append(args) or iter([]))
    device.run(gpu(peers=True, only="mesa"))
    ((case, others, absent),) = given
    said = capsys.readouterr().err
    assert set(absent) == set(peers.LIBRARIES) and set(others) == {"fla-core, 30 steps", "fla-core, 15 steps"}
    assert "fla-core is absent (ModuleNotFoundError: No module named 'fla.ops.mesa_net'); to have it: pip" in said
    assert "jax-linear-attention is absent" in said and "LaCT is absent (FileNotFoundError: no --lact)" in said


def test_cases_are_chosen_by_name_or_rule():
    assert device.selected(None) == list(device.CASES)
    assert device.selected("linear, gated osdn") == ["linear", "gated osdn"]
    assert device.selected("lact") == [name for name in device.CASES if name.startswith("lact")]
    with pytest.raises(ValueError, match="--only names 'hawk'; expected some of mesa, linear"):
        device.selected("mesa,hawk")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "--peers"], "--device measures on a GPU, and JAX computes on cpu here\n"),
        (["--peers"], "--peers is for --device; expected both\n"),
        (["--device", "--lact", "x"], "--lact is for --peers; expected both\n"),
        (["rules", "--device"], "--device is no table, and prints no other; expected no rules beside it\n"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, sentence, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2 and capsys.readouterr().err == sentence


# -- how others are called ---------------------------------------------------------------------------------------------


def module(monkeypatch, name, **functions):
    monkeypatch.setitem(sys.modules, name.split(".")[0], SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(**functions))


def test_the_layouts_and_names_of_others(monkeypatch):
    def linear_attention(kind, q, k, v, *, impl, **options):
        assert options.pop("scale") == 1.0 and options.pop("output_final_state") and impl == "mosaic_gpu"
        return kind, q + k + v, options

    module(monkeypatch, "jla.ops", linear_attention=linear_attention)
    both = {"log_decay": "g", "beta": "beta"}
    for rule, kind, gates in [
        ("linear", "simple_gla", {"log_decay": "g"}),
        ("delta", "deltanet", {"beta": "beta"}),
        ("gated delta", "gated_deltanet", both),
    ]:
        _, side = peers.contestants(rule)[peers.JLA]
        assert side.call(1, 2, 3, **gates) == (kind, 6, {name: name for name in gates.values()})

    def chunk_mesa_net(q, k, v, g, beta, lamb, output_final_state, max_CG_iteration):
        return (q, k, v, g, beta, lamb, max_CG_iteration), "kk", "kv"

    module(monkeypatch, "fla.ops.mesa_net", chunk_mesa_net=chunk_mesa_net)
    for steps in (30, 15):
        _, side = peers.contestants("mesa")[f"{peers.FLA}, {steps} steps"]
        given = {"lam": "l", "log_decay": "g", "beta": "b"}
        assert side.call("q", "k", "v", **given) == (("q", "k", "v", "g", "b", "l", steps), ["kk", "kv"])


def test_torch_is_timed_on_the_card_which_sleeps_first(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("record")

        def synchronize(self):
            log.append("wait")

        def elapsed_time(self, other):
            return 12.0

    cuda = SimpleNamespace(Event=Event, synchronize=lambda: log.append("idle"), _sleep=lambda n: log.append("sleep"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    turn = peers.Torch(None).timed(lambda: log.append("run"))
    log.clear()  # the call that tells how long the host takes
    assert turn(3) == Turn(4.0, 0.0) and log == ["idle", "sleep", "record", "run", "run", "run", "record", "wait"]


def test_official_lact_gets_its_names_and_its_file_is_named_as_git_does(tmp_path):
    path = tmp_path / peers.OPERATION
    path.parent.mkdir(parents=True)
    path.write_text("def block_causal_lact_swiglu(): return 7\n")
    operation, version = peers.load(tmp_path)
    assert operation() == 7 and version == "ttt_operation.py, blob 5fd13d1bc258"
    assert importlib.import_module(operation.__module__).block_causal_lact_swiglu is operation  # torch.compile does so

    def record(w0, w1, w2, q, k, v, lr0, lr1, lr2, chunk_size, use_muon):
        assert [w.shape for w in (w0, w1, w2)] == [(2, 5, 4), (2, 4, 5), (2, 5, 4)] and w2[0, 0, 0] == 2
        assert q.shape == k.shape == (2, 3, 4) and [lr[0, 0, 0] for lr in (lr0, lr1, lr2)] == [10, 12, 11]
        return v * chunk_size if use_muon else v

    call = peers.contestants("lact", record, chunk=8, muon=True)[peers.LACT][1].call
    weights = SwiGLU(jnp.ones((2, 1, 5, 4)), jnp.full((2, 1, 5, 4), 2.0), jnp.full((2, 1, 4, 5), 3.0))
    q = np.ones((2, 3, 1, 4))
    o, _ = call(q, q, q, np.broadcast_to([10, 11, 12], (2, 3, 1, 3)), weights)
    assert o.shape == q.shape and o[0, 0, 0, 0] == 8


def test_every_case_has_peers_and_arguments_that_its_rule_takes():
    for case in device.CASES.values():
        assert peers.contestants(case.peers, **case.shared)
        tiny = case._replace(sizes={"B": 1, "T": 3, "H": 1, "D": 4})
        shared = case.shared | ({"chunk": 2} if case.shared else {})

        def run(case=tiny, options=device.FORMS["chunk"] | shared):
            args, do = device.draw(case)
            return args, do, case.rule(**args, **options)[0]

        args, do, o = jax.eval_shape(run)
        assert o.shape == do.shape and o.dtype == jnp.bfloat16 == args["q"].dtype
        assert {x.dtype for n, x in args.items() if n in ("beta", "log_decay", "lr")} <= {jnp.dtype("float32")}
        assert partial(case.rule, **case.exact)
