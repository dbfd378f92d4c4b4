"""Gradient norms under Gaussian and orthogonal weights, beside real networks and a closed form."""

import numpy as np
import pytest
from experiment_checks import CERTAIN, FALSE_ALARM, drawn, stderr_of
from figure_sizes import FIGURES
from numpy_network import Networks
from scipy import special
from scipy.stats import t as student

import bnmc

SIZES = FIGURES["gradients-orthogonal"].sizes


def log_norms(chain, depth, count, seed):
    """Return log norms of the gradients of real networks, (networks, layers)."""
    rng = np.random.default_rng(seed)
    networks = Networks(chain, depth, count, rng)
    _, gradients = networks.backward(rng.standard_normal((count, chain.width, chain.batch)))
    return np.stack([np.log(np.linalg.norm(one, axis=(1, 2))) for one in gradients], axis=1)


class TestOrthogonal:
    @pytest.fixture
    def found(self, small):
        return small("gradients-orthogonal")

    def test_norms_are_those_of_real_networks(self, found):
        data, count = found.data, 2000
        for index, (name, batch) in enumerate(SIZES["kinds"]):
            star = bnmc.MeanField(bnmc.Chain(12, batch, name, norm="batch-uncentred")).fixed_point()
            assert float(data["mean_field"][index]) == pytest.approx(
                0.5 * np.log((batch - 1) / (batch - 2)), rel=1e-9
            )
            assert star.backward_rate == pytest.approx((batch - 1) / (batch - 2), rel=1e-9)
            for row, weights in enumerate(("gaussian", "haar")):
                chain = bnmc.Chain(12, batch, name, norm="batch-uncentred", weights=weights)
                logs = log_norms(chain, SIZES["depth"], count, 3)
                logs = logs - logs[:, -1:]
                error = np.hypot(
                    stderr_of(data, "log_norm", SIZES["networks"])[index, row],
                    logs.std(axis=0) / np.sqrt(count),
                )
                far = np.abs(data["log_norm"].values[index, row] - logs.mean(axis=0))
                # 28 comparisons in all.
                assert (far <= special.ndtri(1 - CERTAIN / 2) * error).all(), (batch, weights)

    def test_growths_are_those_of_the_curves(self, found):
        data = found.data
        curve = data["log_norm"].values
        np.testing.assert_allclose(data["growth"], (curve[..., 2] - curve[..., 6]) / 4, rtol=1e-9)
        np.testing.assert_allclose(data["total"], curve[..., 0], rtol=1e-9)
        assert [row[:3] for row in found.table.rows[:2]] == [
            ("linear", 12, "gaussian"), ("linear", 12, "haar"),
        ]  # fmt: skip
        for row, sentence in zip(found.table.rows, found.findings, strict=True):
            low, high = row[3].ci
            said = "contains" if low <= row[4] <= high else "excludes"
            assert f"the interval {said} the" in sentence

    def test_picture(self, found):
        axes = found.plot().axes
        assert drawn(axes[0], found.data["log_norm"][0, 1])
        assert drawn(axes[1], found.data["log_norm"][1, 0])
        slope = float(found.data["mean_field"][0])
        assert drawn(axes[0], slope * (7 - found.data["layer"].values))


def test_orthogonal_samples_bound_the_gradients():
    """The norms of as many orthogonal samples as features follow the docstring's closed form.

    They cannot grow towards the input: all rows keep the length √n, so the norm's derivative is a
    projection.
    """
    d, depth, chains = 20, 40, 200
    start = np.sqrt(d) * np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))[0]
    chain = bnmc.Chain(d, d, "linear", norm="batch-uncentred", weights="haar")
    run = bnmc.backpropagate(
        chain, depth, chains=chains, initial=start, rng=1, observables=(), threads=1
    )
    logs = run.log_gradient_norm
    assert (np.diff(logs, axis=1) >= -depth * d**2 * np.finfo(float).eps).all()
    k = np.arange(depth - 1, -1, -1)
    expected = d * (d - 1) / 2 + (d * (d + 1) / 2 - (k > 0)) * (d / (d + 2)) ** k
    squares = np.exp(2 * logs) / d  # the Gram matrix is the identity
    error = squares.std(axis=0, ddof=1) / np.sqrt(chains)
    reach = student.ppf(1 - FALSE_ALARM / depth / 2, chains - 1)
    assert (np.abs(squares.mean(axis=0) - expected) <= reach * error).all()
