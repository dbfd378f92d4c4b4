"""Random networks with real weights, and their backward pass, written from the formulas.

All networks of an ensemble go through the layers at once: arrays are (networks, width, samples).
"""

import numpy as np

SLOPES = {
    "linear": np.ones_like,
    "relu": lambda x: (x > 0).astype(float),
    "leaky_relu": lambda x: np.where(x > 0, 1.0, 0.01),
    "tanh": lambda x: 1.0 / np.cosh(x) ** 2,
    "sin": np.cos,
}
FUNCTIONS = {
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "tanh": np.tanh,
    "sin": np.sin,
}


def normalized(chain, h, inputs=1):
    """Return x = N(h) and the standard deviations of rows, (networks, width, inputs, 1)."""
    if chain.norm == "none":
        return h, None
    rows = h.reshape(*h.shape[:2], inputs, -1)
    if chain.norm == "batch":
        rows = rows - rows.mean(axis=-1, keepdims=True)
    spread = np.sqrt((rows**2).mean(axis=-1, keepdims=True) + chain.eps)
    return (rows / spread).reshape(h.shape), spread


def through_norm(chain, gradient, x, spread, inputs=1):
    """Return the gradient with respect to h, given that with respect to x = N(h)."""
    if chain.norm == "none":
        return gradient
    g = gradient.reshape(*x.shape[:2], inputs, -1)
    rows = x.reshape(g.shape)
    along = (g * rows).mean(axis=-1, keepdims=True)
    mean = g.mean(axis=-1, keepdims=True) if chain.norm == "batch" else 0.0
    return ((g - mean - rows * along) / spread).reshape(x.shape)


def patches(chain, a):
    """Return what weights multiply: a, or what the taps of a convolution see, tap by tap."""
    if chain.convolution is None:
        return a
    seen = [np.roll(_images(chain, a), by, axis=(-2, -1)) for by in _moves(chain)]
    return np.concatenate([one.reshape(a.shape) for one in seen], axis=1)


def folded(chain, gradient):
    """Return the gradient with respect to a, given that of `patches`."""
    if chain.convolution is None:
        return gradient
    moves = _moves(chain)
    parts = zip(np.split(gradient, len(moves), axis=1), moves, strict=True)
    back = [np.roll(_images(chain, one), (-y, -x), axis=(-2, -1)) for one, (y, x) in parts]
    return sum(one.reshape(len(one), one.shape[1], -1) for one in back)


def _images(chain, a):
    return a.reshape(*a.shape[:2], -1, *chain.convolution.shape)


def _moves(chain):
    """Pixels by which images move so that each pixel is where a tap sees it."""
    height, width = chain.convolution.kernel
    before = (height - 1) // 2, (width - 1) // 2
    return [(before[0] - i, before[1] - j) for i in range(height) for j in range(width)]


def pooled(chain, a):
    """Return what a readout multiplies: a, or its means over the pixels of images."""
    return a if chain.convolution is None else _images(chain, a).mean(axis=(-2, -1))


def unpooled(chain, gradient):
    """Return the gradient with respect to a, given that of `pooled`."""
    if chain.convolution is None:
        return gradient
    pixels = chain.convolution.positions
    return np.repeat(gradient, pixels, axis=-1) / pixels


def gaussian_matrices(rng, count, order, taps=1):
    """Draw matrices with independent entries N(0, 1/(order taps)), for all taps side by side."""
    return rng.standard_normal((count, order, order * taps)) / np.sqrt(order * taps)


def haar_matrices(rng, count, order):
    """Draw matrices from the uniform distribution on the orthogonal group.

    F. Mezzadri, *How to generate random matrices from the classical compact groups* (Notices of the
    AMS 54, 2007): the QR factorization of a Gaussian matrix with a positive diagonal of R.
    """
    q, r = np.linalg.qr(rng.standard_normal((count, order, order)))
    return q * np.sign(np.einsum("cii->ci", r))[:, None]


class Networks:
    """An ensemble of networks with real weights, Gaussian or orthogonal.

    Parameters
    ----------
    chain : Chain
        Its activation is one of `FUNCTIONS`.
    depth, count : int
    rng : Generator
    initial : ndarray, optional
        (width, samples); normal by default.
    inputs : int
    weights : list of ndarray, optional
        Weights of all layers, in place of drawn ones.
    """

    def __init__(self, chain, depth, count, rng, initial=None, inputs=1, weights=None):
        d, samples = chain.width, chain.batch * inputs
        self.chain, self.depth, self.inputs = chain, depth, inputs
        self.sigma = FUNCTIONS[chain.activation.name]
        self.slope = SLOPES[chain.activation.name]
        shape = (count, d, samples)
        h = rng.standard_normal(shape) if initial is None else np.broadcast_to(initial, shape)
        self.weights = weights or [self._drawn(rng, count) for _ in range(depth)]
        self.h, self.x, self.spread = [h], [], []
        for weight in self.weights:
            x, spread = normalized(chain, h, inputs)
            self.x.append(x)
            self.spread.append(spread)
            h = chain.skip * x + chain.gain * weight @ patches(chain, self.sigma(x))
            self.h.append(h)

    def _drawn(self, rng, count):
        if self.chain.weights == "haar":
            return haar_matrices(rng, count, self.chain.width)
        return gaussian_matrices(
            rng, count, self.chain.width, self.chain.fan_in // self.chain.width
        )

    def gram(self, layer):
        """Return the Gram matrices of the activations of a layer."""
        x = normalized(self.chain, self.h[layer], self.inputs)[0]
        a = self.sigma(x)
        return a.swapaxes(1, 2) @ a / self.chain.width

    def outputs(self, readout):
        """Return V a of the last layer, (networks, samples, classes)."""
        a = self.sigma(normalized(self.chain, self.h[-1], self.inputs)[0])
        return (readout @ pooled(self.chain, a)).swapaxes(1, 2)

    def delta_of_outputs(self, readout, gradient):
        """Return the gradient with respect to the last h, given that of the outputs."""
        x, spread = normalized(self.chain, self.h[-1], self.inputs)
        at_a = unpooled(self.chain, readout.swapaxes(1, 2) @ gradient.swapaxes(1, 2))
        at_x = self.slope(x) * at_a
        return through_norm(self.chain, at_x, x, spread, self.inputs)

    def backward(self, delta):
        """Return the gradients of h of layers 1, …, depth, and of all weights."""
        deltas, gradients = [delta], []
        for layer in range(self.depth - 1, -1, -1):
            x, weight = self.x[layer], self.weights[layer]
            a = patches(self.chain, self.sigma(x))
            gradients.append(self.chain.gain * delta @ a.swapaxes(1, 2))
            at_a = folded(self.chain, self.chain.gain * weight.swapaxes(1, 2) @ delta)
            at_x = self.slope(x) * at_a
            at_x = at_x + self.chain.skip * delta
            delta = through_norm(self.chain, at_x, x, self.spread[layer], self.inputs)
            deltas.append(delta)
        return deltas[-2::-1], gradients[::-1]
