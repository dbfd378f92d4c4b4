"""`Scaling` against the table of the lectures, and against networks."""

from fractions import Fraction

import numpy as np
import pytest
from slow_cases import some

from bnmc.errors import UnknownNameError
from bnmc.infinite_width import SCALINGS, Scaling, train_networks
from bnmc.infinite_width.scalings import Properties

HALF = Fraction(1, 2)


@pytest.mark.parametrize(
    ("name", "held"),
    [("ntk", [1, 2, 3]), ("mean-field", [2, 4]), ("sym-default", [1, 4]), ("default", [1]),
     ("ic-mf", [1, 2, 3, 4])],
)  # fmt: skip
def test_properties_of_the_lectures(name, held):
    properties = SCALINGS[name].properties()
    names = "finite_logits", "finite_kernels", "same_order", "evolving_kernels"
    holds = [number for number, name in enumerate(names, 1) if getattr(properties, name)]
    assert holds == held
    assert properties.well_defined


@pytest.mark.parametrize(
    ("q_sigma", "q_tilde"), [(-1, 0), (-HALF, 1), (0, 0), (Fraction(-3, 4), HALF), (-2, 1.5)]
)
def test_the_four_conditions(q_sigma, q_tilde):
    properties = Scaling(q_sigma, q_tilde).properties()
    q, t = Fraction(q_sigma), Fraction(q_tilde)
    assert properties == Properties(q + HALF, (2 * q + t + 1,) * 2, q + t + HALF, (q + t,) * 2)
    assert properties.well_defined == (-HALF <= q + t <= 0)


@pytest.mark.parametrize(
    ("name", "powers", "hidden"),
    [("default", (0, 0, 0), 0), ("sym-default", (0, -0.5, 0.5), -0.5), ("ntk", (0, -1, 0), -1),
     ("mean-field", (-0.5, -1, 1), 0), ("ic-mf", (-0.5, -1, 1), 0)],
)  # fmt: skip
def test_factors_of_the_authors_code(name, powers, hidden):
    """Factors of weights, and of the rates of output, input and hidden weights, at 16 widths."""
    scaling = SCALINGS[name]
    assert scaling.factors(2048, 128) == pytest.approx(16.0 ** np.array(powers))
    assert scaling.factors(128, 128) == (1.0, 1.0, 1.0)
    assert scaling.hidden_rate(2048, 128) == pytest.approx(16.0**hidden)
    assert Scaling(-HALF, 0, q_hidden=2).hidden_rate(2048, 128) == pytest.approx(16.0)


@pytest.mark.parametrize("name", some(SCALINGS, "default", "mean-field"))
def test_measured_powers_of_two_hidden_layers(name):
    """Powers of the kernels at the start between widths 16 and 256.

    With linear activation the expectations of the kernels of output, hidden and input weights are
    exactly proportional to σ⁴ d² times the learning rate of weights of variance 1.
    """
    widths, networks = (16, 256), 100
    runs = [
        train_networks(
            name, np.eye(2), [0, 1], [0], width=d, hidden_layers=2, chains=networks,
            reference_width=1, activation="linear", rng=d,
        )
        for d in widths
    ]  # fmt: skip
    scaling = SCALINGS[name]
    output, inputs = scaling.q_tilde
    for which, rate in enumerate((output, scaling.q_hidden, inputs)):
        values = [run.kernels[:, 0, which] for run in runs]
        power = np.log(values[1].mean() / values[0].mean()) / np.log(16.0)
        relative = [kernels.std(ddof=1) / kernels.mean() / np.sqrt(networks) for kernels in values]
        error = np.hypot(*relative) / np.log(16.0)
        # 5.3 standard errors are exceeded with probability 1e-7 a comparison. Powers of a wrong
        # exponent are 1/2 away, more than these and 1.7 more.
        assert error < 0.07
        expected = float(4 * scaling.q_sigma + 2 + rate)
        assert power == pytest.approx(expected, abs=5.3 * error)


def test_a_misspelt_name_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'ntk'"):
        SCALINGS["ntkk"]


# The test before has all scalings: they differ in exponents alone.
@pytest.mark.parametrize("name", some(SCALINGS, "mean-field"))
def test_measured_powers(name):
    """Powers of outputs, kernels and the change of kernels between widths 256 and 4096."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 12)) / 2.0
    runs = [
        train_networks(name, x, x[0] > 0, [0, 1], width=d, chains=200, activation="tanh",
                      learning_rate=1e-4, rng=d)
        for d in (256, 4096)
    ]  # fmt: skip
    expected = SCALINGS[name].properties()

    def power(values):
        return np.log(values[1] / values[0]) / np.log(16.0)

    # The relative error of a mean square of 200 networks (x 12 dependent samples) is at most
    # sqrt(2 / 200) each, so that of the power sqrt(2) 0.1 / (2 ln 16) = 0.026; five of them.
    logits = power([np.sqrt(np.square(run.outputs[:, 0]).mean()) for run in runs])
    assert logits == pytest.approx(float(expected.logits), abs=0.13)
    for which in (0, 1):
        kernels = power([run.kernels[:, 0, which].mean() for run in runs])
        assert kernels == pytest.approx(float(expected.kernels[which]), abs=0.05)
