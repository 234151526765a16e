"""The layers once more in NumPy, token by token as the papers describe them, with the parameters of a module."""

import numpy as np

RMS_EPS = 1e-6


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def silu(z):
    return z * sigmoid(z)


def gelu(z):
    """The tanh form."""
    return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def affine(layer, x):
    y = x @ np.asarray(layer.weight)
    return y if layer.bias is None else y + np.asarray(layer.bias)


def rms_norm(norm, x):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + RMS_EPS) * np.asarray(norm.weight)


def short_conv(conv, x):
    """x: [T, C]."""
    w = np.asarray(conv.weight)
    y = np.zeros_like(x)
    for t in range(len(x)):
        for back in range(len(w)):
            if t >= back:
                y[t] += w[-1 - back] * x[t - back]
    return y


def fast_weights(layer, x, rule, *, decay_floor=1.0):
    """One sequence [T, D] through the layer; ``rule`` gets q, k, v [T, K], beta [T] and gamma [T, 1 or K] of a head."""
    T, H = len(x), layer.heads
    y = silu(short_conv(layer.conv, affine(layer.project, x)))
    q, k, v = (part.reshape(T, H, -1) for part in np.split(y, 3, axis=1))
    q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
    beta = sigmoid(affine(layer.input_gate, x))
    gamma = np.ones_like(beta) if layer.forget_gate is None else sigmoid(affine(layer.forget_gate, x))
    gamma = gamma.reshape(T, H, -1)
    if layer.negative_decay:
        gamma = 2 * gamma - 1
    gamma = gamma * (1 - (1 - decay_floor) * beta[..., None] ** 2)
    heads = [rule(q[:, h], k[:, h], v[:, h], beta[:, h], gamma[:, h], h) for h in range(H)]
    return affine(layer.out, np.concatenate([rms_norm(layer.norm, o) for o in heads], axis=1))


def gla(q, k, v, beta, gamma, h):
    S, o = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        S = gamma[t] * S + beta[t] * np.outer(k[t], v[t])
        o.append(q[t] @ S)
    return np.stack(o)


def delta(q, k, v, beta, gamma, h):
    S, o = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        S = gamma[t] * S
        S = S + beta[t] * np.outer(k[t], v[t] - k[t] @ S)
        o.append(q[t] @ S)
    return np.stack(o)


def osdn(layer, x):
    """Emit d * k, then update d (Algorithm 1)."""
    r = np.ones((len(x), layer.heads))
    if layer.retention_gate is not None:
        r = sigmoid(affine(layer.retention_gate, x))
    lo, hi = layer.bounds

    def rule(q, k, v, beta, gamma, h):
        S, d, o = np.zeros((k.shape[1], v.shape[1])), np.ones(k.shape[1]), []
        if layer.start != "ones":
            d = np.asarray(layer.d0[h])
            d = np.clip(d, lo, hi) if layer.start == "projected" else d
        for t in range(len(q)):
            S = gamma[t][:, None] * S
            S = S + beta[t] * np.outer(d * k[t], v[t] - k[t] @ S)
            o.append(q[t] @ S)
            b = beta[t] if layer.beta_aware else 1
            s = k[t] ** 2
            d = np.clip(r[t, h] * d + layer.step_size * b * (1 - b * np.sum(d * s)) / np.sum(s) * s, lo, hi)
        return np.stack(o)

    return fast_weights(layer, x, rule)


def mesa(lam, *, signed_curvature=False):
    """With a signed gamma G takes it as it is, and H its size, or its sign too (Eq. 8 read literally)."""

    def rule(q, k, v, beta, gamma, h):
        G, A, o = np.zeros((k.shape[1], v.shape[1])), np.zeros((k.shape[1],) * 2), []
        for t in range(len(q)):
            G = gamma[t] * G + beta[t] * np.outer(k[t], v[t])
            A = (gamma[t] if signed_curvature else abs(gamma[t])) * A + beta[t] * np.outer(k[t], k[t])
            o.append(np.linalg.solve(A + np.diag(lam[h]), q[t]) @ G)
        return np.stack(o)

    return rule


def hawk(layer, x):
    y = short_conv(layer.conv, affine(layer.enter, x))
    r, i = sigmoid(affine(layer.recurrence_gate, y)), sigmoid(affine(layer.input_gate, y))
    a = sigmoid(np.asarray(layer.retention)) ** (8 * r)
    h, o = np.zeros(y.shape[1]), []
    for t in range(len(x)):
        h = a[t] * h + np.sqrt(1 - a[t] ** 2) * i[t] * y[t]
        o.append(h)
    return affine(layer.out, gelu(affine(layer.gate, x)) * np.stack(o))


def turned(x):
    """Rotary positions of x [T, H, K], as multiplication by a complex number of length 1."""
    half = x.shape[2] // 2
    turn = np.exp(1j * np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half))
    return (x[..., :half] + 1j * x[..., half:]) * turn[:, None]


def windowed(q, k, v, window):
    """q, k, v: [T, H, K]."""
    q, k, size = turned(q), turned(k), np.sqrt(q.shape[2])
    o = np.zeros_like(v)
    for t in range(len(q)):
        first = 0 if window is None else max(0, t + 1 - window)
        score = np.einsum("hk,shk->sh", q[t], k[first : t + 1].conj()).real / size
        weight = np.exp(score - score.max(0))
        o[t] = np.einsum("sh,shv->hv", weight / weight.sum(0), v[first : t + 1])
    return o


def attention(layer, x):
    q, k, v = (part.reshape(len(x), layer.heads, -1) for part in np.split(affine(layer.project, x), 3, axis=1))
    return affine(layer.out, windowed(q, k, v, layer.window).reshape(len(x), -1))


def lact(layer, x):
    T, H, A = len(x), layer.heads, layer.attention_heads
    q, k, v = np.split(affine(layer.project, x), 3, axis=1)
    near = windowed(*(part.reshape(T, A, -1) for part in (q, k, v)), layer.window)
    sides = []
    for part, scale, shift in zip((q, k), np.asarray(layer.scale), np.asarray(layer.shift), strict=True):
        part = silu(part * scale + shift).reshape(T, H, -1)
        part = turned((part / np.linalg.norm(part, axis=-1, keepdims=True)).reshape(T, A, -1))
        sides.append(np.concatenate([part.real, part.imag], axis=-1).reshape(T, H, -1))
    q, k, v = *sides, silu(v).reshape(T, H, -1)
    rates = np.log(1 + np.exp(affine(layer.rates, x))).reshape(T, H, 3)
    momentum = None if layer.momentum_gate is None else sigmoid(affine(layer.momentum_gate, x))
    far = np.zeros_like(v)
    for h in range(H):
        W = [start(w, h) for w in layer.weights]
        buffer = [np.zeros_like(w) for w in W]
        lengths = [np.linalg.norm(w, axis=1, keepdims=True) for w in W]
        for first in range(0, T, layer.chunk):
            chunk = range(first, min(first + layer.chunk, T))
            gate, up, out = W
            step = [np.zeros_like(w) for w in W]
            for t in chunk:
                far[t, h] = out @ (silu(gate @ q[t, h]) * (up @ q[t, h]))
                a, u, e = gate @ k[t, h], up @ k[t, h], out.T @ v[t, h]
                slope = sigmoid(a) * (1 + a * (1 - sigmoid(a)))
                step[0] += rates[t, h, 0] * np.outer(e * u * slope, k[t, h])
                step[1] += rates[t, h, 1] * np.outer(e * silu(a), k[t, h])
                step[2] += rates[t, h, 2] * np.outer(v[t, h], silu(a) * u)
            if momentum is not None:
                step = buffer = [momentum[chunk, h].mean() * M + d for M, d in zip(buffer, step, strict=True)]
            if layer.muon is not None:
                step = [orthogonal(d, layer.muon) for d in step]
            W = [w + d for w, d in zip(W, step, strict=True)]
            W = [w / (np.linalg.norm(w, axis=1, keepdims=True) + 1e-5) * n for w, n in zip(W, lengths, strict=True)]
    gate = silu(affine(layer.gate, x))[..., None]
    return affine(layer.out, near.reshape(T, -1) + (gate * rms_norm(layer.norm, far)).reshape(T, -1))


def start(w, h):
    if hasattr(w, "left"):
        w = np.asarray(w.left) @ np.asarray(w.right) + 0.5 * np.eye(w.left.shape[1], w.right.shape[2])
    return np.asarray(w)[h]


def orthogonal(G, steps):
    X = G / (np.linalg.norm(G) + 1e-7)
    for a, b, c in steps:
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X
