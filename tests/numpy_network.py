"""Random networks with real weights in NumPy, forward and back, written from the formulas.

All networks of an ensemble go through the layers at once: arrays are (networks, width, columns).
A chain gives the properties of a layer and of the linear map that leads to it, so a network of
unequal layers has a list of chains.
"""

import itertools
import math

import numpy as np
from oracle import FORMULAS

from bnmc import Network

FUNCTIONS = {**FORMULAS, "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x)}
SLOPES = {
    "linear": np.ones_like,
    "relu": lambda x: (x > 0).astype(float),
    "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01),
    "tanh": lambda x: 1.0 / np.cosh(x) ** 2,
    "sin": np.cos,
}
UNCENTRED = ("batch-uncentred", "rms")


# --- norms


def standardised(h, axis=-1, *, ddof=0, eps=0.0, centred=True):
    """Return h without its means over axes, unless it is not centred, over its deviations."""
    return _standardised(h, axis, ddof, eps, centred)[0]


def _standardised(h, axis, ddof, eps, centred):
    x = h - h.mean(axis=axis, keepdims=True) if centred else h
    squares = (x**2).sum(axis=axis, keepdims=True)
    spread = np.sqrt(squares / (h.size // squares.size - ddof) + eps)
    return x / spread, spread


def _parts(h, norm, inputs):
    """Return h in parts, and the axis over which the norm takes moments of a part."""
    if norm.startswith("batch"):
        return h.reshape(*h.shape[:-1], inputs, -1), -1
    groups = int(norm[6:-1]) if norm.startswith("group") else 1
    return h.reshape(*h.shape[:-2], groups, -1, h.shape[-1]), -2


def _normed(h, norm, eps, inputs):
    """Return N(h), and the standard deviations of its parts."""
    if norm == "none":
        return h, None
    parts, spread = _standardised(*_parts(h, norm, inputs), 0, eps, norm not in UNCENTRED)
    return parts.reshape(h.shape), spread


def normalised(h, norm="batch", eps=0.0, inputs=1):
    """N(h) for h of shape (..., width, columns)."""
    return _normed(h, norm, eps, inputs)[0]


def _through_norm(gradient, x, norm, spread, inputs):
    """Return the gradient with respect to h, given that with respect to x = N(h)."""
    if norm == "none":
        return gradient
    (g, axis), (rows, _) = _parts(gradient, norm, inputs), _parts(x, norm, inputs)
    along = (g * rows).mean(axis=axis, keepdims=True)
    mean = 0.0 if norm in UNCENTRED else g.mean(axis=axis, keepdims=True)
    return ((g - mean - rows * along) / spread).reshape(x.shape)


# --- convolutions with circular padding


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
            first = s, (y + dy) % height, (x + dx) % width
            second = t, (v + dy) % height, (u + dx) % width
            out[s, y, x, t, v, u] += g[*first, *second] / len(taps)
    return out.reshape(gram.shape)


def convolved(weights, a):
    """W * a for weights (..., out, in, kh, kw) and a (..., in, samples, height, width)."""
    h = 0.0
    for (i, j), move in zip(
        np.ndindex(weights.shape[-2:]), _moves(weights.shape[-2:]), strict=True
    ):
        seen = np.roll(a, move, axis=(-2, -1))
        h = h + np.einsum("...oi,...isyx->...osyx", weights[..., i, j], seen)
    return h


def rows_of(weights):
    """Return the rows of weights (..., out, in, kh, kw), which multiply `patches`."""
    rows = np.moveaxis(weights, -3, -1)
    return rows.reshape(*rows.shape[:-3], -1)


def patches(chain, a):
    """Return what weights multiply: a, or what the taps of a convolution see, tap by tap."""
    if chain.convolution is None:
        return a
    moves = _moves(chain.convolution.kernel)
    seen = [np.roll(_images(chain, a), move, axis=(-2, -1)) for move in moves]
    return np.concatenate([each.reshape(a.shape) for each in seen], axis=1)


def _folded(chain, gradient):
    """Return the gradient with respect to a, given that of `patches`."""
    if chain.convolution is None:
        return gradient
    moves = _moves(chain.convolution.kernel)
    parts = zip(np.split(gradient, len(moves), axis=1), moves, strict=True)
    back = [np.roll(_images(chain, part), (-y, -x), axis=(-2, -1)) for part, (y, x) in parts]
    return sum(part.reshape(*part.shape[:2], -1) for part in back)


def _images(chain, a):
    return a.reshape(*a.shape[:2], -1, *chain.convolution.shape)


def _moves(kernel):
    """Pixels by which images move so that each pixel is where a tap sees it."""
    before = [(size - 1) // 2 for size in kernel]
    return [(before[0] - i, before[1] - j) for i, j in np.ndindex(tuple(kernel))]


# --- weights


def haar(rng, shape):
    """Draw matrices from the uniform distribution on the orthogonal group, times √width.

    Others have orthogonal rows, or columns, and entries of variance 1.

    F. Mezzadri, *How to generate random matrices from the classical compact groups* (Notices of the
    AMS 54, 2007): the QR factorization of a Gaussian matrix with a positive diagonal of R.
    """
    *count, rows, order = shape
    q, r = np.linalg.qr(rng.standard_normal((*count, max(rows, order), min(rows, order))))
    signs = np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    q = math.sqrt(max(rows, order)) * q * signs
    return q if rows >= order else q.swapaxes(-1, -2)


#: Laws of weights of variance 1, (..., width, fan_in).
LAWS = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape),
    "rademacher": lambda rng, shape: rng.choice([-1.0, 1.0], shape),
    "haar": haar,
    "pytorch": lambda rng, shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape),
}


def drawn_weights(chain, rng, count, fan_in):
    """Draw weights of variance 1 / fan_in, (count, width, fan_in)."""
    draw = LAWS.get(chain.weights) or chain.weights
    return draw(rng, (count, chain.width, fan_in)) / math.sqrt(fan_in)


# --- layers


class _Layer:
    """One layer: its state, which a skip connection keeps, and its activations a."""

    def __init__(self, chain, h, inputs, sigma=None):
        self.chain, self.h, self._inputs = chain, h, inputs
        sigma = sigma or FUNCTIONS[chain.activation.name]
        is_last = chain.order == "activation-norm"
        self._normed, self._spread = _normed(
            sigma(h) if is_last else h, chain.norm, chain.eps, inputs
        )
        self.state = self._normed if chain.order == "norm-activation" else h
        self.a = self._normed if is_last else sigma(self._normed)

    def back(self, at_a, at_state):
        """Return the gradient with respect to h, given those with respect to a and to the state."""
        slope = SLOPES[self.chain.activation.name]
        order, of_norm = (
            self.chain.order,
            (self._normed, self.chain.norm, self._spread, self._inputs),
        )
        if order == "norm-activation":
            return _through_norm(at_a * slope(self._normed) + at_state, *of_norm)
        if order == "activation-norm":
            return _through_norm(at_a, *of_norm) * slope(self.h) + at_state
        return _through_norm(at_a * slope(self._normed), *of_norm) + at_state


def _layers(chains, h, weights, biases, inputs, sigma=None):
    """Yield the layers; `weights` yields W and `biases` yields b of the maps between them."""
    layer = _Layer(chains[0], h, inputs, sigma)
    yield layer
    for chain, weight, bias in zip(chains[1:], weights, biases, strict=False):
        h = chain.gain * (weight @ patches(chain, layer.a))
        if chain.skip:
            h = h + chain.skip * layer.state
        layer = _Layer(chain, h + bias, inputs, sigma)
        yield layer


def _drawn(chains, rng, count):
    """Yield weights, and biases, of the maps between layers."""
    for below, chain in itertools.pairwise(chains):
        taps = 1 if chain.convolution is None else chain.convolution.taps
        yield drawn_weights(chain, rng, count, taps * below.width)


def _drawn_biases(chains, rng, count):
    for below, chain in itertools.pairwise(chains):
        scale = math.sqrt(chain.bias_variance)
        if chain.weights == "pytorch":  # uniform, and the default is that of the width before
            scale *= math.sqrt(3 * chain.width / below.width)
            yield scale * rng.uniform(-1, 1, (count, chain.width, 1))
            continue
        yield scale * rng.standard_normal((count, chain.width, 1)) if scale else np.zeros(1)


def network_of(chains):
    """Return the network with these chains as layers 0, 1, …"""
    return Network((chains[0], 0), *((chain, 1) for chain in chains[1:]))


def grams(chain, depth, count, rng, initial=None, function=None, inputs=1):
    """Return Gram matrices of layers 0 to depth, (networks, depth + 1, columns, columns).

    `function` is the activation; by default it is that of the chain.
    """
    shape = count, chain.width, chain.batch * inputs
    h = rng.standard_normal(shape) if initial is None else np.broadcast_to(initial, shape)
    chains = [chain] * (depth + 1)
    maps = _drawn(chains, rng, count), _drawn_biases(chains, rng, count)
    layers = _layers(chains, h, *maps, inputs, function)
    return np.stack([gram_of(layer.a) for layer in layers], axis=1)


def state_grams(chain, h, depth, rng):
    """Return Gram matrices of h of layers 0 to depth, for networks too wide to draw their weights.

    Given a, the rows of gain W a + b are independent and normal, with the same covariance.
    """
    grams = [gram_of(h)]
    for _ in range(depth):
        layer = _Layer(chain, h, 1)
        covariance = chain.gain**2 * gram_of(layer.a) + chain.bias_variance
        rows = rng.standard_normal(h.shape) @ np.linalg.cholesky(covariance).T
        h = chain.skip * layer.state + rows
        grams.append(gram_of(h))
    return np.array(grams)


def gram_of(a):
    """Return aᵀa / width."""
    return a.swapaxes(-1, -2) @ a / a.shape[-2]


class Networks:
    """An ensemble of networks with all their rows.

    Parameters
    ----------
    chain : Chain or list of Chain
        Of all layers, or of layers 0, …, depth.  Activations are among those of `SLOPES`.
    depth, count : int
    rng : Generator
    initial : ndarray, optional
        (width, columns); normal by default.
    inputs : int
    weights, biases : list of ndarray, optional
        Of layers 1, …, depth, in place of drawn ones.  Biases broadcast to h.
    """

    def __init__(
        self, chain, depth, count, rng, initial=None, inputs=1, weights=None, biases=None,
    ):  # fmt: skip
        self.chains = chain if isinstance(chain, list) else [chain] * (depth + 1)
        self.chain, self.depth, self.inputs = self.chains[0], depth, inputs
        shape = count, self.chain.width, self.chain.batch * inputs
        h = rng.standard_normal(shape) if initial is None else np.broadcast_to(initial, shape)
        self.weights = weights or list(_drawn(self.chains, rng, count))
        self.biases = biases or list(_drawn_biases(self.chains, rng, count))
        maps = self.weights, self.biases
        self._made = list(_layers(self.chains, h, *maps, inputs))
        self.h = [layer.h for layer in self._made]

    def activations(self, layer):
        """Return the activations a of a layer, which weights multiply."""
        return self._made[layer].a

    def hidden(self, layer):
        """Return h of a layer, without the means over a batch that the activations do not see."""
        chain, h = self.chains[layer], self.h[layer]
        if chain.norm != "batch" or chain.order == "activation-norm":
            return h
        rows, _ = _parts(h, "batch", self.inputs)
        return (rows - rows.mean(axis=-1, keepdims=True)).reshape(h.shape)

    def gram(self, layer):
        """Return the Gram matrices of the activations of a layer."""
        return gram_of(self.activations(layer))

    @property
    def grams(self):
        """The Gram matrices of all layers, (networks, depth + 1, columns, columns)."""
        return np.stack([self.gram(layer) for layer in range(self.depth + 1)], axis=1)

    def outputs(self, readout):
        """Return V a of the last layer, pixels averaged, (networks, samples, classes)."""
        a = self.activations(self.depth)
        if self.chain.convolution is not None:
            a = _images(self.chain, a).mean(axis=(-2, -1))
        return (readout @ a).swapaxes(1, 2)

    def delta_of_outputs(self, readout, gradient):
        """Return the gradient with respect to the last h, given that of the outputs."""
        at_a = readout.swapaxes(1, 2) @ gradient.swapaxes(1, 2)
        if self.chain.convolution is not None:
            pixels = self.chain.convolution.positions
            at_a = np.repeat(at_a, pixels, axis=-1) / pixels
        return self._made[-1].back(at_a, 0.0)

    def backward(self, delta):
        """Return the gradients of h of layers 1, …, depth, and of all weights."""
        deltas, gradients = [delta], []
        for below, weight, above in zip(
            self._made[-2::-1], self.weights[::-1], self.chains[:0:-1], strict=True
        ):
            gradients.append(above.gain * delta @ patches(above, below.a).swapaxes(1, 2))
            at_a = _folded(above, above.gain * weight.swapaxes(1, 2) @ delta)
            delta = below.back(at_a, above.skip * delta if above.skip else 0.0)
            deltas.append(delta)
        return deltas[-2::-1], gradients[::-1]
