"""Convolutions with circular padding in NumPy, written from their formula in loops."""

import itertools

import numpy as np


def covariance(gram, shape, kernel):
    """C(G)[(s,p), (t,q)]: the mean over the taps δ of G[(s,p+δ), (t,q+δ)], in loops."""
    (height, width), samples = shape, len(gram) // (shape[0] * shape[1])
    g = gram.reshape(samples, height, width, samples, height, width)
    out = np.zeros_like(g)
    axes = (range(samples), range(height), range(width)) * 2
    taps = list(itertools.product(range(kernel[0]), range(kernel[1])))
    for s, y, x, t, v, u in itertools.product(*axes):
        for i, j in taps:
            dy, dx = i - (kernel[0] - 1) // 2, j - (kernel[1] - 1) // 2
            one = s, (y + dy) % height, (x + dx) % width
            other = t, (v + dy) % height, (u + dx) % width
            out[s, y, x, t, v, u] += g[*one, *other] / len(taps)
    return out.reshape(gram.shape)


def convolved(weights, a):
    """W * a for weights (..., out, in, kh, kw) and a (..., in, samples, height, width)."""
    before = [(size - 1) // 2 for size in weights.shape[-2:]]
    h = 0.0
    for i, j in itertools.product(*map(range, weights.shape[-2:])):
        seen = np.roll(a, (before[0] - i, before[1] - j), axis=(-2, -1))
        h = h + np.einsum("...oi,...isyx->...osyx", weights[..., i, j], seen)
    return h


def grams(h, weights, sigma, norm="batch", skip=0.0, gain=1.0):
    """Gram matrices of all layers, (..., layers, columns, columns); `weights` yields W."""
    found = []
    for w in [*weights, None]:
        x = h
        if norm == "batch":
            axes = (-3, -2, -1)
            centred = h - h.mean(axis=axes, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True))
        a = sigma(x)
        rows = a.reshape(*a.shape[:-3], -1)
        found.append(np.swapaxes(rows, -1, -2) @ rows / rows.shape[-2])
        if w is not None:
            h = skip * x + gain * convolved(w, a)
    return np.stack(found, axis=-3)
