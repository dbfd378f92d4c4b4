"""The modes of convolutions at the symmetric fixed point, beside a Jacobian by differences."""

import numpy as np
import numpy_network
import pytest
from slow_cases import slow

import bnmc
from bnmc.mean_field import MeanField
from bnmc.mixing.observed import slowest_component

CHAINS = [
    bnmc.Chain.conv(64, 1, "relu", shape=(2, 3), kernel=(2, 3)),
    bnmc.Chain.conv(64, 2, "relu", shape=(1, 4), kernel=(1, 3)),
    bnmc.Chain.conv(64, 2, "linear", shape=(2, 2), kernel=(1, 2), norm="batch-uncentred"),
    bnmc.Chain.conv(64, 1, "relu", shape=(1, 4), kernel=(1, 2), norm="batch-uncentred"),
]
CASES = [*CHAINS[:3], slow(CHAINS[3])]

#: Chains without a convolution, under both norms.
PLAIN = [
    bnmc.Chain(64, n, activation, norm=norm)
    for activation, n, norm in (
        ("relu", 5, "batch"),
        ("relu", 10, "batch"),
        ("abs", 4, "batch"),
    )
]


def averaged(chain, gram):
    """C(G), written out."""
    if chain.convolution is None:
        return gram
    return numpy_network.covariance(gram, chain.convolution.shape, chain.convolution.kernel)


def without_convolution(chain):
    return MeanField(bnmc.Chain(chain.width, chain.batch, chain.activation, norm=chain.norm))


def jacobian(chain, gram):
    """The Jacobian of a layer on symmetric matrices, by central differences of F(C(G))."""
    n, step, columns = chain.batch, 1e-5, []
    upper = np.triu_indices(n)
    for i, j in zip(*upper, strict=True):
        change = np.zeros((n, n))
        change[i, j] = change[j, i] = step
        ahead, back = (
            without_convolution(chain).step(averaged(chain, state), rtol=1e-12, rng=12).gram[upper]
            for state in (gram + change, gram - change)
        )
        columns.append((ahead - back) / (2.0 * step))
    return np.array(columns).T


#: Without a formula for the samples, integrals take seconds.
SLOW = [
    slow(bnmc.Chain(64, 4, "gelu")),
    slow(bnmc.Chain(64, 4, "relu", norm="batch-uncentred")),
    slow(bnmc.Chain(64, 5, "tanh")),
    slow(bnmc.Chain(64, 5, "relu", norm="batch-uncentred")),
]


@pytest.mark.parametrize("chain", [*CASES, *PLAIN, *SLOW], ids=repr)
def test_eigenvalues_are_those_of_the_layer(chain):
    point = MeanField(chain).fixed_point()
    modes = point.modes or (point,)
    expected = [
        eigenvalue
        for mode in modes
        for value, count in zip(mode.eigenvalues, mode.multiplicities, strict=True)
        for eigenvalue in [value] * (count // 2) + [np.conj(value)] * (count - count // 2)
    ]
    values = np.linalg.eigvals(jacobian(chain, point.gram))
    # All other deviations vanish in one layer.
    for value in np.concatenate([expected, np.zeros(len(values) - len(expected))]):
        nearest = np.argmin(np.abs(values - value))
        # A double zero of differences with an error of 1e-10 is known to its root.
        assert abs(values[nearest] - value) < (2e-6 if value and not point.modes else 2e-5)
        values = np.delete(values, nearest)
    assert point.rate == max(mode.rate for mode in modes)


@pytest.mark.parametrize("chain", CASES, ids=repr)
def test_modes_make_up_the_sectors(chain):
    point = MeanField(chain).fixed_point()
    fully = without_convolution(chain).fixed_point()
    assert (point.b, point.c, point.eigenvalues) == (fully.b, fully.c, fully.eigenvalues)
    total = sum(sum(mode.multiplicities) for mode in point.modes)
    assert total == sum(point.multiplicities) == sum(fully.multiplicities)
    assert fully.modes == ()
    assert point.modes[0].factor == 1.0
    np.testing.assert_array_equal(np.asarray(point), np.asarray(fully))


def test_one_image_has_no_constant_differences():
    """Of one image, differences of pixels have no frequency 0, so they decay faster."""
    point = MeanField(bnmc.Chain.conv(64, 1, "relu", shape=(1, 3), kernel=(1, 3))).fixed_point()
    assert point.modes[0].eigenvalues == ()
    assert point.rate < 1e-15  # all pixels of three are averaged in one layer
    assert max(map(abs, point.eigenvalues)) > 0.1


def test_steps_average_over_taps_and_add_the_bias():
    chain = bnmc.Chain.conv(64, 2, "relu", shape=(1, 3), kernel=(1, 2), norm="batch-uncentred")
    x = np.random.default_rng(0).standard_normal((12, 6))
    gram = x.T @ x / 12
    plain = without_convolution(chain)
    expected = np.asarray(plain.step(averaged(chain, gram)))
    np.testing.assert_allclose(MeanField(chain).step(gram), expected, rtol=1e-12)
    biased = bnmc.Chain(64, 6, "relu", norm="batch-uncentred", bias_variance=0.5, gain=2.0)
    expected = np.asarray(plain.step(gram + 0.5 / 4.0))
    np.testing.assert_allclose(MeanField(biased).step(gram), expected, rtol=1e-12)
    path = MeanField(biased).trajectory(gram, 3).gram
    np.testing.assert_allclose(path[1], expected, rtol=1e-12)
    np.testing.assert_allclose(path[2], plain.step(path[1] + 0.125), rtol=1e-12)


# The steps of the path are compared with their formula above.
@pytest.mark.slow
def test_wide_networks_follow_the_path():
    chain = bnmc.Chain(
        4000, 4, "tanh", norm="none", gain=1.2, bias_variance=0.2,
        convolution=bnmc.Convolution(shape=(1, 4), kernel=(1, 3)),
    )  # fmt: skip
    x = np.random.default_rng(1).standard_normal((4000, 4)) * [1.0, 2.0, 0.5, 1.0]
    run = bnmc.simulate(chain, 3, chains=8, initial=x, rng=2)
    expected = MeanField(chain).trajectory(run.gram[0, 0], 3, rng=3).gram
    # An entry spreads by less than 2/sqrt(4000) in a layer, and networks of width d have means
    # that differ by O(1/d): the bound is 6 standard errors of three layers.
    assert np.abs(run.gram.mean(axis=0) - expected).max() < 6 * 3 * 2 / np.sqrt(8 * 4000)


def test_the_slowest_component_is_a_mode():
    for chain in CHAINS[:2]:
        point = MeanField(chain).fixed_point()
        D = slowest_component(point, chain.convolution)
        mode = max(point.modes, key=lambda mode: mode.rate)
        assert np.linalg.norm(chain.convolution.covariance(D)) == pytest.approx(
            abs(mode.factor), rel=1e-12
        )
        assert np.linalg.norm(D) == pytest.approx(1.0)


def test_the_factor_is_that_of_the_average_over_taps():
    """Also its phase, for kernels of even size: the entry of pixels p and p + r is exp(2πi k·p)."""
    chain = bnmc.Chain.conv(64, 1, "linear", shape=(3, 4), kernel=(2, 2))
    for mode in MeanField(chain).fixed_point().modes:
        rows, columns = np.divmod(np.arange(12), 4)
        wave = np.exp(2j * np.pi * (mode.frequency[0] * rows / 3 + mode.frequency[1] * columns / 4))
        matrix = np.repeat(wave[:, None], 12, axis=1)
        image = averaged(chain, matrix.real) + 1j * averaged(chain, matrix.imag)
        np.testing.assert_allclose(image, mode.factor * matrix, atol=1e-14)
