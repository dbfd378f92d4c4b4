"""Layers that are not plain on a GPU, in Numba's simulator: the CPU's trajectories to rounding."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from gpu_runs import assert_equal_to_rounding, both
from slow_cases import some

from bnmc import Chain, Convolution, simulate
from bnmc._kernels.gpu import device, shape
from bnmc._kernels.gpu.device import launch
from bnmc._kernels.gpu.passes import cover, segments_of
from bnmc._kernels.scalar import codes
from bnmc.chain.activations import Activation, sigma_of
from bnmc.chain.compiled import spec_of
from bnmc.errors import BackendError, NonFiniteError, ZeroVarianceError
from bnmc.simulation.engine.gpu import launches, samplers
from bnmc.simulation.runs import Recorded
from bnmc.simulation.starting import choose_backend, run_of

pytestmark = [
    pytest.mark.usefixtures("simulator"),
    pytest.mark.filterwarnings("ignore:Grid size"),
    pytest.mark.filterwarnings("ignore:Host array used"),
]
# The simulator's threads of Python do not inherit `np.errstate`.
IN_THREADS = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# Every pair of norm, order, bias and sampler is among these, and each dtype and law of biases with
# both passes.
CASES = {
    "layer": (Chain(9, 2, "tanh", norm="layer"), "conditional", "float64"),
    "layer after, bias": (
        Chain(9, 2, "tanh", norm="layer", order="activation-norm", bias_variance=0.3),
        "weights", "float32",
    ),
    "layer, residual, bias": (
        Chain.resnet(9, 2, "tanh", norm="layer", bias_variance=0.3), "conditional", "float64",
    ),
    "rms, bias": (
        Chain(9, 2, "tanh", norm="rms", weights="pytorch", bias_variance=0.3), "weights",
        "float64",
    ),
    "rms after": (
        Chain(9, 2, "tanh", norm="rms", order="activation-norm", eps=0.1), "conditional", "float32",
    ),
    "rms, residual": (Chain.resnet(9, 2, "tanh", norm="rms"), "weights", "float64"),
    "groups, skip, two tiles": (
        Chain(66, 2, "tanh", norm="group(3)", skip=0.5), "conditional", "float32",
    ),
    "groups after, skip, two tiles": (
        Chain(34, 2, "tanh", norm="group(2)", order="activation-norm", skip=0.5, bias_variance=0.3),
        "weights", "float64",
    ),
    "groups, residual, bias": (
        Chain.resnet(8, 2, "tanh", norm="group(2)", bias_variance=0.3), "conditional", "float64",
    ),
    "batch after, bias": (
        Chain(9, 3, "tanh", order="activation-norm", bias_variance=0.3), "conditional", "float64",
    ),
    "batch, residual": (Chain.resnet(9, 3, "tanh"), "weights", "float32"),
    "no norm, bias": (
        Chain(9, 2, "tanh", norm="none", bias_variance=0.3, weights="rademacher"), "weights",
        "float64",
    ),
    "uncentred, bias": (
        Chain(9, 2, "tanh", norm="batch-uncentred", bias_variance=0.3, skip=0.5), "conditional",
        "float64",
    ),
    "more groups than threads": (Chain(40, 2, "tanh", norm="group(20)"), "conditional", "float64"),
    "convolution": (
        Chain.conv(9, 1, "relu", shape=(2, 3), kernel=(2, 3)), "conditional", "float64",
    ),
    "convolution, weights, bias": (
        Chain(
            9, 3, "tanh", norm="rms", bias_variance=0.3,
            convolution=Convolution(shape=(1, 3), kernel=(1, 2)),
        ),
        "weights", "float64",
    ),
}  # fmt: skip


#: Each norm, order and sampler is in other cases.
LATER = ("groups, residual, bias", "groups, skip, two tiles")


@pytest.mark.parametrize("what", some(CASES, *(what for what in CASES if what not in LATER)))
def test_trajectories_are_those_of_the_cpu(what):
    chain, sampler, dtype = CASES[what]
    a, b = both(chain, 2, sampler=sampler, dtype=dtype)
    assert (a.backend, b.backend) == ("cpu", "cuda")
    assert_equal_to_rounding(a, b)
    assert set(a.final_state.arrays) - {"unresolved"} == set(b.final_state.arrays)
    for name, others in b.final_state.arrays.items():
        values = a.final_state.arrays[name]
        assert (values.shape, values.dtype) == (others.shape, others.dtype)


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
@pytest.mark.parametrize("bias_variance", [0.0, 0.3])
@pytest.mark.parametrize("order", ["norm-activation", "activation-norm", "pre-activation"])
@pytest.mark.parametrize("norm", ["layer", "rms", "group(4)", "batch"])
def test_every_norm_and_order(norm, order, bias_variance, sampler):
    skip = 1.0 if order == "pre-activation" else 0.0
    chain = Chain(
        20, 3, "tanh", norm=norm, order=order, bias_variance=bias_variance, skip=skip
    )  # fmt: skip
    assert_equal_to_rounding(*both(chain, 2, sampler=sampler, chains=2, inputs=2))


def test_the_blocks_of_a_layer_share_no_bits():
    """The number of blocks does not matter to the bit: tiles and segments keep their order."""
    chain = Chain(130, 2, "tanh", norm="group(5)", bias_variance=0.3)
    runs = []
    for number in (1, 2):
        one = mock.patch("bnmc.simulation.engine.gpu.launches.processors", return_value=number)
        with one, mock.patch("bnmc.simulation.engine.gpu.launches.BLOCKS_OF_PROCESSOR", 1):
            runs.append(simulate(chain, 1, rng=3, sampler="conditional", backend="cuda").gram)
    assert np.array_equal(*runs)


def test_states_go_from_one_backend_to_the_other():
    chain = Chain.resnet(9, 2, "tanh", norm="layer", bias_variance=0.3)
    for sampler in ("conditional", "weights"):
        whole, first = (
            simulate(chain, depth, rng=3, sampler=sampler, every=depth) for depth in (2, 1)
        )
        second = simulate(chain, 1, initial=first.final_state, backend="cuda")
        assert second.layers.tolist() == [1, 2]
        np.testing.assert_allclose(second.gram[:, -1], whole.gram[:, -1], rtol=0, atol=1e-13)


@pytest.mark.filterwarnings("ignore::bnmc.errors.PrecisionWarning")
@pytest.mark.parametrize("bias_variance", [0.0, 0.2])
def test_float32_chains_that_continue_in_float64(bias_variance):
    """A bias is added to the covariance of each layer once, also in the layer that is repeated."""
    x = np.random.default_rng(1).standard_normal((20, 3))
    x[:, 2] = x[:, 1] * (1 + 1e-5 * x[:, 0])
    chain = Chain(20, 3, "tanh", norm="layer", bias_variance=bias_variance)
    a, b = both(chain, 2, initial=x, sampler="conditional", dtype="float32")
    assert a.widened == b.widened == (0,)
    assert np.abs(a.gram - b.gram).max() <= 1e-10


@IN_THREADS
@pytest.mark.parametrize("sampler", ["conditional", "weights"])
def test_a_sample_without_variance_is_named(sampler):
    chain = Chain(8, 2, "relu", norm="group(4)", order="activation-norm")
    errors = []
    for backend in ("cpu", "cuda"):
        with pytest.raises(ZeroVarianceError) as error:
            simulate(chain, 4, rng=0, sampler=sampler, backend=backend)
        errors.append(error.value)
    assert [str(error) for error in errors] == [str(errors[0])] * 2
    assert errors[1].row is None


@IN_THREADS
def test_moments_that_are_not_finite():
    chain = Chain(8, 2, "linear", norm="layer", order="activation-norm", gain=1e200)
    with pytest.raises(NonFiniteError, match="layer 1"):
        simulate(chain, 1, rng=0, backend="cuda")


def test_weights_without_kernels_name_their_alternative():
    with pytest.raises(BackendError, match="backend='cpu'"):
        simulate(Chain(9, 2, "tanh", norm="layer", weights="haar"), 1, backend="cuda")


@pytest.mark.parametrize("threads", [16, 256])
@pytest.mark.parametrize("source", [shape.DRAWN, shape.MULTIPLIED, shape.KEPT])
def test_buffers_do_not_overlap(threads, source):
    sigma = sigma_of(Activation.named("relu"))
    options = {"in_passes": True, "over_features": True, "features_centred": True}
    patches = mock.patch.multiple(shape, MOST_THREADS=threads, _MOST_THREADS_OF_WEIGHTS=threads)
    for columns in range(1, 65):
        spec = shape.Spec(
            columns, columns, codes.NORM_NONE, False, False, "float64", sigma.digest, source,
            **options,
        )  # fmt: skip
        with patches:
            own = shape.shape_of(spec)
        assert not own.whole_rows
        shares = own.per_entry * own.entries if own.per_entry > 1 else 0
        assert own.at.partial + shares <= own.at.moments or shares == 0
        assert own.at.moments + 2 * own.threads <= own.at.flags
        assert own.at.zero + 1 <= own.at.factor
        assert own.threads >= columns


def test_segments_have_places_of_their_own():
    """Of tiles whose rows lie among those of the next tile, too."""
    sigma = sigma_of(Activation.named("relu"))
    options = {"in_passes": True, "over_features": True, "features_centred": True}
    for source in (shape.DRAWN, shape.MULTIPLIED):
        spec = shape.Spec(
            2, 2, codes.NORM_NONE, False, False, "float64", sigma.digest, source, **options
        )
        own = shape.shape_of(spec)
        rows = max(own.tile_rows, 64)
        per_block = rows // own.tile_rows
        for width, groups in ((66, 1), (66, 33), (200, 50), (64, 4)):
            pairs = {(row // rows, row * groups // width) for row in range(width)}
            places = [
                (block + group) * per_block + tile
                for block, group in pairs
                for tile in range(per_block)
            ]
            assert len(set(places)) == len(places)
            assert max(places) < segments_of(own, width, groups)


@pytest.mark.parametrize(
    ("chain", "source"),
    [
        (Chain(130, 2, "tanh", norm="group(5)", bias_variance=0.3), shape.DRAWN),
        (Chain(130, 2, "tanh", norm="layer", order="activation-norm"), shape.MULTIPLIED),
        (
            Chain(
                9, 3, "tanh", norm="rms", bias_variance=0.3,
                convolution=Convolution(shape=(1, 3), kernel=(1, 2)),
            ),
            shape.MULTIPLIED,
        ),
    ],
    ids=["groups", "layer", "convolution"],
)  # fmt: skip
def test_the_bytes_of_a_chain_are_those_of_its_arrays(chain, source):
    law, layer = spec_of(chain), chain.layers[1]
    spec = launches.kernel_spec(layer, law, "float64", source)
    lengths = launches.lengths_of_work(layer, law, spec)
    needed = {"covariances", "factors", "segments", "shifts", "scales"}
    needed -= {"covariances"} if source == shape.MULTIPLIED else set()
    needed -= set() if spec.is_convolved else {"factors"}
    assert set(lengths) == needed
    made = sum(np.zeros(own).nbytes for own in lengths.values())
    assert made == launches.bytes_of_work(layer, law, spec)


@pytest.mark.parametrize(("side", "backend"), [(4, "cuda"), (12, "cpu")])
def test_auto_takes_the_cpu_if_no_block_has_room(side, backend):
    chain = Chain.conv(100, 1, "relu", shape=(side, side))
    options = {"chains": 10**6, "inputs": None, "rng": None}
    run = run_of(chain, "gaussian", sampler="auto", dtype="float32", **options)
    run = replace(run, recorded=Recorded(0, 1, 1000))
    with (
        mock.patch.object(device, "SIMULATED", False),
        mock.patch.object(device, "why_not", return_value=None),
        mock.patch("bnmc.simulation.engine.gpu.samplers.shared_memory", return_value=227 * 1024),
    ):
        assert choose_backend("auto", run, 1) == backend


@IN_THREADS
def test_the_covariance_that_a_kernel_sees():
    """`cover` averages over the taps and adds the variance of the biases."""
    convolution = Convolution((3, 2), (2, 2))
    h = np.random.default_rng(2).standard_normal((2, 9, 12))
    grams = h.swapaxes(1, 2) @ h
    out, threads = np.zeros_like(grams), 32
    launch(cover, 2, threads, 0, 0, grams, convolution.neighbours(12).copy(), 0.3, out, 0, 0, 0)
    np.testing.assert_allclose(out, convolution.covariance(grams) + 0.3, rtol=1e-12)


def test_ranges_of_consecutive_numbers():
    """Numbers with one missing between them are in two ranges."""
    numbers = np.array([3, 4, 6, 9, 10, 11])
    assert samplers._ranges(numbers) == [(3, 5), (6, 7), (9, 12)]
    assert samplers._ranges(numbers[:1]) == [(3, 4)]
    assert samplers._ranges(numbers[:0]) == []
