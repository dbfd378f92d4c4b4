"""The mean-field map on two blocks of samples, and the eigenvalues of its Jacobian.

Oracles share no code with the implementation: product quadrature on the sphere with finite
differences for whole spectra, and plain Monte Carlo.
"""

import math

import numpy as np
import pytest
from mean_field_oracles import (
    EXP,
    HARD_SWISH,
    assert_mean,
    fixed_point,
    hard_tanh,
    jump,
    sampled_rows,
    sphere,
)
from scipy import linalg

import bnmc
from bnmc.chain.activations import Activation
from bnmc.mean_field.blocks.block_map import BlockMap, _distinct


def gram_of_levels(sizes, levels):
    """α_0 and α_1 on the vectors of a block that sum to 0, β on the contrast."""
    contrast = np.repeat([1 / sizes[0], -1 / sizes[1]], sizes)
    contrast /= np.linalg.norm(contrast)
    centring = [
        level * (np.eye(size) - 1 / size) for size, level in zip(sizes, levels, strict=False)
    ]
    return linalg.block_diag(*centring) + levels[2] * np.outer(contrast, contrast)


def whole_spectrum(sigma, gram, order):
    """Eigenvalues of the Jacobian of P F P on symmetric matrices orthogonal to 1, descending."""
    n = len(gram)
    basis = np.linalg.qr(np.eye(n) - 1 / n)[0][:, : n - 1]
    points, weight = sphere(n - 1, order)

    def image(level):
        w = points @ np.linalg.cholesky(level).T @ basis.T
        value = sigma(math.sqrt(n) * w / np.linalg.norm(w, axis=1, keepdims=True)) @ basis
        return np.einsum("p,pi,pj->ij", weight, value, value, optimize=True)

    centre = basis.T @ gram @ basis
    rows, columns = np.triu_indices(n - 1)
    # Orthonormal coordinates of symmetric matrices, and central differences.
    scale = np.where(rows == columns, 1.0, math.sqrt(2))
    step, jacobian = 1e-4, []
    for row, column, size in zip(rows, columns, scale, strict=True):
        delta = np.zeros((n - 1, n - 1))
        delta[row, column] = delta[column, row] = 1 / size
        change = (image(centre + step * delta) - image(centre - step * delta)) / (2 * step)
        jacobian.append(scale * change[rows, columns])
    return np.sort_complex(np.linalg.eigvals(np.array(jacobian).T))[::-1]


@pytest.mark.parametrize(
    ("activation", "sizes", "levels", "order"),
    [
        ("silu", (1, 3), (0.0, 1.0, 2.5), 30),
        (EXP, (2, 2), (1.4, 0.8, 2.0), 30),
        ("tanh", (1, 4), (0.0, 1.0, 0.6), 26),
        ("silu", (2, 3), (1.0, 0.5, 2.0), 20),
        ("sigmoid", (2, 4), (0.7, 1.0, 1.8), 12),
    ],
)
def test_modes_are_the_whole_spectrum(activation, sizes, levels, order):
    """Irreducible blocks of integrals against brute force without any symmetry."""
    sigma = bnmc.Chain(1, 2, activation).activation
    modes = BlockMap(sigma, sizes, 16).modes(np.array(levels))
    result = np.concatenate([[0.0], *(np.repeat(mode.value, mode.multiplicity) for mode in modes)])
    expected = whole_spectrum(sigma, gram_of_levels(sizes, levels), order)
    # The differences are off by ε² times a third derivative of order 1, and rounding by 1e-16/ε.
    np.testing.assert_allclose(np.sort_complex(result)[::-1], expected, atol=2e-7)


SYMMETRIC = [
    ("silu", (1, 2)),
    ("silu", (1, 3)),
    ("silu", (2, 2)),
    ("silu", (1, 31)),
    pytest.param("silu", (10, 22), marks=pytest.mark.slow),
    ("tanh", (1, 6)),
    ("tanh", (3, 4)),
    ("relu", (1, 3)),
    pytest.param("relu", (2, 5), marks=pytest.mark.slow),
    pytest.param(HARD_SWISH, (4, 8), marks=pytest.mark.slow),
    # Below, an offset of 50 is in a case of each time.
    pytest.param(Activation(lambda x: 1000.0 + math.tanh(x)), (1, 9), marks=pytest.mark.slow),
]


@pytest.mark.untraced
@pytest.mark.parametrize(("activation", "sizes"), SYMMETRIC)
def test_symmetric_point_in_blocks(activation, sizes):
    """The levels of G* are fixed, every mode is λ_L or λ_M, and there are as many as there are.

    Deviations stay below the estimate of the error: the difference to a coarser quadrature, the
    tail of the series, and rounding, which an offset of 1000 magnifies.
    """
    n = sum(sizes)
    point = fixed_point(activation, n)
    sigma = bnmc.Chain(1, n, activation).activation
    mu = point.b * (1 - point.c)
    levels = np.array([mu if sizes[0] > 1 else 0.0, mu, mu])
    fine, coarse = (BlockMap(sigma, sizes, order) for order in (16, 11))
    image, other = fine.image(levels), coarse.image(levels)
    estimate = np.abs(image.levels - other.levels).max() + image.error * mu
    estimate += 1e-13 * max(mu, point.b / 1000)
    np.testing.assert_allclose(image.levels, levels, atol=estimate)
    entries = [*image.diagonal, image.between]
    entries += [x for x, size in zip(image.inside, sizes, strict=True) if size > 1]
    expected = [point.b, point.b, *[point.b * point.c] * (len(entries) - 2)]
    assert entries == pytest.approx(expected, abs=10 * estimate + 1e-14 * point.b)

    modes = fine.modes(levels)
    assert sum(mode.multiplicity for mode in modes) == n * (n - 1) // 2 - 1
    values, others = (
        [mode.value for mode in sorted(result, key=lambda mode: (mode.name, mode.value.real))]
        for result in (modes, coarse.modes(levels))
    )
    rough = max(abs(a - b) for a, b in zip(values, others, strict=True))
    allowed = rough + 10 * estimate / mu
    assert allowed < 1e-3
    for eigenvalue, multiplicity in zip(point.eigenvalues, point.multiplicities, strict=True):
        near = [mode for mode in modes if abs(mode.value - eigenvalue) < allowed]
        assert sum(mode.multiplicity for mode in near) == multiplicity


@pytest.mark.parametrize(("activation", "n"), [("silu", 26), ("gelu", 10), ("tanh", 32)])
def test_slope_of_the_one_dimensional_map_is_lambda_l(activation, n):
    """d log r′/d log r at r = 1, by finite differences: λ_L without its formula."""
    block_map = BlockMap(Activation.named(activation), (1, n - 1), 16)
    step = 1e-4

    def image(logarithm):
        levels = block_map.image(np.array([0.0, math.exp(-logarithm), 1.0])).levels
        return math.log(levels[2] / levels[1])

    slope = (image(step) - image(-step)) / (2 * step)
    # Third derivatives are of order 1: ε²/6, and rounding by 1e-15/ε.
    assert slope == pytest.approx(fixed_point(activation, n).eigenvalues[0], abs=5e-8)
    assert image(0.0) == pytest.approx(0.0, abs=1e-13)


@pytest.mark.parametrize(
    ("activation", "sizes", "levels"),
    [
        (Activation(hard_tanh), (1, 6), (0.0, 1.0, 3.0)),
        pytest.param(Activation(hard_tanh), (3, 4), (1.0, 0.4, 3.0), marks=pytest.mark.slow),
        (HARD_SWISH, (4, 5), (1.5, 0.0, 2.0)),
        (Activation(jump), (2, 3), (1.0, 2.0, 0.5)),
        (Activation(lambda x: 50.0 + math.tanh(2 * x)), (2, 30), (4.0, 0.1, 9.0)),
    ],
    ids=["corner", "corners", "collapsed", "jump", "offset"],
)
def test_image_by_plain_monte_carlo(activation, sizes, levels):
    image = BlockMap(activation, sizes, 16).image(np.array(levels))
    gram = gram_of_levels(sizes, levels)
    chain = bnmc.Chain(1, sum(sizes), activation)
    value = sampled_rows(chain, gram, 200_000, np.random.default_rng(1))
    first, second = value[:, : sizes[0]], value[:, sizes[0] :]
    samples, expected = [first[:, 0] * second[:, 0]], [image.between]
    for index, block in enumerate((first, second)):
        samples.append(block[:, 0] ** 2)
        expected.append(image.diagonal[index])
        if block.shape[1] > 1:
            samples.append(block[:, 0] * block[:, 1])
            expected.append(image.inside[index])
            if levels[index] > 0:
                samples.append(0.5 * (block[:, 0] - block[:, 1]) ** 2)
                expected.append(image.levels[index])
    contrast = first.mean(axis=1) - second.mean(axis=1)
    samples.append(contrast**2 * sizes[0] * sizes[1] / sum(sizes))
    expected.append(image.levels[2])
    assert_mean(
        np.stack(samples, axis=1),
        expected,
        image.error * image.levels.max() + 1e-12 * image.between,
    )


@pytest.mark.parametrize(("activation", "sizes"), [("silu", (10, 22)), (HARD_SWISH, (8, 18))])
def test_modes_of_a_collapsed_block_are_limits(activation, sizes):
    """Two derivations: first order in the difference of samples, and the Gaussian score."""
    block_map = BlockMap(bnmc.Chain(1, 3, activation).activation, sizes, 12)
    collapsed = {
        (mode.name, round(mode.value.real, 6)): mode.value
        for mode in block_map.modes(np.array([1.0, 0.0, 3.6]))
    }
    near = [mode.value for mode in block_map.modes(np.array([1.0, 1e-10, 3.6]))]
    for value in collapsed.values():
        assert min(abs(value - other) for other in near) < 1e-6
    split = next(value for (name, _), value in collapsed.items() if name.startswith("split"))
    # Of a regular block three modes tend to it: ratios, one and pairs.
    assert sum(abs(split - other) < 1e-5 for other in near) == 3


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**10])
def test_the_claimed_error_is_relative(factor):
    """The image of a multiple of σ is F(G) times its square; powers of 2 round nothing."""
    levels = np.array([0.0, 0.5, 2.0])
    plain = BlockMap(Activation(math.tanh), (1, 2), 8).image(levels)
    image = BlockMap(Activation(lambda x: factor * math.tanh(x)), (1, 2), 8).image(levels)
    assert plain.levels[1:].min() > 0.0
    np.testing.assert_allclose(image.levels, factor**2 * plain.levels, rtol=1e-14)
    assert plain.error > 0.0
    assert image.error == pytest.approx(plain.error, rel=1e-12, abs=0.0)


# --- Roots of a block map, each once


def test_roots_are_the_same_if_all_their_coordinates_are():
    roots = np.array([[0.1, 0.3], [0.1, 0.5], [0.1, 0.3 + 1e-9], [0.4, 0.3]])
    assert [list(root) for root in _distinct(list(roots))] == [[0.1, 0.3], [0.1, 0.5], [0.4, 0.3]]
