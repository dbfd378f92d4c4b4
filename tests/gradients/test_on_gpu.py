"""The backward pass on a GPU, in Numba's simulator: that of the CPU to rounding, and NumPy's.

Layers are plain, in passes, or have orthogonal weights.  The CPU takes the normals of Z of layers
in passes from the counters of the GPU.  With NUMBA_ENABLE_CUDASIM=0 on a machine with a GPU the
same tests run there.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from gradient_runs import ALL, assert_same_bits, assert_same_to_rounding, on_device
from laws import haar
from numpy_network import normalised
from oracle import gram, normals, projector, semidefinite_cholesky
from slow_cases import slow

import bnmc
from bnmc import Chain, Convolution, GroupNorm, errors
from bnmc._kernels.gpu import device
from bnmc._kernels.gpu.block import STEP_BITS, STOPPED_FLAT, STOPPED_NOT_FINITE
from bnmc._kernels.gpu.passes import segments_of
from bnmc._kernels.gpu.shape import MOST_RANGES
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.activations import BUILTIN
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


def normals_of(key, layer, stream, shape, dtype=np.float64, first=0):
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
                normals_of(sampler.run.key, layer - 1, stream, (width, n), sampler.dtype, tap * n)
                for tap in range(rows // width)
            ]
            if rows % width:
                first = normals_of(
                    sampler.run.key, layer - 1, stream, (width + 1, n), sampler.dtype
                )
                blocks.append(first[width:])
            z = np.concatenate(blocks)
            return z @ semidefinite_cholesky(root @ root.T).T

    monkeypatch.setattr("bnmc.gradients.network.ReplayedRows", Rows)


PLAIN = {
    "two tiles": (Chain(70, 4, "relu"), 4, {}),
    "uncentred, two groups": (Chain(20, 9, "tanh", norm="batch-uncentred"), 2, {}),
    "no norm, scale split off": (Chain(20, 2, "relu", norm="none", gain=70.0), 3, {}),
    "eps, two inputs": (Chain(20, 3, "tanh", eps=0.1, gain=0.5), 2, {"inputs": 2}),
    "skip, given rows": (Chain(70, 4, "tanh", skip=0.5, gain=0.7), 3, {"loss": 3 * ROWS[:70]}),
    "float32, two chains": (Chain(30, 4, "relu"), 2, {"dtype": "float32", "chains": 2}),
    "float32, skip, two inputs": (
        Chain(70, 3, "tanh", skip=0.5, gain=0.7), 2, {"inputs": 2, "dtype": "float32"},
    ),
    "readout": (
        Chain(30, 4, "tanh"), 2, {"loss": "cross-entropy", "labels": [0, 1, 2, 0], "chains": 2},
    ),
    "readout, skip": (
        Chain(30, 3, "tanh", skip=0.5), 2, {"loss": "squared", "labels": ROWS[:3, :4]},
    ),
    "copies of samples": (
        Chain(70, 4, "relu"), 2, {"initial": ROWS[:70, [0, 1, 1, 2]], "loss": ROWS[:70]},
    ),
    "fewer rows than samples": (Chain(4, 6, "tanh", norm="batch-uncentred"), 2, {}),
}  # fmt: skip

ORTHOGONAL = {
    "orthogonal, two tiles": (haar(72, 3, "relu"), 2, {}),
    "orthogonal, skip, given rows, two chains": (
        haar(20, 3, skip=0.5, gain=0.7), 2, {"loss": ROWS[:20, :3], "chains": 2},
    ),
    "orthogonal, no norm, scale split off": (haar(20, 2, "relu", norm="none", gain=70.0), 2, {}),
    "orthogonal, readout": (haar(20, 3), 2, {"loss": "cross-entropy", "labels": [0, 1, 1]}),
    "orthogonal, no room beside what the layer saw": (haar(3, 4), 2, {}),
    "orthogonal, room for one column": (haar(4, 3, norm="batch-uncentred", eps=0.1), 2, {}),
    "orthogonal, normals that need further passes": (haar(5, 6), 2, {}),
}  # fmt: skip

IN_PASSES = {
    "layer norm": (Chain(20, 3, "tanh", norm="layer"), 2, {"dtype": "float32"}),
    "root mean squares, bias": (
        Chain(20, 3, "relu", norm="rms", gain=1.5, bias_variance=0.3), 2, {},
    ),
    "groups across tiles, skip": (
        Chain(72, 2, "tanh", norm=GroupNorm(3), skip=0.5, gain=0.7), 2, {},
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

#: Two tiles, inputs or chains, readouts, float32, copies, and each place of a norm are in other
#: cases; `eps` is in layers that are compared with NumPy.
LATER = {
    "two tiles", "eps, two inputs", "float32, two chains", "readout", "fewer rows than samples",
    "orthogonal, no norm, scale split off", "orthogonal, readout", "root mean squares, bias",
    "batch norm after the activation, bias", "layer norm in a branch, eps",
    "convolution, norm after the activation",
}  # fmt: skip


def loss_of(chain, inputs=None):
    rows = (ROWS if chain.convolution is None else IMAGES)[: chain.width, : chain.batch]
    return rows if inputs is None else np.stack([rows, -rows[::-1]])


@pytest.mark.parametrize(
    ("chain", "depth", "options"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if name in LATER else [])
        for name, case in {**PLAIN, **ORTHOGONAL, **IN_PASSES}.items()
    ],
)
def test_gradients_are_those_of_the_cpu(chain, depth, options, same_noise):
    if (chain, depth, options) in IN_PASSES.values():
        options = {"loss": loss_of(chain, options.get("inputs")), **options}
    assert_same_to_rounding(chain, depth, **options)


OWN = bnmc.Activation(np.tanh, derivative=lambda x: 1 - np.tanh(x) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [*BUILTIN, OWN])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_activation(activation, dtype):
    assert_same_to_rounding(Chain(30, 4, activation), 2, dtype=dtype)


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
    return [each for each in chains if not (each.is_row_by_row and each.covariance.is_identity)]


@pytest.mark.slow
@pytest.mark.parametrize("chain", made_in_passes(), ids=str)
def test_every_layer(chain, same_noise):
    dtype = "float32" if chain.skip else "float64"
    assert_same_to_rounding(chain, 3, dtype=dtype, loss=loss_of(chain))


def test_a_norm_of_two_features_has_no_gradient():
    """N(h) is 1 or -1 in each entry, whatever h."""
    run = on_device(Chain(6, 3, "tanh", norm=GroupNorm(3)), 2)
    assert (run.delta_gram[0, 0] == 0.0).all()
    assert (np.diagonal(run.delta_gram[0, 1]) > 0.0).all()


# --- layers in NumPy


def layer_of(chain, h):
    """Return the activations of a layer and what a skip connection keeps."""
    if chain.order == "activation-norm":
        return normalised(np.tanh(h), chain.norm, chain.eps), h
    x = normalised(h, chain.norm, chain.eps)
    return np.tanh(x), x if chain.order == "norm-activation" else h


def derivative(loss, h):
    """Return the derivative with respect to h of a loss of h, by complex steps."""
    slopes = np.zeros(h.shape)
    for place in np.ndindex(h.shape):
        moved = h.astype(complex)
        moved[place] += 1e-30j
        slopes[place] = loss(moved).imag / 1e-30
    return slopes


@pytest.mark.parametrize(
    ("norm", "order", "options"),
    [
        ("batch", "norm-activation", {}),
        ("batch-uncentred", "norm-activation", {}),
        ("layer", "norm-activation", {"bias_variance": 0.3, "skip": 0.5, "eps": 0.1}),
        slow("group(2)", "activation-norm", {"bias_variance": 0.3, "skip": 0.5, "eps": 0.1}),
        ("batch", "pre-activation", {"skip": 0.5, "eps": 0.1}),
    ],
)
def test_a_layer_is_that_of_numpy(norm, order, options):
    """Wᵀδ = a (aᵀa)⁺ (hᵀδ - aᵀZ) + Z, of the same normals, from the formula.

    The layer itself is differentiated by complex steps.
    """
    width, n, gain = 20, 3, 0.8
    chain = Chain(width, n, "tanh", norm=norm, order=order, gain=gain, **options)
    bias, skip = chain.bias_variance, chain.skip
    run = on_device(chain, 2, initial=ROWS[:width, :n], rng=7)
    hides = chain.normalization.hides_common_part
    centre = projector(n) if hides else np.eye(n)
    (a, x), layers = layer_of(chain, ROWS[:width, :n]), []
    for number in (1, 2):
        covariance = centre @ (gram(a) + bias / gain**2) @ centre
        z = normals_of(run.key, number, codes.STREAM_ROWS, (width, n))
        product = z @ semidefinite_cholesky(covariance).T  # W a + b / gain
        layers.append((skip * x + gain * product, product))
        a, x = layer_of(chain, layers[-1][0])
    delta = normals_of(run.key, 2, codes.STREAM_BACKWARD, (width, n))
    assert run.delta_gram[0, 1] == pytest.approx(delta.T @ delta, rel=1e-11, abs=1e-11)
    hidden = layers[1][0] @ centre
    assert run.hidden_delta[0, 1] == pytest.approx(hidden.T @ delta, rel=1e-10, abs=1e-10)

    h, rows = layers[0][0], width + (bias > 0.0)
    z = normals_of(run.key, 1, codes.STREAM_BACKWARD, (rows, n))
    z = z @ semidefinite_cholesky(gram(delta) * width / len(delta)).T
    constant = np.full((rows - width, n), np.sqrt(width * bias) / gain)
    seen = np.concatenate([layer_of(chain, h)[0] @ centre, constant])
    below = layers[1][1].T @ delta - seen.T @ z
    back = (seen @ np.linalg.pinv(seen.T @ seen) @ below + z)[:width]

    def loss(h):
        a, x = layer_of(chain, h)
        return (gain * back * a + skip * delta * x).sum()

    slopes = derivative(loss, h)
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(slopes.T @ slopes, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("convolution", [slow(None), Convolution((1, 2), (1, 2))])
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

    covariance = gram(np.tanh(normalised(start, "layer")))
    if convolution is not None:
        # Each of the two taps sees one of the two pixels.
        other = np.array([1, 0, 3, 2])
        covariance = (covariance + covariance[np.ix_(other, other)]) / 2
    covariance = covariance + bias
    h = normals_of(run.key, 1, codes.STREAM_ROWS, (width, n)) @ factor_of(covariance)
    x = normalised(h, "layer")
    a = np.tanh(x)
    outputs = normals_of(run.key, 1, codes.STREAM_START, (2, n)) @ factor_of(gram(a))
    averages = outputs.reshape(2, -1, pixels).mean(axis=-1)
    shares = np.exp(averages) / np.exp(averages).sum(axis=0)
    delta = np.repeat(shares - np.eye(2)[labels].T, pixels, axis=1) / n
    z = normals_of(run.key, 1, codes.STREAM_BACKWARD, (width, n)) @ factor_of(
        delta.T @ delta / width
    )
    back = a @ np.linalg.pinv(a.T @ a) @ (outputs.T @ delta - a.T @ z) + z
    g = back * (1 - np.tanh(x) ** 2)
    slopes = (g - g.mean(axis=0) - x * (g * x).mean(axis=0)) / h.std(axis=0)
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(slopes.T @ slopes, rel=1e-9, abs=1e-12)


# --- parts, stretches and memory


@pytest.mark.parametrize(
    ("chain", "depth", "dtype"),
    [
        # Two tiles: one chain has a block for each, two chains have one block each.
        pytest.param(Chain(70, 3, "tanh"), 3, "float32", id="plain", marks=pytest.mark.slow),
        pytest.param(Chain(70, 3, "tanh", skip=0.5), 2, "float32", id="plain, skip"),
        pytest.param(
            haar(72, 2, skip=0.5), 3, "float64", id="orthogonal", marks=pytest.mark.slow
        ),
        # Orthogonal weights are traced, and have a layer more.
        pytest.param(
            Chain(72, 2, "tanh", norm=GroupNorm(3), skip=0.5, bias_variance=0.2), 2, "float64",
            id="in passes", marks=[pytest.mark.untraced, pytest.mark.slow],
        ),
    ],
)  # fmt: skip
def test_bits_do_not_depend_on_parts_blocks_and_checkpoints(
    chain, depth, dtype, monkeypatch, tmp_path
):
    options = {"chains": 2, "dtype": dtype}
    # The forward pass is made on the GPU, too.
    monkeypatch.delattr(parts, "RowSampler")
    whole = on_device(chain, depth, store=tmp_path, **options)
    assert_same_bits(whole, on_device(chain, depth, store=tmp_path, **options))
    with pytest.raises(errors.StoreMismatchError, match="conditional on cuda"):
        bnmc.backpropagate(chain, depth, rng=3, observables=ALL, store=tmp_path, **options)
    for module, name in (
        (parts, "STRETCH_BYTES"), (on_gpu, "PART_BYTES"), (launches, "MOST_RANGES"),
        (launches, "BLOCKS_OF_PROCESSOR"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1)
    assert_same_bits(whole, on_device(chain, depth, **options))


def task_of(chain, chains=1, dtype="float64", depth=1):
    run = Run(
        chain.repeat(depth),
        "conditional",
        chains,
        None,
        dtype,
        recorded=Recorded(1, 1, depth),
        backend="cuda",
    )
    return on_gpu.GpuTask(run, NormalRows(), ())


@pytest.mark.untraced
def test_a_part_has_the_chains_that_memory_holds_and_at_least_one(monkeypatch):
    """A chain has three matrices of 2 √depth + 2 layers, and rows if there is a skip connection."""
    for chain, layer in (
        (Chain(70, 3, "tanh"), 24 * 9), (Chain(70, 3, "tanh", skip=0.5), 24 * 9 + 4 * 3 * 70)
    ):  # fmt: skip
        task = task_of(chain, 9, "float32", 16)
        for size, chains in ((50, 5), (10, 1), (9, 1), (0, 1)):
            monkeypatch.setattr(on_gpu, "PART_BYTES", size * layer)
            assert task.chains_of_part(None) == chains


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


# --- limits


def test_chains_that_float32_does_not_resolve_go_on_as_on_the_cpu(dtypes_seen):
    # Gradients of two samples, and then two samples themselves, are nearly equal.
    rows = ROWS[:70]
    alike = rows.copy()
    alike[:, 1] = alike[:, 0] + 1e-3 * alike[:, 1]
    chain, options = Chain(70, 4, "tanh"), {"dtype": "float32"}
    a = bnmc.backpropagate(chain, 2, loss=alike, rng=3, **options)
    b = on_device(chain, 2, loss=alike, **options)
    assert ("float32", "float64") in dtypes_seen
    # δᵀδ has a pivot of 1e-6: units of float32 are a part of its square root.
    difference = np.abs(a.log_gradient_norm - b.log_gradient_norm).max()
    assert difference <= 100 * 2.0**-23 * 1e3
    alike[:, 1] = alike[:, 0] + 1e-5 * rows[:, 1]
    _, widened = assert_same_to_rounding(chain, 2, initial=alike, loss=rows, **options)
    assert widened.widened == (0,)


@pytest.mark.slow
def test_float32_with_orthogonal_weights():
    assert_same_to_rounding(haar(20, 3, eps=0.1), 2, dtype="float32")
    # A chain that float32 does not resolve goes on as on the CPU.
    alike = ROWS[:20, :3].copy()
    alike[:, 1] = alike[:, 0] + 1e-5 * alike[:, 1]
    _, run = assert_same_to_rounding(haar(20, 3), 2, initial=alike, dtype="float32")
    assert run.widened == (0,)


@pytest.mark.parametrize(
    ("chain", "options", "text"),
    [
        (Chain(30, 4, weights="uniform"), {}, "weights"),
        (haar(20, 3, norm="layer"), {}, "orthogonal"),
        (haar(20, 3, order="activation-norm"), {}, "orthogonal"),
        (Chain(30, 4), {"sampler": "weights"}, "sampler"),
        (Chain(300, 90), {}, "shared memory"),
        (Chain(300, 90, norm="layer"), {}, "shared memory"),
    ],
    ids=str,
)
def test_what_a_gpu_does_not_do(chain, options, text):
    with pytest.raises(errors.BackendError, match=text):
        on_device(chain, 2, **options)


def test_no_executor_and_no_device(monkeypatch):
    with ThreadPoolExecutor(1) as pool, pytest.raises(errors.ArgumentError, match="executor"):
        on_device(Chain(30, 4), 2, executor=pool)
    monkeypatch.setattr(device, "why_not", lambda: "no CUDA device")
    with pytest.raises(errors.BackendError, match="no CUDA device"):
        on_device(Chain(30, 4), 2)


def test_what_kernels_note_is_raised():
    with pytest.raises(errors.ZeroVarianceError, match="chain 2, layer 5.*sample 1"):
        launches.raise_noted(STOPPED_FLAT + 1, 2, 5)
    with pytest.raises(errors.ZeroVarianceError, match="chain 2, layer 5, row 7"):
        launches.raise_noted(7, 2, 5)
    with pytest.raises(errors.NonFiniteError, match="chain 2, layer 5"):
        launches.raise_noted(STOPPED_NOT_FINITE, 2, 5)
    assert STEP_BITS == 36


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_gradients_that_leave_the_range(backend):
    with pytest.raises(errors.NonFiniteError, match="chain 0, layer 2"):
        bnmc.backpropagate(Chain(70, 4, "relu"), 2, loss=1e200 * ROWS[:70], rng=3, backend=backend)
