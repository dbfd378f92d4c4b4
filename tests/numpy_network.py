"""Random networks with real weights in NumPy, forward and back, written from the formulas.

All networks of an ensemble go through the layers at once: arrays are (networks, width, columns).
A chain gives the properties of a layer and of the linear map that leads to it, so a network of
unequal layers has a list of chains, and of blocks between them.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from oracle import FORMULAS

from bnmc import Chain, Network, Residual

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


class Block(NamedTuple):
    """A skip path around some layers: the last one has h = skip x + W a, or skip (P x) + W a.

    `layers` are chains and blocks, of which the last one is a chain.  With an activation one more
    layer has h = skip x + a, or skip N(P x) + a.
    """

    layers: list
    projection: Any = None
    skip: float = 1.0
    source: str = "state"
    activation: Any = None

    @property
    def inner(self):
        """The layers, with that of the sum, whose weights of variance 1 / width are 1."""
        if self.activation is None:
            return self.layers
        last = self.layers[-1]

        def ones(rng, shape):
            return np.broadcast_to(math.sqrt(last.width) * np.eye(last.width), shape)

        return [
            *self.layers,
            Chain(last.width, last.batch, self.activation, norm="none", weights=ones),
        ]


class Path(NamedTuple):
    """The skip path of a block, from a layer to a later one."""

    begin: int
    end: int
    block: Block


def flattened(items, before=-1):
    """Return the chains of layers one by one, and the skip paths; layer `before` precedes them."""
    chains, paths = [], []
    for item in items:
        last = before + len(chains)
        if isinstance(item, Block):
            inner, others = flattened(item.inner, last)
            chains += inner
            paths += [*others, Path(last, last + len(inner), item)]
        else:
            chains.append(item)
    return chains, paths


def _layers(chains, h, weights, biases, inputs, sigma=None, skips=()):
    """Yield the layers; `weights` yields W and `biases` yields b of the maps between them.

    `skips` are pairs of a `Path` and its `_Projection`.
    """
    made = [_Layer(chains[0], h, inputs, sigma)]
    yield made[0]
    for chain, weight, bias in zip(chains[1:], weights, biases, strict=False):
        h = chain.gain * (weight @ patches(chain, made[-1].a))
        if chain.skip:
            h = h + chain.skip * made[-1].state
        for path, projection in skips:
            if path.end == len(made):
                h = h + path.block.skip * projection.of(_taken(made, path))
        made.append(_Layer(chain, h + bias, inputs, sigma))
        yield made[-1]


def _taken(made, path):
    """Return what a skip path takes of the layer where it begins."""
    layer = made[path.begin]
    return layer.a if path.block.source == "activations" else layer.state


class _Projection:
    """P of a block, or the identity."""

    def __init__(self, chain, weights=None, bias=0.0):
        self.chain, self.weights, self.bias = chain, weights, bias

    @classmethod
    def drawn(cls, chain, below, rng, count):
        if chain is None:
            return cls(None)
        (weights,), (bias,) = (draw([below, chain], rng, count) for draw in (_drawn, _drawn_biases))
        return cls(chain, weights, bias)

    def of(self, x):
        if self.chain is None:
            return x
        h = self.chain.gain * (self.weights @ patches(self.chain, x)) + self.bias
        normed, self._spread = _normed(h, self.chain.norm, self.chain.eps, 1)
        self._normed = normed
        return normed

    def back(self, delta):
        if self.chain is None:
            return delta
        return _folded(
            self.chain, self.chain.gain * self.weights.swapaxes(1, 2) @ self.at_rows(delta)
        )

    def at_rows(self, delta):
        """Return the gradient with respect to P x, given that with respect to N(P x)."""
        return _through_norm(delta, self._normed, self.chain.norm, self._spread, 1)


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


def network_of(items):
    """Return the network with these chains as layers 0, 1, …, and blocks of them."""
    return Network((items[0], 0), *map(_stage, items[1:]))


def _stage(item):
    if not isinstance(item, Block):
        return item, 1
    layers, projection, *rest = item
    options = dict(zip(("skip", "source", "activation"), rest, strict=True))
    return Residual(Network(*map(_stage, layers)), projection, **options)


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
    chain : Chain or list of Chain and Block
        Of all layers, or of layers 0, …, depth.  Activations are among those of `SLOPES`.
    depth, count : int
        A list has a depth of its own.
    rng : Generator
    initial : ndarray, optional
        (width, columns); normal by default.
    inputs : int
    weights, biases : list of ndarray, optional
        Of layers 1, …, depth, in place of drawn ones.  Biases broadcast to h.
    projections : list of (ndarray, ndarray), optional
        Weights and biases of projections in the order of `flattened`, in place of drawn ones.
    """

    def __init__(
        self, chain, depth, count, rng, initial=None, inputs=1, weights=None, biases=None,
        projections=None,
    ):  # fmt: skip
        items = chain if isinstance(chain, list) else [chain] * (depth + 1)
        self.chains, self.paths = flattened(items)
        self.chain, self.depth, self.inputs = self.chains[0], len(self.chains) - 1, inputs
        shape = count, self.chain.width, self.chain.batch * inputs
        h = rng.standard_normal(shape) if initial is None else np.broadcast_to(initial, shape)
        self.weights = weights or list(_drawn(self.chains, rng, count))
        self.biases = biases or list(_drawn_biases(self.chains, rng, count))
        maps = self.weights, self.biases
        of_paths = [path.block.projection for path in self.paths]
        if projections is None:
            self.projections = [
                _Projection.drawn(projection, self.chains[path.begin], rng, count)
                for path, projection in zip(self.paths, of_paths, strict=True)
            ]
        else:
            given = iter(projections)
            self.projections = [
                _Projection(chain, *(next(given) if chain else ())) for chain in of_paths
            ]
        self._skips = list(zip(self.paths, self.projections, strict=True))
        self._made = list(_layers(self.chains, h, *maps, inputs, None, self._skips))
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
        deltas, gradients = {self.depth: delta}, []
        for layer in reversed(range(self.depth)):
            below, above, delta = self._made[layer], self.chains[layer + 1], deltas[layer + 1]
            gradients.append(above.gain * delta @ patches(above, below.a).swapaxes(1, 2))
            at_a = _folded(above, above.gain * self.weights[layer].swapaxes(1, 2) @ delta)
            at_state = above.skip * delta if above.skip else 0.0
            for path, projection in self._skips:
                if path.begin == layer:
                    back = path.block.skip * projection.back(deltas[path.end])
                    if path.block.source == "activations":
                        at_a = at_a + back
                    else:
                        at_state = at_state + back
            deltas[layer] = below.back(at_a, at_state)
        return [deltas[layer] for layer in range(1, self.depth + 1)], gradients[::-1]

    def gradients_of_projections(self, deltas):
        """Return the gradients of the weights of projections, given those of `backward`."""
        return [
            projection.chain.gain * path.block.skip * projection.at_rows(deltas[path.end - 1])
            @ patches(projection.chain, _taken(self._made, path)).swapaxes(1, 2)
            for path, projection in self._skips
            if projection.chain is not None
        ]  # fmt: skip
