"""The limits of float32 rows, from both sides: reported, or continued in float64."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import bnmc
from bnmc._kernels.cpu.layers import is_too_small
from bnmc.errors import NonFiniteError
from bnmc.simulation.engine.rows import RowSampler
from bnmc.simulation.engine.state import Frames
from bnmc.simulation.engine.threads import Threads
from bnmc.simulation.runs import Run, choose_sampler


def correlated(pivot):
    """A Gram matrix of two samples; the second is `pivot` of its square from the first's span."""
    return np.array([[1.0, math.sqrt(1.0 - pivot)], [math.sqrt(1.0 - pivot), 1.0]])


@pytest.mark.parametrize(("skip", "weights"), [(0.5, "gaussian"), (0.0, "uniform")])
def test_rows_of_float32_are_reported_where_rounding_is_a_two_thousandth_of_a_distance(
    skip, weights
):
    """Rounding by 2⁻²⁴ of a sample is 2⁻¹¹ of its distance 2⁻¹³ from the span of the others."""
    limit = (2.0**-24 / 2.0**-11) ** 2
    chain = bnmc.Chain(50, 2, "linear", norm="batch-uncentred", skip=skip, weights=weights)
    path = choose_sampler(chain.repeat(1), None, "auto", "float32")
    for dtype in ("float32", "float64"):
        sampler = RowSampler(Run(chain.repeat(1), path, 3, None, dtype))
        # Of the two recorded layers of a chain, either one may show it.
        pivots = [[1.001, 1.001], [0.999, 0.5e9 * limit], [1.001, 0.999]]
        grams = np.array([[correlated(limit * pivot) for pivot in of_chain] for of_chain in pivots])
        none = np.zeros((3, 2))
        sampler.watch_precision(Frames(grams, none, none[..., None]))
        expected = [False, True, True] if dtype == "float32" else [False] * 3
        assert sampler.unresolved.tolist() == expected


def assert_wide(chain, gram, is_wide):
    """Whether a chain continues in float64 after a Gram matrix."""
    for threads in (1, 3):  # the kernel decides for whole chains, the sampler for shared layers
        sampler = RowSampler(Run(chain.repeat(1), "conditional", 1, None, "float32"))
        sampler.grams[0] = gram
        frames = Frames(np.zeros((1, 1, 2, 2)), np.zeros((1, 1)), np.zeros((1, 1, 0)))
        if threads == 1:
            sampler.advance(0, 1, 1, np.zeros(1, np.int64), frames)
        else:
            with ThreadPoolExecutor(1) as pool:
                shared = Threads(pool, threads, sampler.work)
                sampler.advance(0, sampler.chains, 1, np.zeros(1, np.int64), frames, shared)
        assert sampler.wide.tolist() == [is_wide]
        # The buffers of float32 rows, as large as the others, are free again.
        dtypes = {key[1] for key in sampler.buffers() if key[0] == "work"}
        assert dtypes == {"d" if is_wide else "f"}


def test_chains_of_float32_continue_in_float64_where_sums_do_not_resolve_a_pivot():
    """Sums of float32 numbers have errors of about 1e-7; 2⁻¹³ is 1000 times as much."""
    chain = bnmc.Chain(40, 2, "relu", norm="batch-uncentred")
    assert_wide(chain, correlated(1.001 * 2.0**-13), False)
    assert_wide(chain, correlated(0.999 * 2.0**-13), True)


def test_chains_of_float32_continue_in_float64_before_a_sample_becomes_too_small():
    """Squares of numbers of 2⁻⁵⁰ have units of rounding in the normal range of float32."""
    chain = bnmc.Chain(40, 2, "tanh", norm="none", gain=0.25)
    for deviation, is_wide in ((1.001 * 2.0**-50, False), (0.999 * 2.0**-50, True)):
        assert_wide(chain, np.diag([1.0, (deviation / chain.gain) ** 2]), is_wide)
    # The sample zero is exact, and a norm does not see the common scale of samples.
    assert_wide(chain, np.diag([1.0, 0.0]), True)  # its pivot
    normed = bnmc.Chain(40, 2, "tanh", norm="batch-uncentred", gain=0.25)
    assert_wide(normed, 2.0**-110 * np.eye(2), False)
    assert_wide(normed, np.diag([1.0, 0.999 * 2.0**-100]), True)


@pytest.mark.parametrize(
    ("diagonal", "before", "zeros", "whole", "expected"),
    [
        ((9.0, 4.0), 0, False, False, False),
        ((9.0, 3.9), 0, False, False, True),
        ((9.0, 3.9), 0, True, False, True),
        ((4.0, 0.0), 0, False, False, True),
        ((4.0, 0.0), 0, True, False, False),
        ((4.0, 0.0), 1, False, False, False),
        ((3.9, 0.0), 1, False, False, True),
        ((4.0, 3.9), 0, True, True, False),
        ((3.9, 3.9), 0, True, True, True),
        ((3.9, 0.0), 0, True, True, True),
        ((0.0, 0.0), 0, True, True, False),
    ],
)
def test_matrices_that_sums_over_rows_have_rounded(diagonal, before, zeros, whole, expected):
    gram = np.diag(np.multiply(diagonal, 2.0**-127))
    assert is_too_small(gram, before, 2.0**-125, zeros, whole) == expected


# --- what all samplers share: the smallest Gram matrix of a chain without a scale of its own


def test_gram_matrices_below_the_range_with_full_precision_are_errors():
    """Entries of 2⁻⁹⁶² and more have products with units of rounding in the normal range."""
    chain = bnmc.Chain(6, 2, "tanh", norm="none")
    sampler = RowSampler(Run(chain.repeat(1), "conditional", 3, None, "float64", first=40))
    # The exponent of 2⁻⁹⁶¹ is -960, that of the next smaller number -961.
    least = 2.0**-961
    fits = np.array([least * np.eye(2), np.eye(2), np.diag([1.0, 0.0])])
    sampler.require_scale(fits, sampler.dtype)
    for small in (
        np.nextafter(least, 0.0) * np.eye(2),
        np.diag([0.0, 2.0**-1000]),
        np.diag([1.0, 2.0**-1000]),
        np.zeros((2, 2)),
    ):
        with pytest.raises(NonFiniteError, match="too small") as caught:
            sampler.require_scale(np.array([fits[1], fits[0], small]), sampler.dtype)
        assert caught.value.chain == 42
