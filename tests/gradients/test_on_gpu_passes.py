"""The backward pass on a GPU of norms over the features, other orders, biases and convolutions.

It is that of the CPU to rounding, if the CPU takes the normals of Z from the same counters, and
that of NumPy.
"""

from itertools import product

import numpy as np
import pytest
from gpu_gradients import assert_same_bits, assert_same_to_rounding, on_device
from oracle import gram, normals, projector, semidefinite_cholesky

from bnmc import Chain, Convolution, GroupNorm
from bnmc._kernels.gpu.block import STEP_BITS, STOPPED_FLAT, STOPPED_NOT_FINITE
from bnmc._kernels.gpu.passes import segments_of
from bnmc._kernels.gpu.shape import MOST_RANGES
from bnmc._kernels.scalar import codes
from bnmc.errors import BackendError, NonFiniteError, ZeroVarianceError
from bnmc.gradients import network, on_gpu, parts
from bnmc.gradients.directions import NormalRows
from bnmc.simulation.engine.gpu import launches
from bnmc.simulation.runs import Recorded, Run

# The simulator's threads of Python do not inherit `np.errstate`.
pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

ROWS = np.random.default_rng(5).standard_normal((72, 4))
IMAGES = np.random.default_rng(6).standard_normal((72, 18))


def drawn(key, layer, stream, shape, dtype=np.float64, first=0):
    """Return the normals of a layer, (rows, columns), which are elements first, first + 1, …."""
    draw = codes.Draw(layer, stream, np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32))
    rows, columns = shape
    return np.asarray(normals(first + np.arange(columns), np.arange(rows), draw, dtype), float).T


@pytest.fixture
def same_noise(monkeypatch):
    """Let the CPU take the normals of Z from the counters of the GPU, in float64 or float32."""

    class Rows(network.ReplayedRows):
        def _noise(self, index, layer, rows, root):
            sampler, width, n = self._sampler, self._run.layer(layer).linear.width, len(root)
            stream = codes.STREAM_BACKWARD | np.uint32(sampler.offset + index)
            # Each tap has elements of its own.  The row of a bias has those of the first tap.
            blocks = [
                drawn(sampler.run.key, layer - 1, stream, (width, n), sampler.dtype, tap * n)
                for tap in range(rows // width)
            ]
            if rows % width:
                first = drawn(sampler.run.key, layer - 1, stream, (width + 1, n), sampler.dtype)
                blocks.append(first[width:])
            z = np.concatenate(blocks)
            return z @ semidefinite_cholesky(root @ root.T).T

    monkeypatch.setattr("bnmc.gradients.network.ReplayedRows", Rows)


CASES = {
    "layer norm": (Chain(20, 3, "tanh", norm="layer"), 2, {"dtype": "float32"}),
    "root mean squares, bias": (
        Chain(20, 3, "relu", norm="rms", gain=1.5, bias_variance=0.3), 2, {},
    ),
    "groups across tiles, skip": (
        Chain(72, 2, "tanh", norm=GroupNorm(3), skip=0.5, gain=0.7), 2, {"chains": 2},
    ),
    "layer norm after the activation, skip, bias": (
        Chain(
            20, 2, "tanh", norm="layer", order="activation-norm", skip=0.5, gain=0.7,
            bias_variance=0.2,
        ), 2, {"inputs": 2},
    ),
    "batch norm after the activation, bias": (
        Chain(20, 4, "tanh", order="activation-norm", skip=0.5, bias_variance=0.2), 2, {},
    ),
    "batch norm in a branch": (Chain.resnet(20, 4, "tanh"), 2, {}),
    "layer norm in a branch, eps": (Chain.resnet(20, 3, "tanh", norm="layer", eps=0.1), 2, {}),
    "no norm, bias, whole tile, large gradients": (
        Chain(64, 2, "tanh", norm="none", bias_variance=0.3), 2, {"loss": 1e200 * ROWS[:64, :2]},
    ),
    "convolution, fewer columns than channels": (
        Chain(20, 6, "tanh", convolution=Convolution((1, 3), (1, 2)), skip=0.5, gain=0.7), 2, {},
    ),
    "convolution, layer norm, bias, more columns than channels": (
        Chain(
            5, 6, "tanh", convolution=Convolution((2, 3), (2, 2)), norm="layer", bias_variance=0.2,
        ), 2, {"sampler": "conditional"},
    ),
    "convolution, norm after the activation": (
        Chain(20, 6, "relu", convolution=Convolution((1, 3), (1, 3)), order="activation-norm"), 2,
        {"dtype": "float32"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_gradients_are_those_of_the_cpu(what, same_noise):
    chain, depth, options = CASES[what]
    options = {"loss": loss_of(chain, options.get("inputs")), **options}
    assert_same_to_rounding(chain, depth, **options)


def test_a_norm_of_two_features_has_no_gradient():
    """N(h) is 1 or -1 in each entry, whatever h."""
    run = on_device(Chain(6, 3, "tanh", norm=GroupNorm(3)), 2)
    assert (run.delta_gram[0, 0] == 0.0).all()
    assert (np.diagonal(run.delta_gram[0, 1]) > 0.0).all()


def loss_of(chain, inputs=None):
    rows = (ROWS if chain.convolution is None else IMAGES)[: chain.width, : chain.batch]
    return rows if inputs is None else np.stack([rows, -rows[::-1]])


def made_in_passes():
    """Return all kinds of layers whose gradients these kernels make."""
    norms = ("batch", "batch-uncentred", "layer", "rms", GroupNorm(4), "none")
    orders = ("norm-activation", "activation-norm", "pre-activation")
    places = ((3, None), (6, Convolution((1, 3), (1, 2))))
    chains = [
        Chain(
            72, n, "tanh", norm=norm, order=order, skip=skip, bias_variance=bias, gain=0.8,
            convolution=convolution,
        )
        for norm, order, skip, bias, (n, convolution) in product(
            norms, orders, (0.0, 0.5), (0.0, 0.3), places
        )
    ]  # fmt: skip
    return [one for one in chains if not (one.is_row_by_row and one.covariance.is_identity)]


@pytest.mark.slow
@pytest.mark.parametrize("chain", made_in_passes(), ids=str)
def test_every_layer(chain, same_noise):
    dtype = "float32" if chain.skip else "float64"
    assert_same_to_rounding(chain, 3, dtype=dtype, loss=loss_of(chain))


def norm_of(u, groups, eps):
    """Layer norm of groups of rows; without groups, batch norm."""
    parts_of = u[None] if groups is None else u.reshape(groups, -1, u.shape[1])
    axis = -1 if groups is None else -2
    centred = parts_of - parts_of.mean(axis=axis, keepdims=True)
    square = (centred**2).mean(axis=axis, keepdims=True)
    return (centred / np.sqrt(square + eps)).reshape(u.shape)


FORMULAS = {
    "norm-activation": lambda norm, h: (np.tanh(norm(h)), norm(h)),
    "activation-norm": lambda norm, h: (norm(np.tanh(h)), h),
    "pre-activation": lambda norm, h: (np.tanh(norm(h)), h),
}


@pytest.mark.parametrize(
    ("order", "groups", "bias"),
    [("norm-activation", 1, 0.3), ("activation-norm", 2, 0.3), ("pre-activation", None, 0.0)],
)
def test_a_layer_is_that_of_numpy(order, groups, bias):
    """Wᵀδ from the formula; the layer itself is differentiated by complex steps."""
    width, n, gain, skip, eps = 20, 3, 0.8, 0.5, 0.1
    norm = "batch" if groups is None else GroupNorm(groups)
    chain = Chain(
        width, n, "tanh", norm=norm, order=order, gain=gain, skip=skip, eps=eps,
        bias_variance=bias,
    )  # fmt: skip
    start = ROWS[:width, :n]
    run = on_device(chain, 2, initial=start, rng=7)

    def layer(h):
        return FORMULAS[order](lambda u: norm_of(u, groups, eps), h)

    centre = np.eye(n) if bias else projector(n)
    constant = np.sqrt(width * bias) / gain
    a, x = layer(start)
    if order == "norm-activation":
        x = norm_of(start, groups, eps)
    layers = []
    for number in (1, 2):
        covariance = centre @ (gram(a) + bias / gain**2) @ centre
        z = drawn(run.key, number, codes.STREAM_ROWS, (width, n))
        product = z @ semidefinite_cholesky(covariance).T  # W a + b / gain
        layers.append((skip * x + gain * product, product))
        a, x = layer(layers[-1][0])
    delta = drawn(run.key, 2, codes.STREAM_BACKWARD, (width, n))
    assert run.delta_gram[0, 1] == pytest.approx(delta.T @ delta, rel=1e-11, abs=1e-11)
    hidden = layers[1][0] @ (projector(n) if order == "pre-activation" else np.eye(n))
    assert run.hidden_delta[0, 1] == pytest.approx(hidden.T @ delta, rel=1e-10, abs=1e-10)

    h = layers[0][0]
    z = drawn(run.key, 1, codes.STREAM_BACKWARD, (width + 1, n))
    z = z @ semidefinite_cholesky(gram(delta)).T
    if not bias:
        z = z[:width]
    seen = layer(h)[0] @ centre
    if bias:
        seen = np.concatenate([seen, np.full((1, n), constant)])
    below = layers[1][1].T @ delta - seen.T @ z
    back = (seen @ np.linalg.pinv(seen.T @ seen) @ below + z)[:width]

    def loss(h):
        a, x = layer(h)
        return (gain * back * a + skip * delta * x).sum()

    own = np.zeros((width, n))
    for place in np.ndindex(width, n):
        moved = h.astype(complex)
        moved[place] += 1e-30j
        own[place] = loss(moved).imag / 1e-30
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(own.T @ own, rel=1e-10, abs=1e-10)


# That of orthogonal weights is traced, and has a layer more.
@pytest.mark.untraced
def test_bits_do_not_depend_on_parts_blocks_and_checkpoints(monkeypatch):
    chain = Chain(72, 2, "tanh", norm=GroupNorm(3), skip=0.5, bias_variance=0.2)

    def run():
        return on_device(chain, 2, chains=2)

    whole = run()
    for module, name in (
        (parts, "STRETCH_BYTES"), (on_gpu, "PART_BYTES"), (launches, "MOST_RANGES"),
        (launches, "BLOCKS_OF_PROCESSOR"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1)
    assert_same_bits(whole, run())


@pytest.mark.parametrize("convolution", [None, Convolution((1, 2), (1, 2))])
def test_a_readout_has_neither_gain_nor_bias_nor_taps(convolution):
    """Vᵀδ = a (aᵀa)⁺ (fᵀδ - aᵀZ) + Z for the outputs f = V a, then through tanh and layer norm.

    The loss of images is one of the averages of f over their pixels.
    """
    width, n, labels, bias = 20, 4, [0, 1, 1, 0], 0.2
    chain = Chain(width, n, "tanh", norm="layer", bias_variance=bias, convolution=convolution)
    start, pixels = ROWS[:width, :n], 1
    if convolution is not None:
        pixels, labels = 2, labels[:2]
    run = on_device(chain, 1, initial=start, loss="cross-entropy", labels=labels, rng=7)

    def factor_of(matrix):
        return semidefinite_cholesky(matrix).T

    covariance = gram(np.tanh(norm_of(start, 1, 0.0)))
    if convolution is not None:
        # Each of the two taps sees one of the two pixels.
        other = np.array([1, 0, 3, 2])
        covariance = (covariance + covariance[np.ix_(other, other)]) / 2
    covariance = covariance + bias
    h = drawn(run.key, 1, codes.STREAM_ROWS, (width, n)) @ factor_of(covariance)
    x = norm_of(h, 1, 0.0)
    a = np.tanh(x)
    outputs = drawn(run.key, 1, codes.STREAM_START, (2, n)) @ factor_of(gram(a))
    averages = outputs.reshape(2, -1, pixels).mean(axis=-1)
    shares = np.exp(averages) / np.exp(averages).sum(axis=0)
    delta = np.repeat(shares - np.eye(2)[labels].T, pixels, axis=1) / n
    z = drawn(run.key, 1, codes.STREAM_BACKWARD, (width, n)) @ factor_of(delta.T @ delta / width)
    back = a @ np.linalg.pinv(a.T @ a) @ (outputs.T @ delta - a.T @ z) + z
    g = back * (1 - np.tanh(x) ** 2)
    own = (g - g.mean(axis=0) - x * (g * x).mean(axis=0)) / h.std(axis=0)
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(own.T @ own, rel=1e-9, abs=1e-12)


def test_what_kernels_note_is_raised():
    with pytest.raises(ZeroVarianceError, match="chain 2, layer 5.*sample 1"):
        launches.raise_noted(STOPPED_FLAT + 1, 2, 5)
    with pytest.raises(ZeroVarianceError, match="chain 2, layer 5, row 7"):
        launches.raise_noted(7, 2, 5)
    with pytest.raises(NonFiniteError, match="chain 2, layer 5"):
        launches.raise_noted(STOPPED_NOT_FINITE, 2, 5)
    assert STEP_BITS == 36


def task_of(chain):
    """Return the task of one layer of any number of chains."""
    run = Run(chain, "conditional", 1, None, "float64", recorded=Recorded(1, 1, 1), backend="cuda")
    return on_gpu.GpuTask(run, NormalRows(), ())


def test_the_sums_of_all_taps_are_counted(monkeypatch):
    """A chain has three matrices of 2 √depth + 2 layers; a tile has δᵀδ, and aᵀZ of each tap."""
    monkeypatch.setattr(on_gpu, "PART_BYTES", 10**7)
    chain = Chain(640, 9, "tanh", convolution=Convolution((3, 3), (3, 3)))
    task = task_of(chain)
    shape = task.kernels.shape
    tiles = shape.tiles(640)
    assert 1 < tiles <= MOST_RANGES
    assert task.most_chains == 10**7 // (24 * 81 * 4 + 8 * tiles * (9 * 81 + shape.entries))


def test_the_moments_of_all_segments_are_counted(monkeypatch):
    """The forward pass has two moments of a sample and segment, the backward pass two pairs."""
    monkeypatch.setattr(on_gpu, "PART_BYTES", 10**8)
    chain = Chain(640, 5, "tanh", norm=GroupNorm(20))
    task = task_of(chain)
    shape = task.kernels.shape
    tiles, segments = shape.tiles(640), segments_of(shape, 640, 20)
    assert 1 < tiles <= MOST_RANGES
    sums = 8 * tiles * (2 * 25 + shape.entries)
    assert task.most_chains == 10**8 // (24 * 25 * 4 + sums + 8 * (2 + 4) * 5 * segments)


def test_too_many_columns():
    with pytest.raises(BackendError, match="shared memory"):
        on_device(Chain(300, 90, norm="layer"), 2)
