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
    """One sequence [T, D] through the layer; ``rule`` gets q, k, v [T, K] and beta, gamma [T] of one head."""
    T, H = len(x), layer.heads
    y = silu(short_conv(layer.conv, affine(layer.project, x)))
    q, k, v = (part.reshape(T, H, -1) for part in np.split(y, 3, axis=1))
    q, k = (part / np.linalg.norm(part, axis=-1, keepdims=True) for part in (q, k))
    beta = sigmoid(affine(layer.input_gate, x))
    gamma = np.ones_like(beta) if layer.forget_gate is None else sigmoid(affine(layer.forget_gate, x))
    if layer.negative_decay:
        gamma = 2 * gamma - 1
    gamma = gamma * (1 - (1 - decay_floor) * beta**2)
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


def attention(layer, x):
    """Rotary positions as multiplication by a complex number of length 1."""
    T, H = len(x), layer.heads
    q, k, v = (part.reshape(T, H, -1) for part in np.split(affine(layer.project, x), 3, axis=1))
    half = q.shape[2] // 2
    turn = np.exp(1j * np.arange(T)[:, None] * 10_000.0 ** (-np.arange(half) / half))
    q, k = ((part[..., :half] + 1j * part[..., half:]) * turn[:, None] for part in (q, k))
    o = np.zeros_like(v)
    for t in range(T):
        first = 0 if layer.window is None else max(0, t + 1 - layer.window)
        score = np.einsum("hk,shk->sh", q[t], k[first : t + 1].conj()).real / np.sqrt(2 * half)
        weight = np.exp(score - score.max(0))
        o[t] = np.einsum("sh,shv->hv", weight / weight.sum(0), v[first : t + 1])
    return affine(layer.out, o.reshape(T, -1))
