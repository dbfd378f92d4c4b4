"""Wide random networks in NumPy, for pairs of inputs: the formula, drawn row by row."""

import numpy as np

FALSE_ALARM = 1e-6


def normalized(h, norm, groups=4):
    """Normalize each column over the features, or over groups of them."""
    if norm == "none":
        return h
    x = h.reshape(groups if norm == "group" else 1, -1, h.shape[1])
    if norm != "rms":
        x = x - x.mean(axis=1, keepdims=True)
    return (x / np.sqrt(np.mean(x**2, axis=1, keepdims=True))).reshape(h.shape)


def branch(h, activation, norm, order):
    """Return what W multiplies."""
    if order == "activation-norm":
        return normalized(activation(h), norm)
    return activation(normalized(h, norm))


def pair(width, variance, correlation, generator):
    """Return normal pre-activations of two inputs, with exactly this Gram matrix."""
    z, _ = np.linalg.qr(generator.standard_normal((width, 2)))
    root = np.array([[1.0, correlation], [0.0, np.sqrt(1.0 - correlation**2)]])
    return np.sqrt(variance * width) * z @ root


def forward(
    h, depth, activation, generator, *, weight_variance=1.0, bias_variance=0.0, norm="none",
    order="norm-activation", skip=0.0,
):  # fmt: skip
    """Return the Gram matrices of h over depth, (depth + 1, 2, 2).

    Given its input a, the rows of W a + b are i.i.d. normal with covariance σ_w² aᵀa/width + σ_b².
    So no weights are drawn, and the law is that of a network with weights.
    """
    width, grams = len(h), [h.T @ h / len(h)]
    for _ in range(depth):
        a = branch(h, activation, norm, order)
        covariance = weight_variance * (a.T @ a) / width + bias_variance
        # The Cholesky factor by hand: two columns, possibly equal.
        first = np.sqrt(covariance[0, 0])
        second = covariance[0, 1] / first
        rest = np.sqrt(max(covariance[1, 1] - second**2, 0.0))
        z = generator.standard_normal(h.shape)
        fresh = np.stack([first * z[:, 0], second * z[:, 0] + rest * z[:, 1]], axis=1)
        kept = normalized(h, norm) if order == "norm-activation" else h
        h = skip * kept + fresh
        grams.append(h.T @ h / width)
    return np.array(grams)


def backward(
    h, depth, activation, slope, generator, *, weight_variance=1.0, bias_variance=0.0,
    norm="none", order="norm-activation", skip=0.0,
):  # fmt: skip
    """Return log ‖∂L/∂h_0‖² − log ‖∂L/∂h_depth‖² for a random linear L, with drawn weights.

    h is one input, (width, 1).  Norms are "none", "rms" and "layer".
    """
    width, layers = len(h), []
    for _ in range(depth):
        W = generator.standard_normal((width, width)) * np.sqrt(weight_variance / width)
        b = generator.standard_normal((width, 1)) * np.sqrt(bias_variance)
        layers.append((h, W))
        kept = normalized(h, norm) if order == "norm-activation" else h
        h = skip * kept + W @ branch(h, activation, norm, order) + b
    delta = generator.standard_normal((width, 1))
    first = np.sum(delta**2)

    def through_norm(y, g):
        if norm == "none":
            return g
        centred = y - y.mean() if norm == "layer" else y
        s = np.sqrt(np.mean(centred**2))
        x = centred / s
        g = g - g.mean() if norm == "layer" else g
        return (g - x * np.mean(g * x)) / s

    for h, W in reversed(layers):
        back = W.T @ delta
        if order == "activation-norm":
            delta = skip * delta + slope(h) * through_norm(activation(h), back)
        elif order == "pre-activation":
            delta = skip * delta + through_norm(h, slope(normalized(h, norm)) * back)
        else:
            delta = through_norm(h, skip * delta + slope(normalized(h, norm)) * back)
    return np.log(np.sum(delta**2) / first)


def correlation(gram):
    return gram[..., 0, 1] / np.sqrt(gram[..., 0, 0] * gram[..., 1, 1])


def reach(samples):
    """Return how far the mean of independent samples may be from the truth."""
    from scipy.stats import t

    samples = np.asarray(samples)
    quantile = t.ppf(1.0 - FALSE_ALARM / 2 / max(samples[0].size, 1), len(samples) - 1)
    return quantile * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
