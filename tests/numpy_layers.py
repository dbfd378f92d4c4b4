"""Layers of every norm and order in NumPy, written from their formulas."""

import numpy as np


def normalised(h, norm, eps=0.0):
    """N(h) for h of shape (..., width, batch)."""
    if norm == "none":
        return h
    if norm.startswith("batch"):
        axis, parts = -1, h[..., None, :, :]
    else:
        groups = int(norm[6:-1]) if norm.startswith("group") else 1
        axis, parts = -2, h.reshape(*h.shape[:-2], groups, -1, h.shape[-1])
    if norm not in ("batch-uncentred", "rms"):
        parts = parts - parts.mean(axis=axis, keepdims=True)
    return (parts / np.sqrt((parts**2).mean(axis=axis, keepdims=True) + eps)).reshape(h.shape)


def activations(h, layers, sigma, *, norm, order, skip=0.0, gain=1.0, eps=0.0):
    """The activations a of all layers; `layers` yields W, of variance 1/width, and b."""
    found = []
    for weights, bias in [*layers, (None, None)]:
        if order == "norm-activation":
            state = normalised(h, norm, eps)
            a = sigma(state)
        elif order == "activation-norm":
            state, a = h, normalised(sigma(h), norm, eps)
        else:
            state, a = h, sigma(normalised(h, norm, eps))
        found.append(a)
        if weights is not None:
            h = skip * state + gain * (weights @ a) + bias[..., None]
    return found


def grams(chain, start, depth, chains, rng, sigma):
    """Gram matrices of layers 0 to depth of networks with Gaussian weights and biases."""
    d, shape = chain.width, (chains, chain.width, chain.width)

    def layers():
        for _ in range(depth):
            bias = np.sqrt(chain.bias_variance) * rng.standard_normal(shape[:2])
            yield rng.standard_normal(shape) / np.sqrt(d), bias

    h = np.broadcast_to(start, (chains, *np.shape(start)[-2:]))
    options = {name: getattr(chain, name) for name in ("norm", "order", "skip", "gain", "eps")}
    found = activations(h, layers(), sigma, **options)
    return np.stack([np.swapaxes(a, -1, -2) @ a / d for a in found], axis=1)
