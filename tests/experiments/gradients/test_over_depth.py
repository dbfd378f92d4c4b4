"""Norms of gradients over depth, under several laws of weights, and their directions."""

import functools

import numpy as np
import pytest
from experiment_checks import CERTAIN, FALSE_ALARM, reach, require_sound, stderr_of
from figure_sizes import FIGURES, run
from numpy_network import Networks
from scipy import special
from scipy.stats import t as student

import bnmc
from bnmc import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.gradients import directions


def moduli(chain, depth, count, seed):
    """Return mean moduli of cosines of real networks: of the readout, and of hidden weights."""
    rng = np.random.default_rng(seed)
    n = chain.batch
    networks = Networks(chain, depth, count, rng)
    readout = rng.standard_normal((count, n, chain.width)) / np.sqrt(chain.width)
    outputs = networks.outputs(readout)
    gradient = (special.softmax(outputs, axis=-1) - np.eye(n)) / n
    deltas, _ = networks.backward(networks.delta_of_outputs(readout, gradient))

    def correlations(products):
        lengths = np.sqrt(np.diagonal(products, axis1=1, axis2=2))
        return products / lengths[:, :, None] / lengths[:, None, :]

    pairs = np.triu_indices(n, 1)

    def mean(cosines):
        return np.nanmean(np.abs(cosines[:, pairs[0], pairs[1]]), axis=1)

    with np.errstate(invalid="ignore"):
        grams = [correlations(networks.gram(layer)) for layer in range(1, depth + 1)]
        of_delta = [correlations(matrices.swapaxes(1, 2) @ matrices) for matrices in deltas]
        hidden = [mean(of_delta[k] * grams[k - 1]) for k in range(1, depth)]
        return np.stack([mean(matrices) for matrices in grams], axis=1), np.stack(hidden, axis=1)


def test_the_table_has_the_readout_and_the_middle_layer():
    result = directions(width=8, batch=3, depth=5, chains=2, activations=("linear",))
    hidden = result.data["hidden"].sel(weight_layer=2).values.ravel()
    assert tuple(result.table.columns)[2:] == ("readout after 5 layers", "weights 2")
    assert [row[3].value for row in result.table.rows] == hidden.tolist()


class TestDirections:
    FIGURE = "gradients-directions"

    def test_cosines_are_those_of_real_networks(self, data):
        sizes = FIGURES["gradients-directions"].sizes
        count, chains = 1000, sizes["chains"]
        for row, name in enumerate(("linear", "relu")):
            for column, norm in enumerate(("none", "batch")):
                gain = 2**0.5 if name == "relu" and norm == "none" else 1.0
                chain = Chain(24, 4, name, norm=norm, gain=gain)
                theirs = moduli(chain, sizes["depth"], count, 3)
                for kind, values in zip(("readout", "hidden"), theirs, strict=True):
                    error = np.hypot(
                        stderr_of(data, kind, chains)[row, column],
                        values.std(axis=0) / np.sqrt(count),
                    )
                    far = np.abs(data[kind].values[row, column] - values.mean(axis=0))
                    # 36 comparisons in all.
                    assert (far < special.ndtri(1 - CERTAIN / 2) * error).all(), (name, norm, kind)

    def test_only_vanilla_networks_align(self):
        deep = directions(width=24, batch=4, depth=240, chains=30)
        last = deep.data["readout"].values[:, :, -1]
        assert (last[:, 0] > 0.9).all()
        assert (last[:, 1] < 0.6).all()
        middle = deep.data["hidden"].values[:, :, 120]
        assert (middle[:, 0] > 2 * middle[:, 1]).all()


NAMES = FIGURES["gradients-explosion"].sizes["activations"]


class TestExplosion:
    # It alone compiles the backward pass of orthogonal weights for float32; that for float64 is
    # tested each time.
    @pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)])
    def explosion(self, request, small):
        return _of_both_laws() if request.param else small("gradients-explosion")

    def test_rates_are_those_of_the_mean_field_but_for_the_width(self, explosion):
        data = explosion.data
        assert explosion.table.columns[0] == "activation"
        for index, name in enumerate(NAMES):
            star = bnmc.MeanField(bnmc.Chain(300, 10, name)).fixed_point()
            assert float(data["mean_field"][index]) == star.backward_rate
            for place, weights in enumerate(data["weights"].values):
                row = explosion.table.rows[index + place * len(NAMES)]
                assert row[:2] == (name, weights)
                assert isinstance(row[2], Estimate)
                # The effect of the width has the relative size batch / width.
                allowed = reach(row[2]) + star.backward_rate * 10 / 300
                assert abs(row[2].value - star.backward_rate) < allowed
                assert row[4] == pytest.approx(100 * (row[2].value / star.backward_rate - 1))

    def test_curves_begin_at_the_last_layer(self, explosion):
        data = explosion.data
        np.testing.assert_array_equal(data["log_norm"][0, :, -1], 0.0)
        assert data["layer"].values[[0, -1]].tolist() == [0, 79]
        for of_weights in data["log_norm"]:
            slopes = of_weights[:, 20] - of_weights[:, 60]
            np.testing.assert_allclose(slopes, 20 * np.log(data["mean_field"]), rtol=0.2)

    def test_picture(self, explosion):
        require_sound(explosion, "gradients-explosion", approved=False)


@functools.cache
def _of_both_laws():
    return run("gradients-explosion", weights=("gaussian", "haar"), threads=2)


SIZES = FIGURES["gradients-orthogonal"].sizes


def log_norms(chain, depth, count, seed):
    """Return log norms of the gradients of real networks, (networks, layers)."""
    rng = np.random.default_rng(seed)
    networks = Networks(chain, depth, count, rng)
    _, gradients = networks.backward(rng.standard_normal((count, chain.width, chain.batch)))
    return np.stack(
        [np.log(np.linalg.norm(gradient, axis=(1, 2))) for gradient in gradients], axis=1
    )


class TestOrthogonal:
    FIGURE = "gradients-orthogonal"

    @pytest.mark.slow
    def test_norms_are_those_of_real_networks(self, data):
        count = 800
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
                    stderr_of(data, "log_norm", SIZES["chains"])[index, row],
                    logs.std(axis=0) / np.sqrt(count),
                )
                far = np.abs(data["log_norm"].values[index, row] - logs.mean(axis=0))
                # 28 comparisons in all.
                assert (far <= special.ndtri(1 - CERTAIN / 2) * error).all(), (batch, weights)

    def test_growths_are_those_of_the_curves(self, figure):
        data = figure.data
        curve = data["log_norm"].values
        np.testing.assert_allclose(data["growth"], (curve[..., 2] - curve[..., 6]) / 4, rtol=1e-9)
        np.testing.assert_allclose(data["total"], curve[..., 0], rtol=1e-9)
        assert [row[:3] for row in figure.table.rows[:2]] == [
            ("linear", 12, "gaussian"), ("linear", 12, "haar"),
        ]  # fmt: skip
        for row, sentence in zip(figure.table.rows, figure.findings, strict=True):
            low, high = row[3].ci
            said = "contains" if low <= row[4] <= high else "excludes"
            assert f"the interval {said} the" in sentence


class TestNorms:
    def test_orthogonal_samples_bound_the_gradients(self):
        """The norms of as many orthogonal samples as features follow the docstring's closed form.

        They cannot grow towards the input: all rows keep the length √n, so the norm's derivative is
        a projection.
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
