"""The backward pass on a GPU, in Numba's simulator: that of the CPU to rounding, and NumPy's.

With NUMBA_ENABLE_CUDASIM=0 on a machine with a GPU the same tests run there.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu_gradients import ALL, assert_same_bits, assert_same_to_rounding, on_device
from oracle import gram, normalise, normals, projector, semidefinite_cholesky
from slow_cases import some

import bnmc
from bnmc import Chain
from bnmc._kernels.cpu import backward
from bnmc._kernels.gpu import device
from bnmc._kernels.scalar import codes
from bnmc._kernels.scalar.activations import BUILTIN
from bnmc.errors import ArgumentError, BackendError, NonFiniteError, StoreMismatchError
from bnmc.gradients import on_gpu, parts
from bnmc.gradients.directions import NormalRows
from bnmc.simulation.engine.gpu import launches
from bnmc.simulation.runs import Recorded, Run

# The simulator's threads of Python do not inherit `np.errstate`.
pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

GENERATOR = np.random.default_rng(5)
ROWS = GENERATOR.standard_normal((70, 4))


CASES = {
    "two tiles": (Chain(70, 4, "relu"), 4, {}),
    "uncentred, two groups": (Chain(20, 9, "tanh", norm="batch-uncentred"), 2, {}),
    "no norm, scale split off": (Chain(20, 2, "relu", norm="none", gain=70.0), 3, {}),
    "eps, two inputs": (Chain(20, 3, "tanh", eps=0.1, gain=0.5), 2, {"inputs": 2}),
    "skip, given rows": (Chain(70, 4, "tanh", skip=0.5, gain=0.7), 3, {"loss": 3 * ROWS}),
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
        Chain(70, 4, "relu"), 2, {"initial": ROWS[:, [0, 1, 1, 2]], "loss": ROWS},
    ),
    "fewer rows than samples": (Chain(4, 6, "tanh", norm="batch-uncentred"), 2, {}),
}  # fmt: skip


#: Others have a readout, and float32.
LATER = ("readout", "float32, two chains")


@pytest.mark.parametrize("what", some(CASES, *(what for what in CASES if what not in LATER)))
def test_gradients_are_those_of_the_cpu(what):
    chain, depth, options = CASES[what]
    assert_same_to_rounding(chain, depth, **options)


OWN = bnmc.Activation(np.tanh, derivative=lambda x: 1 - np.tanh(x) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [*BUILTIN, OWN])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_activation(activation, dtype):
    assert_same_to_rounding(Chain(30, 4, activation), 2, dtype=dtype)


@pytest.mark.parametrize("norm", ["batch", "batch-uncentred"])
def test_a_layer_is_that_of_numpy(norm):
    """Wᵀδ = a (aᵀa)⁺ (hᵀδ - aᵀZ) + Z, of the same normals, from the formula."""
    width, n = 40, 4
    chain = Chain(width, n, "tanh", norm=norm, gain=0.8)
    start = GENERATOR.standard_normal((width, n))
    run = on_device(chain, 2, initial=start, rng=7)
    keys = np.uint32(run.key & 0xFFFFFFFF), np.uint32(run.key >> 32)

    def drawn(layer, stream):
        draw = codes.Draw(layer, stream, *keys)
        return np.asarray(normals(np.arange(n), np.arange(width), draw, np.float64), float).T

    centre = projector(n) if norm == "batch" else np.eye(n)
    a, h = [np.tanh(normalise(start, norm, n))], []
    for layer in (1, 2):
        factor = semidefinite_cholesky(centre @ gram(a[-1]) @ centre)
        h.append(0.8 * drawn(layer, codes.STREAM_ROWS) @ factor.T)
        a.append(np.tanh(normalise(h[-1], norm, n)))
    delta = drawn(2, codes.STREAM_BACKWARD)
    assert run.delta_gram[0, 1] == pytest.approx(delta.T @ delta, rel=1e-11, abs=1e-11)
    assert run.hidden_delta[0, 1] == pytest.approx(h[1].T @ delta, rel=1e-11, abs=1e-10)

    z = drawn(1, codes.STREAM_BACKWARD) @ semidefinite_cholesky(gram(delta)).T
    seen = a[1] @ centre
    back = seen @ np.linalg.pinv(seen.T @ seen) @ (h[1].T @ delta / 0.8 - seen.T @ z) + z
    x, spread = normalise(h[0], norm, n), h[0] @ centre
    along = 0.8 * back * (1 - np.tanh(x) ** 2)
    along = (along - x * (along * x).mean(axis=1, keepdims=True)) @ centre
    own = along / np.sqrt((spread**2).mean(axis=1, keepdims=True))
    scale = np.exp(2 * run.log_scale[0, 0])
    assert run.delta_gram[0, 0] * scale == pytest.approx(own.T @ own, rel=1e-10, abs=1e-10)


@pytest.mark.untraced
def test_a_part_has_the_chains_that_memory_holds_and_at_least_one(monkeypatch):
    """A chain has three matrices of 2 √depth + 2 layers, and rows if there is a skip connection."""
    for chain, layer in (
        (Chain(70, 3, "tanh"), 24 * 9), (Chain(70, 3, "tanh", skip=0.5), 24 * 9 + 4 * 3 * 70)
    ):  # fmt: skip
        run = Run(
            chain, "conditional", 9, None, "float32", backend="cuda", recorded=Recorded(1, 1, 16)
        )
        task = on_gpu.GpuTask(run, NormalRows(), ())
        for size, chains in ((50, 5), (10, 1), (9, 1), (0, 1)):
            monkeypatch.setattr(on_gpu, "PART_BYTES", size * layer)
            assert task.chains_of_part(None) == chains


@pytest.mark.parametrize("skip", some([0.0, 0.5], 0.5))
def test_bits_do_not_depend_on_parts_blocks_and_checkpoints(skip, monkeypatch, tmp_path):
    # Two tiles: one chain has a block for each, two chains have one block each.
    chain = Chain(70, 3, "tanh", skip=skip)

    def run(**options):
        return on_device(chain, 3, chains=2, dtype="float32", **options)

    whole = run(store=tmp_path)
    assert_same_bits(whole, run(store=tmp_path))
    with pytest.raises(StoreMismatchError, match="conditional on cuda"):
        bnmc.backpropagate(
            chain, 3, chains=2, dtype="float32", rng=3, observables=ALL, store=tmp_path
        )
    monkeypatch.setattr(parts, "STRETCH_BYTES", 1)
    monkeypatch.setattr(on_gpu, "PART_BYTES", 1)
    # Both tiles in one range: the sums are in the same order.
    monkeypatch.setattr(launches, "MOST_RANGES", 1)
    assert_same_bits(whole, run())


def test_chains_that_float32_does_not_resolve_go_on_as_on_the_cpu(monkeypatch):
    seen = set()
    make = backward.buffers

    def noted(width, batch, inputs, *dtypes, **options):
        seen.add(dtypes)
        return make(width, batch, inputs, *dtypes, **options)

    monkeypatch.setattr(backward, "buffers", noted)
    # Gradients of two samples, and then two samples themselves, are nearly equal.
    alike = ROWS.copy()
    alike[:, 1] = alike[:, 0] + 1e-3 * alike[:, 1]
    chain, options = Chain(70, 4, "tanh"), {"dtype": "float32"}
    a = bnmc.backpropagate(chain, 2, loss=alike, rng=3, **options)
    b = on_device(chain, 2, loss=alike, **options)
    assert ("float32", "float64") in seen
    # δᵀδ has a pivot of 1e-6: units of float32 are a part of its square root.
    difference = np.abs(a.log_gradient_norm - b.log_gradient_norm).max()
    assert difference <= 100 * 2.0**-23 * 1e3
    alike[:, 1] = alike[:, 0] + 1e-5 * ROWS[:, 1]
    _, widened = assert_same_to_rounding(chain, 2, initial=alike, loss=ROWS, **options)
    assert widened.widened == (0,)


@pytest.mark.parametrize(
    ("chain", "options", "text"),
    [
        (Chain(30, 4, weights="uniform"), {}, "weights"),
        (Chain(30, 4), {"sampler": "weights"}, "sampler"),
        (Chain(300, 90), {}, "shared memory"),
    ],
)
def test_what_a_gpu_does_not_do(chain, options, text):
    with pytest.raises(BackendError, match=text):
        on_device(chain, 2, **options)


def test_no_executor_and_no_device(monkeypatch):
    with ThreadPoolExecutor(1) as pool, pytest.raises(ArgumentError, match="executor"):
        on_device(Chain(30, 4), 2, executor=pool)
    monkeypatch.setattr(device, "why_not", lambda: "no CUDA device")
    with pytest.raises(BackendError, match="no CUDA device"):
        on_device(Chain(30, 4), 2)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_gradients_that_leave_the_range(backend):
    with pytest.raises(NonFiniteError, match="chain 0, layer 2"):
        bnmc.backpropagate(Chain(70, 4, "relu"), 2, loss=1e200 * ROWS, rng=3, backend=backend)
