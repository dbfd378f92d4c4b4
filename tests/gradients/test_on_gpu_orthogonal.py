"""The backward pass on a GPU of orthogonal weights: that of the CPU to rounding, and NumPy's."""

import numpy as np
import pytest
from gpu_gradients import assert_same_bits, assert_same_to_rounding, on_device
from oracle import gram, normalise, normals, projector, semidefinite_cholesky

from bnmc import Chain
from bnmc._kernels.scalar import codes
from bnmc.errors import BackendError
from bnmc.gradients import on_gpu, parts
from bnmc.simulation.engine.gpu import launches

# The simulator's threads of Python do not inherit `np.errstate`.
pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

ROWS = np.random.default_rng(5).standard_normal((72, 4))


def haar(width, batch, activation="tanh", **options):
    return Chain(width, batch, activation, weights="haar", **options)


CASES = {
    "two tiles": (haar(72, 3, "relu"), 2, {}),
    "skip, given rows, two chains": (
        haar(20, 3, skip=0.5, gain=0.7), 3, {"loss": ROWS[:20, :3], "chains": 2},
    ),
    "no norm, scale split off": (haar(20, 2, "relu", norm="none", gain=70.0), 2, {}),
    "readout": (haar(20, 3), 2, {"loss": "cross-entropy", "labels": [0, 1, 1]}),
    "no room beside what the layer saw": (haar(3, 4), 2, {}),
    "room for one column": (haar(4, 3, norm="batch-uncentred", eps=0.1), 2, {}),
    "normals that need further passes": (haar(5, 6), 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_gradients_are_those_of_the_cpu(what):
    chain, depth, options = CASES[what]
    assert_same_to_rounding(chain, depth, **options)


def test_a_layer_is_that_of_numpy():
    """Wᵀδ = B Hᵀδ + Y T, with bases B of what the layer saw and H = W B of its rows."""
    width, n, gain = 20, 3, 0.8
    chain, start = haar(width, n, gain=gain), ROWS[:20, :3]
    run = on_device(chain, 2, initial=start, rng=7)
    keys = np.uint32(run.key & 0xFFFFFFFF), np.uint32(run.key >> 32)

    def drawn(layer, stream, columns=n):
        draw = codes.Draw(layer, stream, *keys)
        return np.asarray(normals(np.arange(columns), np.arange(width), draw, np.float64), float).T

    def orthonormal(columns):
        return columns @ np.linalg.inv(np.linalg.cholesky(columns.T @ columns)).T

    # A centred batch of three has rank two: the first two samples determine the last one.
    centre, rank = projector(n), n - 1
    h, bases, a = [], [], np.tanh(normalise(start, "batch", n))
    for layer in (1, 2):
        bases.append(orthonormal(drawn(layer, codes.STREAM_ROWS, rank)))
        factor = semidefinite_cholesky(centre @ gram(a) @ centre)[:, :rank]
        h.append(gain * np.sqrt(width) * bases[-1] @ factor.T)
        a = np.tanh(normalise(h[-1], "batch", n))
    delta = drawn(2, codes.STREAM_BACKWARD)
    assert run.delta_gram[0, 1] == pytest.approx(delta.T @ delta, rel=1e-11, abs=1e-11)
    assert run.hidden_delta[0, 1] == pytest.approx(h[1].T @ delta, rel=1e-10, abs=1e-10)

    seen = (np.tanh(normalise(h[0], "batch", n)) @ centre)[:, :rank]
    basis = orthonormal(seen)
    rest = delta - bases[1] @ (bases[1].T @ delta)
    noise = drawn(1, codes.STREAM_BACKWARD)
    outside = orthonormal(noise - basis @ (basis.T @ noise))
    back = basis @ (bases[1].T @ delta) + outside @ np.linalg.cholesky(rest.T @ rest).T
    x, spread = normalise(h[0], "batch", n), h[0] @ centre
    along = gain * back * (1 - np.tanh(x) ** 2)
    along = (along - x * (along * x).mean(axis=1, keepdims=True)) @ centre
    own = along / np.sqrt((spread**2).mean(axis=1, keepdims=True))
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(own.T @ own, rel=1e-9, abs=1e-9)


def test_bits_do_not_depend_on_parts_blocks_and_checkpoints(monkeypatch):
    chain = haar(72, 2, skip=0.5)

    def run():
        return on_device(chain, 3, chains=2)

    # The forward pass is made on the GPU, too.
    monkeypatch.delattr(parts, "RowSampler")
    whole = run()
    for module, name in (
        (parts, "STRETCH_BYTES"), (on_gpu, "PART_BYTES"), (launches, "MOST_RANGES"),
        (launches, "BLOCKS_OF_PROCESSOR"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 1)
    assert_same_bits(whole, run())


@pytest.mark.slow
def test_float32():
    assert_same_to_rounding(haar(20, 3, eps=0.1), 2, dtype="float32")
    # A chain that float32 does not resolve goes on as on the CPU.
    alike = ROWS[:20, :3].copy()
    alike[:, 1] = alike[:, 0] + 1e-5 * alike[:, 1]
    _, run = assert_same_to_rounding(haar(20, 3), 2, initial=alike, dtype="float32")
    assert run.widened == (0,)


@pytest.mark.parametrize(
    "chain",
    [haar(20, 3, norm="layer"), haar(20, 3, order="activation-norm")],
    ids=["layer norm", "order"],
)
def test_what_a_gpu_does_not_do(chain):
    with pytest.raises(BackendError, match="orthogonal"):
        on_device(chain, 2)
