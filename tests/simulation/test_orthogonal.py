"""Layers with orthogonal weights on a GPU, in Numba's simulator: the CPU's to rounding."""

from unittest import mock

import numpy as np
import pytest
from gpu_runs import assert_equal_to_rounding, both
from oracle import gram, normalise, normals, projector, semidefinite_cholesky

from bnmc import Chain, simulate
from bnmc._kernels.gpu import layers
from bnmc._kernels.gpu.build import kernels_of
from bnmc._kernels.scalar import codes
from bnmc.errors import BackendError, NonFiniteError, ZeroVarianceError
from bnmc.gram import orthogonality_gap

pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore:Grid size"),
    # The simulator's threads of Python do not inherit `np.errstate`.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
X = np.random.default_rng(5).standard_normal((20, 4))
SAMPLERS = "bnmc.simulation.engine.gpu.samplers"
LAUNCHES = "bnmc.simulation.engine.gpu.launches"


def haar(width, batch, activation="tanh", **options):
    return Chain(width, batch, activation, weights="haar", **options)


CASES = {
    "two tiles, float32": (haar(70, 3, "relu"), {"dtype": "float32"}),
    "skip, eps, an array": (haar(20, 3, skip=0.5, gain=0.7, eps=0.1), {"initial": X[:, :3]}),
    "two inputs, uncentred": (haar(20, 2, norm="batch-uncentred"), {"inputs": 2}),
    "no norm": (haar(20, 2, "gelu", norm="none", gain=1.5), {}),
    "copies of samples": (haar(20, 4, "sigmoid"), {"initial": X[:, [0, 1, 1, 2]]}),
    "normals that need further sums": (haar(5, 6), {}),
    "fewer rows than samples": (haar(4, 8, norm="batch-uncentred"), {}),
    "more columns than whole rows": (haar(20, 9, norm="batch-uncentred"), {}),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_trajectories_are_those_of_the_cpu(what):
    chain, options = CASES[what]
    a, b = both(chain, 2, **options)
    assert (a.backend, b.backend) == ("cpu", "cuda")
    assert (a.key, a.sampler, a.dtype) == (b.key, "conditional", b.dtype)
    assert_equal_to_rounding(a, b, 2)
    assert set(a.final_state.arrays) - {"unresolved"} == set(b.final_state.arrays)


def test_a_layer_is_that_of_numpy():
    """W a = √d B Fᵀ: B are the normals, made orthonormal, and F is a factor of G."""
    width, n, gain = 20, 3, 0.8
    run = simulate(haar(width, n, gain=gain), 1, initial=X[:, :n], rng=7, backend="cuda")
    keys = np.uint32(run.key & 0xFFFFFFFF), np.uint32(run.key >> 32)
    # A centred batch of three has rank two: the first two samples determine the last one.
    draw = codes.Draw(1, codes.STREAM_ROWS, *keys)
    z = np.asarray(normals(np.arange(n - 1), np.arange(width), draw, np.float64), float).T
    basis = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z)).T
    a, centre = np.tanh(normalise(X[:, :n], "batch", n)), projector(n)
    factor = semidefinite_cholesky(centre @ gram(a) @ centre)[:, : n - 1]
    h = gain * np.sqrt(width) * basis @ factor.T
    expected = gram(np.tanh(normalise(h, "batch", n)))
    assert run.gram[0, 1] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_bits_depend_neither_on_blocks_nor_on_chunks_nor_on_other_chains():
    """Of several blocks, each launch makes one sum; one block makes all of them in one launch."""
    chain = haar(70, 2, norm="batch-uncentred")

    def run(chains, processors, most=10):
        with (
            mock.patch(f"{LAUNCHES}.processors", return_value=processors),
            mock.patch(f"{SAMPLERS}.MOST_OF_GRID", most),
        ):
            return simulate(chain, 1, rng=2, backend="cuda", chains=chains)

    # The first sum of a layer leaves a pivot below this, so each layer makes a second one.
    kernels_of.cache_clear()
    with mock.patch.object(layers, "ORTHOGONAL_PIVOT", 1.0 - 1e-9):
        runs = [run(2, 100), run(2, 1), run(2, 1, 1), run(1, 100)]
    kernels_of.cache_clear()
    for other in runs[1:]:
        for own, one in zip(other.gram, runs[0].gram, strict=False):
            assert np.array_equal(own, one)
    assert_equal_to_rounding(simulate(chain, 1, rng=2, chains=2), runs[0])


def test_blocks_make_further_sums_in_each_layer():
    """The sums of one layer, and the counts of blocks that have made them, serve the next one."""
    chain = haar(70, 2, norm="batch-uncentred")

    def run(processors):
        with mock.patch(f"{LAUNCHES}.processors", return_value=processors):
            return simulate(chain, 2, rng=2, backend="cuda")

    kernels_of.cache_clear()
    with mock.patch.object(layers, "ORTHOGONAL_PIVOT", 1.0 - 1e-9):
        several, one = run(100), run(1)
    kernels_of.cache_clear()
    assert_equal_to_rounding(simulate(chain, 2, rng=2), several, 2)
    assert np.array_equal(several.gram, one.gram)


def test_a_run_goes_on_here_and_elsewhere():
    chain, options = haar(20, 3, skip=0.5), {"rng": 3}
    whole = simulate(chain, 2, backend="cuda", **options)
    for backend in ("cuda", "cpu"):
        begun = simulate(chain, 1, backend=backend, **options)
        ended = simulate(chain, 1, initial=begun.final_state, backend="cuda")
        both_parts = np.concatenate([begun.gram, ended.gram[:, 1:]], axis=1)
        assert_equal_to_rounding(whole, mock.Mock(gram=both_parts), 2)
        if backend == "cuda":
            assert np.array_equal(whole.gram, both_parts)


def test_float32_chains_go_on_in_float64():
    chain = haar(20, 2, norm="batch-uncentred")
    a, b = both(chain, 1, initial="collinear", dtype="float32", chains=2)
    assert a.widened == b.widened == (0, 1)
    assert_equal_to_rounding(a, b)


@pytest.mark.parametrize("skip", [0.0, 2.0**-8])
def test_the_scale_is_split_off(skip):
    """Each sample gets the unit that it has on the CPU; two layers leave the range of one unit."""
    chain = haar(12, 2, "relu", norm="none", gain=2.0**-8, skip=skip)
    a, b = both(chain, 3, observables=["scaled_gram", "log_scale"])
    units = [run.final_state.arrays["exponent"] for run in (a, b)]
    assert (units[0] < -8).all()
    assert np.array_equal(*units)
    for name in ("scaled_gram", "log_scale"):
        np.testing.assert_allclose(b[name], a[name], rtol=1e-12, atol=1e-12)


def test_only_numbers_leave_the_device():
    chain, options = haar(20, 3), {"rng": 4, "backend": "cuda"}
    full = simulate(chain, 1, **options)
    run = simulate(chain, 1, observables="orthogonality_gap", **options)
    gaps = orthogonality_gap(full.gram)
    assert np.abs(run["orthogonality_gap"] - gaps).max() <= 32 * 2.0**-52


@pytest.mark.parametrize(
    ("chain", "error"),
    [
        (haar(20, 2, "abs"), ZeroVarianceError),
        (haar(20, 2, "gelu", norm="none", gain=1e100), NonFiniteError),
    ],
    ids=["variance", "overflow"],
)
def test_the_layer_that_fails_is_named(chain, error):
    found = []
    for backend in ("cpu", "cuda"):
        with pytest.raises(error) as raised:
            simulate(chain, 3, rng=0, backend=backend)
        found.append((raised.value.chain, raised.value.layer))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("chain", "sampler"),
    [(haar(20, 3), "weights"), (haar(20, 3, norm="layer"), "auto")],
    ids=["matrices", "layer norm"],
)
def test_matrices_are_drawn_on_the_cpu_alone(chain, sampler):
    with pytest.raises(BackendError, match="backend='cpu', or sampler='conditional'"):
        simulate(chain, 1, backend="cuda", sampler=sampler)
