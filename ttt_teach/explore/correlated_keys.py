"""Notebook 02: what the rules read back when keys overlap, in pictures; and the judges of its exercises."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from jaxtyping import Float

from ttt_teach.explore.picture import Picture
from ttt_teach.explore.style import COLORS, figure_axes
from ttt_teach.rules.delta import delta
from ttt_teach.rules.linear import linear
from ttt_teach.tasks import minilm_qkv, overlapping_keys, two_keys, unit

LINEAR, DELTA, MESA = RULES = ("linear attention", "delta rule", "Mesa")
LOOKS = {
    LINEAR: {"color": COLORS["blue"], "marker": "s", "linestyle": "-"},
    DELTA: {"color": COLORS["vermilion"], "marker": "^", "linestyle": "--"},
    MESA: {"color": COLORS["green"], "marker": "o", "linestyle": "-."},
}
GREY = "#707070"
FLOOR = 0.25  # the least lambda that MesaNet allows (App. G.5: 0.25 + softplus)

# --- memories


class Stored(NamedTuple):
    """The pairs, and what the rules hold after the last one. See :func:`store`."""

    k: Float[np.ndarray, "B T H K"]
    v: Float[np.ndarray, "B T H V"]
    delta: Float[np.ndarray, "B H K V"]
    G: Float[np.ndarray, "B H K V"]  # sum of beta k v': all of linear attention, half of Mesa
    H: Float[np.ndarray, "B H K K"]  # sum of beta k k'

    def maps(self, lam):
        """S = Phi' by rule, ``[B, H, K, V]``; that of Mesa solved exactly."""
        return {LINEAR: self.G, DELTA: self.delta, MESA: ridge(self.G, self.H, lam)}

    def head(self, h):
        """The same, one head only."""
        return Stored(*(x[:, :, h : h + 1] for x in self[:2]), *(x[:, h : h + 1] for x in self[2:]))


def store(k, v, beta=1.0):
    """Write every pair once, in order. k ``[B, T, H, K]`` and v ``[B, T, H, V]``, or both without B."""
    k, v = (np.asarray(x, float) for x in (k, v))
    if k.ndim == 3:
        k, v = k[None], v[None]
    return Stored(k, v, *map(np.asarray, _written(k, v, np.full(k.shape[:3], float(beta)))))


@jax.jit
def _written(k, v, beta):
    # Both sums of Mesa are linear attention, with values v and with values k: one scan for the two.
    _, sums = linear(k, k, beta[..., None] * jnp.concatenate([v, k], -1))
    G, H = jnp.split(sums, [v.shape[-1]], -1)
    return delta(k, k, v, beta)[1], G, H


_delta = jax.jit(delta)


def ridge(G, H, lam):
    """(H + lam I)^-1 G, lam a number or ``[...]``."""
    return np.linalg.solve(H + np.multiply.outer(lam, np.eye(H.shape[-1])), G)


def read(S, q):
    """S'q for every token, ``[B, T, H, V]``; S ``[B, H, K, V]``."""
    return np.einsum("bhkv,bthk->bthv", S, q)


def error(got, wanted, axis=None):
    """|got - wanted| / |wanted|, the norms over ``axis``."""
    return np.sqrt(((got - wanted) ** 2).sum(axis) / (wanted**2).sum(axis))


def best_scaled(got, wanted, axis=None):
    """got times the number that brings it closest to wanted, <got, wanted> / <got, got>."""
    return got * ((got * wanted).sum(axis, keepdims=True) / (got**2).sum(axis, keepdims=True))


# --- two keys


def two_key_maps(angle, lam):
    """Phi ``[..., 2]`` by rule after writing (k_1, 1), then (k_2, 0), with steps of 1 (E02.6, E02.9, E02.14)."""
    angle, lam = np.broadcast_arrays(np.deg2rad(angle), lam)
    c, s = np.cos(angle), np.sin(angle)
    maps = {
        LINEAR: (np.ones_like(c), np.zeros_like(c)),
        DELTA: (s**2, -c * s),
        MESA: np.stack([s**2 + lam, -c * s]) / (s**2 + 2 * lam + lam**2),
    }
    return {rule: np.stack(numbers, -1) for rule, numbers in maps.items()}


def two_key_reads(angle, lam):
    """What each rule reads under k_1 and k_2, ``[..., 2]``."""
    c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    maps = two_key_maps(angle, lam)
    return {rule: np.stack([m[..., 0], c * m[..., 0] + s * m[..., 1]], -1) for rule, m in maps.items()}


def two_keys_picture(angle, lam):
    """F02a: the maps, and the lines of maps that read a pair back right; the reads against the angle."""
    fig, plane, (first, second) = _beside(2, figsize=(7.2, 4.6), top=0.82, hspace=0.3, wspace=0.2)
    _draw_plane(plane, angle, x=(-1.3, 1.5), y=(-1.9, 1.9))
    path = two_key_maps(angle, np.geomspace(1e-3, 1e3, 25))[MESA]
    plane.plot(*path.T, color=LOOKS[MESA]["color"], linewidth=1, linestyle=":", label="Mesa, every lambda")
    for rule, (x, y) in two_key_maps(angle, lam).items():
        _mark(plane, rule, x, y)
    now = two_key_reads(angle, lam)
    _draw_reads(first, 0, angle, lam, now)
    _draw_reads(second, 1, angle, lam, now)
    first.set_xticklabels(())
    second.set_xlabel("angle between the keys, degrees")
    handles = [plane.plot([], [], **LOOKS[rule], label=rule)[0] for rule in RULES]
    fig.legend(handles=handles, loc="upper center", ncols=3, frameon=False)
    reads = ", ".join(f"{_named(rule)} reads {_number(a)} and {_number(b)}" for rule, (a, b) in now.items())
    words = f"At {angle:g} degrees and lambda {lam:g}, where 1 and 0 are stored, {reads}. {_crossing(angle)}"
    return Picture(fig, words, "F02a")


def _beside(rows, *, figsize, **room):
    """A figure, its axes at the left, and a column of axes at the right."""
    fig, axes = figure_axes(1, 1 + rows, figsize=figsize)
    grid = fig.add_gridspec(rows, 2, **{"left": 0.07, "right": 0.96, "bottom": 0.11} | room)
    for ax, place in zip(axes, [grid[:, 0], *(grid[row, 1] for row in range(rows))], strict=True):
        ax.set_subplotspec(place)
    return fig, axes[0], axes[1:]


def _draw_reads(axes, pair, angle, lam, now):
    angles, stored = 90 - 90 * np.cos(np.linspace(0, np.pi, 37)), 1 - pair  # dense where the keys are nearly equal
    axes.axhline(stored, color=GREY, linewidth=0.8)
    axes.axvline(angle, color=GREY, linewidth=0.8)
    for rule, reads in two_key_reads(angles, lam).items():
        look = LOOKS[rule]
        axes.plot(angles, reads[:, pair], color=look["color"], linestyle=look["linestyle"], label=rule)
        axes.plot(angle, now[rule][pair], color=look["color"], marker=look["marker"], clip_on=False)
    axes.set(xlim=(0, 180), xticks=range(0, 181, 45), ylim=(-0.05 - 1.05 * pair, 1.1), yticks=range(-pair, 2))
    axes.set_title(f"read under k{pair + 1}, stored: {stored}")


def _crossing(angle):
    if angle % 180 == 0:
        return "The two lines are parallel: no map reads both pairs back."
    slope = -1 / np.tan(np.deg2rad(angle))
    return f"The lines cross at (1, {_number(slope)}), the one map that reads both back."


def _draw_plane(axes, angle, x, y):
    """The two keys, and for each the line of the maps that read it back right."""
    c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    axes.set(xlim=x, ylim=y, aspect="equal", xticks=(-1, 0, 1), yticks=np.arange(np.ceil(y[0]), y[1]))
    axes.set_title("maps: solid line k1 right,\ndashed line k2 right")
    far = 4 * np.array([-1, 1])
    axes.plot([1, 1], far, color=COLORS["black"], linewidth=1, linestyle="-", label="reads k1 as 1")
    axes.plot(-s * far, c * far, color=COLORS["black"], linewidth=1, linestyle="--", label="reads k2 as 0")
    centred = {"textcoords": "offset points", "ha": "center", "va": "center", "color": GREY}
    for name, (a, b), side in (("k1", (1, 0), -9), ("k2", (c, s), 9)):
        axes.annotate("", (a, b), (0, 0), arrowprops={"arrowstyle": "->", "color": GREY, "linewidth": 1.4})
        axes.annotate(name, (0.6 * a, 0.6 * b), (-side * b, side * a), **centred)


def _mark(axes, rule, x, y):
    """A marker at the map; at the edge, with words, if the map lies outside."""
    bottom, top = axes.get_ylim()
    at = np.clip(y, bottom + 0.1, top - 0.1)
    look = LOOKS[rule]
    axes.plot(x, at, color=look["color"], marker=look["marker"], markersize=8, linestyle="none", label=rule)
    if at != y:
        beside = {"textcoords": "offset points", "ha": "right", "va": "bottom" if y < 0 else "top", "fontsize": 9}
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.annotate(f"{rule} is beyond,\nat {_number(y)}", (x, at), (-8, 0), bbox=ground, **beside)


def passes_picture(angle):
    """F02b: the delta rule goes over the same two pairs again and again."""
    passes = np.arange(1, 9)
    k, v, beta = (np.tile(x, (2, len(passes)) + (1,) * (x.ndim - 2)) for x in two_keys(angle))
    q = np.broadcast_to(np.eye(2)[:, None, None], k.shape)  # a map answers (1, 0) and (0, 1) with its numbers
    maps = np.asarray(_delta(q, k, v, beta)[0])[:, :, 0, 0].T
    read_k1, left = maps[1::2, 0], np.cos(np.deg2rad(angle)) ** 2
    room = {"left": 0.07, "right": 0.96, "top": 0.84, "wspace": 0.25, "width_ratios": (1, 1.2)}
    fig, (plane, miss) = figure_axes(1, 2, figsize=(7.2, 3.6), gridspec_kw=room)
    _draw_plane(plane, angle, x=(-1.2, 1.35), y=(-1.95, 1.1))
    look = {"color": LOOKS[DELTA]["color"], "marker": "^", "label": DELTA}
    plane.plot(*np.concatenate([[[0, 0]], maps]).T, **look, markersize=5, linestyle="-", linewidth=1)
    law = {"color": COLORS["black"], "linestyle": ":", "label": "cos² to the power of the pass"}
    miss.semilogy(passes, left**passes, **law)
    miss.semilogy(passes, 1 - read_k1, **look, linestyle="none")
    miss.set(xlabel="passes over both pairs", xticks=(1, 2, 4, 6, 8), ylim=(1e-5, 1.5), yticks=(1e-4, 1e-2, 1))
    miss.set_title("what the read under k1 misses")
    miss.legend(frameon=False, loc="lower left")
    words = (
        f"At {angle:g} degrees the delta rule reads {_number(read_k1[0])} instead of 1 under k1 after one pass "
        f"and {_number(read_k1[-1])} after {len(passes)}: each pass leaves {_number(left)} of the error."
    )
    return Picture(fig, words, "F02b")


# --- many keys

WIDTH, MOST, SHOWN = 16, 48, 20  # key width, most pairs, pairs in the read matrices


class _Capacity(NamedTuple):
    """All of F02c that does not depend on lambda."""

    cosine: float  # mean of two keys
    additive: Float[np.ndarray, " MOST"]  # mean squared error of linear attention, by the number of pairs
    scaled: Float[np.ndarray, " MOST"]  # the same at its best scale
    corrected: Float[np.ndarray, " MOST"]  # the same of the delta rule
    spectrum: Float[np.ndarray, "sets MOST WIDTH"]  # eigenvalues of H
    gram: Float[np.ndarray, "SHOWN SHOWN"]  # the read matrix of linear attention
    delta: Float[np.ndarray, "SHOWN SHOWN"]  # the read matrix of the delta rule


@lru_cache
def _capacity(coherence, sets=4):
    k = overlapping_keys(jax.random.key(7), sets, MOST, WIDTH, coherence)
    gram = np.einsum("aihk,ajhk->aij", k, k)
    pairs = np.arange(1, MOST + 1)
    square = (gram**2).cumsum(1).cumsum(2)[:, pairs - 1, pairs - 1]  # |R|^2 of linear attention
    R = _read_matrices(k)
    miss = ((R - np.eye(MOST)) ** 2 * np.tri(MOST)[:, :, None]).sum((2, 3)) / pairs
    H = np.einsum("athk,athl->atkl", k, k).cumsum(1)
    return _Capacity(
        (gram.sum((1, 2)).mean() / MOST - 1) / (MOST - 1),
        *(squares.mean(0) for squares in (square / pairs - 1, 1 - pairs / square, miss)),
        np.linalg.eigvalsh(H),
        gram[0, :SHOWN, :SHOWN],
        R[0, SHOWN - 1, :SHOWN, :SHOWN],
    )


def _read_matrices(k):
    """Those of the delta rule after every write, ``[sets, T, T, T]``: each key is asked for all along."""
    sets, T, _, K = k.shape
    q = np.repeat(k.reshape(-1, 1, 1, K), T, 1)
    v = np.broadcast_to(np.eye(T)[None, :, None], (sets * T, T, 1, T))
    o = _delta(q, np.repeat(k, T, 0), v, np.ones(q.shape[:3]))[0]
    return np.asarray(o).reshape(sets, T, T, T).transpose(0, 2, 1, 3)


def capacity_picture(coherence, lam):
    """F02c: the error of reading back against the number of pairs; beside it the read matrices."""
    known, pairs = _capacity(coherence), np.arange(1, MOST + 1)
    unsolved = (lam / (known.spectrum + lam)) ** 2
    squares = {
        LINEAR: known.additive,
        f"{LINEAR} at its best scale": known.scaled,
        DELTA: known.corrected,
        MESA: ((unsolved.sum(-1) + pairs - WIDTH) / pairs).mean(0),
    }
    errors = {rule: np.sqrt(np.maximum(square, 0)) for rule, square in squares.items()}
    floor = np.sqrt(np.maximum(1 - WIDTH / pairs, 0))
    room = {"top": 0.84, "hspace": 0.3, "wspace": 0.08, "width_ratios": (3, 1)}
    fig, curve, images = _beside(3, figsize=(7.2, 4.8), **room)
    curve.fill_between(pairs[WIDTH - 1 :: 2], floor[WIDTH - 1 :: 2], color="#DDDDDD", label="no linear memory")
    curve.annotate("no linear memory\ngets here", (38, 0.25), ha="center", color=GREY)
    curve.axhline(1, color=GREY, linewidth=0.8)
    for rule, by_pairs in errors.items():
        look = LOOKS.get(rule, {"color": LOOKS[LINEAR]["color"], "linestyle": ":"})
        curve.plot(pairs, by_pairs, **look, markevery=8, markersize=5, label=rule)
    curve.set(xlim=(1, MOST), ylim=(0, 1.6), xticks=(1, 16, 32, 48), yticks=(0, 0.5, 1, 1.5))
    curve.set(xlabel=f"pairs stored, key width {WIDTH}", title="error of reading back; 1 is silence")
    fig.legend(handles=curve.lines[1:], loc="upper center", ncols=4, frameon=False)
    matrices = (known.gram, known.delta, ridge(known.gram, known.gram, lam))
    few_colours = matplotlib.colormaps["PuOr"].resampled(15)  # a third of the bytes of all colours
    for axes, rule, matrix in zip(images, RULES, matrices, strict=True):
        axes.imshow(matrix, cmap=few_colours, vmin=-1, vmax=1, interpolation="none")
        axes.set(xticks=(), yticks=(), title=rule)
    at = 2 * WIDTH - 1
    missed = ", ".join(f"{_named(rule)} by {_number(by_pairs[at])}" for rule, by_pairs in errors.items())
    words = (
        f"With {pairs[at]} pairs, keys of width {WIDTH}, a mean cosine of {_number(known.cosine)} and lambda "
        f"{lam:g}, the reads miss, in units of the values: {missed}; no linear memory can miss by less than "
        f"{_number(floor[at])}."
    )
    return Picture(fig, words, "F02c")


@lru_cache
def ages(step, seed=0, K=WIDTH, T=128, sets=32):
    """Mean squared error ``[T]`` of the delta rule by age: random keys, uncorrelated values of size 1."""
    k = overlapping_keys(jax.random.key(seed), sets, T, K, 0)
    one_hot = np.broadcast_to(np.eye(T)[None, :, None], (sets, T, 1, T))
    miss = read(store(k, one_hot, step).delta, k) - one_hot
    return (miss**2).sum((2, 3)).mean(0)[::-1]


def age_law(step, n, K=WIDTH):
    """What :func:`ages` is when many pairs are stored (E02.27)."""
    return 1 + step / (2 - step) - 2 * step * (1 - step / K) ** n


def age_picture(step):
    """F02d: how well the delta rule reads a pair back, by the number of writes since."""
    squares, n = ages(step), np.arange(96)
    T = len(squares)
    fig, axes = figure_axes(figsize=(6.4, 3.4))
    axes.axhline(1, color=GREY, linewidth=0.8)
    floor = np.sqrt(1 - WIDTH / T)
    axes.axhline(floor, color=LOOKS[MESA]["color"], linestyle="-.", label="Mesa, lambda to 0, any age")
    axes.plot(n[::2], np.sqrt(age_law(step, n[::2])), color=COLORS["black"], linestyle=":", label="the law")
    look = LOOKS[DELTA] | {"linestyle": "none"}
    axes.plot(n[::5], np.sqrt(squares[n[::5]]), **look, markersize=4, label=DELTA)
    axes.set(xlim=(-1, len(n)), ylim=(0, 1.5), yticks=(0, 0.5, 1, 1.5))
    axes.set_xlabel("age: writes since the pair was stored")
    axes.set_title(f"error of reading {T} pairs back, key width {WIDTH}; 1 is silence")
    axes.legend(frameon=False, loc="lower right")
    span = np.log(2 * (2 - step)) / -np.log(1 - step / WIDTH)  # E02.28
    words = (
        f"With a step of {step:g} the delta rule misses the last pair by {_number(np.sqrt(squares[0]))} of its "
        f"size and, by the law, is worse than silence once {span:.1f} more are written; over all {T} pairs it "
        f"misses by {_number(np.sqrt(squares.mean()))}, Mesa by {_number(floor)}."
    )
    return Picture(fig, words, "F02d")


# --- real keys


def real_keys_picture(stored, head, lam):
    """F02e: a head reads all its keys back. Errors over all tokens and by age, in units of its values.

    stored: from :func:`store`; its first sequence is drawn. Linear attention is read at its best scale.
    """
    one = stored.head(head)
    wanted = one.v[0, :, 0]
    reads = {rule: read(S, one.k)[0, :, 0] for rule, S in one.maps(lam).items()}
    reads[LINEAR] = best_scaled(reads[LINEAR], wanted)
    size = (wanted**2).sum(-1).mean()
    squares = {rule: ((got - wanted) ** 2).sum(-1) / size for rule, got in reads.items()}
    overall = {rule: np.sqrt(square.mean()) for rule, square in squares.items()}
    firsts, bins = _age_bins(len(wanted))
    by_age = {rule: np.sqrt([square[bins == b].mean() for b in range(len(firsts))]) for rule, square in squares.items()}
    room = {"left": 0.07, "right": 0.96, "top": 0.82, "bottom": 0.15, "wspace": 0.1, "width_ratios": (1, 4)}
    fig, (bars, curve) = figure_axes(1, 2, figsize=(7.2, 3.7), gridspec_kw=room)
    for rule, look in LOOKS.items():
        bars.bar(rule, overall[rule], color=look["color"], label=rule)
        curve.plot(by_age[rule], **look, markersize=5, label=rule)
    top = 1.05 * max(1.5, *overall.values(), *np.concatenate(list(by_age.values())))
    for axes in (bars, curve):
        axes.axhline(1, color=GREY, linewidth=0.8)
        axes.set_ylim(0, top)
        axes.locator_params(axis="y", nbins=4)
    bars.set(xticks=(), title="all tokens")
    curve.set(xticks=range(len(firsts)), xticklabels=firsts, yticklabels=(), title="by age; 1 is silence")
    curve.set_xlabel("age: writes since the token, from here to the next mark")
    fig.legend(handles=curve.lines[:3], loc="upper center", ncols=3, frameon=False)
    missed = ", ".join(f"{_named(rule)} by {_number(miss)}" for rule, miss in overall.items())
    words = (
        f"Head {head}, lambda {lam:g}: the reads of {len(wanted)} stored pairs miss, in units of the values: "
        f"{missed} (linear attention at its best scale)."
    )
    return Picture(fig, words, "F02e")


def _age_bins(T):
    """First ages 0, 1, 3, 7, ... of bins that double in width, none of them part full, and each token's bin."""
    age = T - 1 - np.arange(T)
    bins = np.floor(np.log2(age + 1)).astype(int).clip(max=max(0, int(np.log2(T + 1)) - 1))
    return 2 ** np.arange(bins.max() + 1) - 1, bins


@lru_cache
def first_copy(layer):
    """From a text that stands there twice: its first copy, stored, and the keys of the second ``[1, 255, H, K]``."""
    tokens = minilm_qkv("twice", layer)
    first, second = slice(1, 256), slice(256, 511)  # between the start mark and the end mark
    keys = unit(tokens.k.astype(float))
    return store(keys[first], tokens.v[first]), keys[None, second]


def second_copy_picture(layer, head):
    """F02f: a memory of the first copy of a text, asked with its own keys and with those of the second."""
    stored, moved = first_copy(layer)
    one, lams = stored.head(head), np.geomspace(1e-2, 1e2, 25)
    asked = {"own keys": one.k, "keys of the second copy": moved[:, :, head : head + 1]}
    mesa = ridge(one.G, one.H, lams[:, None, None])[:, 0]
    fig, axes = figure_axes(figsize=(6.4, 3.8), gridspec_kw={"top": 0.78})
    axes.axvline(FLOOR, color=GREY, linewidth=0.8)
    best = []
    for (whose, q), dash in zip(asked.items(), ("-", "--"), strict=True):
        miss = error(np.einsum("lhkv,bthk->lthv", mesa, q), one.v, (1, 2, 3))
        least = np.argmin(miss)
        best += [f"{lams[least]:.3g} (error {_number(miss[least])})"]
        axes.semilogx(lams, miss, color=LOOKS[MESA]["color"], linestyle=dash, label=f"Mesa, {whose}")
        axes.plot(lams[least], miss[least], color=LOOKS[MESA]["color"], marker="o")
        steady = error(read(one.delta, q), one.v)
        line = {"color": LOOKS[DELTA]["color"], "linestyle": dash, "linewidth": 1}
        axes.axhline(steady, **line, label=f"{DELTA}, {whose}")
    axes.set(ylim=(0, 1.5), yticks=(0, 0.5, 1, 1.5))
    axes.set_xlabel(f"lambda; grey: {FLOOR:g}, the least that MesaNet allows")
    fig.suptitle("error of reading the first copy back", fontsize=11)
    fig.legend(loc="upper center", bbox_to_anchor=(0.5, 0.94), ncols=2, frameon=False)
    cosine = np.median((one.k * asked["keys of the second copy"]).sum(-1))
    words = (
        f"Layer {layer}, head {head}: of the lambdas drawn, {best[0]} reads the first copy best with its own "
        f"keys and {best[1]} with the keys of the second copy, whose median cosine with the first is "
        f"{_number(cosine)}."
    )
    return Picture(fig, words, "F02f")


# --- exercises: what is wrong with an attempt, as a counterexample, or None


def judge_swapped(attempt):
    """02.1: ``attempt(angle)`` gives the reads under k_1 and k_2 once (k_2, 0), then (k_1, 1) is written."""
    for angle in (60, 30, 135):
        k, v, beta = two_keys(angle, swapped=True)
        truth = k[0, ::-1, 0] @ np.asarray(_delta(k, k, v, beta)[1])[0, 0, :, 0]
        got = np.asarray(attempt(angle), float)
        if got.shape != (2,):
            return f"at {angle} degrees your answer has shape {list(got.shape)}; expected two numbers"
        if not np.allclose(got, truth, atol=1e-3):
            return f"at {angle} degrees you read {_pair(got)}; the rule, run, reads {_pair(truth)}"
    return None


def judge_step(attempt):
    """02.2: ``attempt(angle, most)`` gives the least step that leaves the new pair at most ``most`` wrong."""
    for angle, most in ((45, 0.2), (30, 0.5), (80, 0.3), (60, 0)):
        step = float(attempt(angle, most))
        case = f"at {angle} degrees with at most {most:g} your step {_number(step)}"
        if not 0 <= step <= 1:
            return f"{case} is not between 0 and 1"
        k, v, _ = two_keys(angle)
        S = np.asarray(_delta(k, k, v, np.array([[[1.0], [step]]]))[1])
        old, new = np.abs(read(S, k) - v)[0, :, 0, 0]
        if new > most + 1e-9:
            return f"{case} leaves the new pair wrong by {_number(new)}"
        if step > 1e-9 and new < most - 1e-9:
            return (
                f"{case} damages the old pair by {_number(old)}, though a smaller one would do: it leaves the new "
                f"pair wrong by {_number(new)}"
            )
    return None


def judge_mesa(attempt):
    """02.3: ``attempt(k, v, lam)``, k ``[T, K]`` and v ``[T]``, gives the map ``[K]`` with the least ridge loss."""
    two, three = two_keys(45).k[0, :, 0], unit(np.array([[1.0, 2, 0], [0, 1, 1], [1, 1, 1]]))
    for k, v, lam in ((two, [1, 0], 0.25), (two, [2, -1], 0.001), (three, [0, 1, 2], 0.5)):
        v = np.array(v, float)
        got = np.asarray(attempt(k, v, lam), float)
        case = f"with {len(v)} keys, values {_pair(v)} and lambda {lam:g} your map"
        if got.shape != k.shape[1:]:
            return f"{case} has shape {list(got.shape)}; expected {list(k.shape[1:])}"
        slope = lam * got - (v - k @ got) @ k
        if not np.abs(slope).max() < 1e-9:
            return f"{case} {_pair(got)} is no minimum: the slope of the loss there is {_pair(slope)}"
    return None


# --- words


def _named(rule):
    return f"the {rule}" if rule == DELTA else rule


def _number(x):
    """Three decimals at most, and no minus sign before a zero."""
    return f"{round(float(x), 3) + 0.0:g}"


def _pair(numbers):
    return f"({', '.join(map(_number, numbers))})"
