"""Mean squares of fluctuations: measured over predicted, and the difference against width.

Half an hour of one core.  Each case is a test of its own: a run that Ctrl-C ends keeps its
finished cases, and `-k` measures the others.
"""

import math

import numpy as np
import pytest

import bnmc
from bench.turns import FULL, TINY, only
from bnmc._kernels.scalar.activations import BUILTIN

# Chains whose fixed point has a rate up to this are compared at this width. Their mean squares are
# measured to about this relative standard error. To three standard errors they differ by at most
# the floor.
MOST_RATE, WIDTH, STDERR, FLOOR = 0.95, 10_000, 0.0033, 0.01
BATCHES = (5, 10, 32)

# The widths of the table of remainders, with the relative standard error of each.
SLOPE_WIDTHS, SLOPE_STDERR = (250, 500, 1000, 2000), 0.0015
SLOPE_CASES = (("linear", 10), ("relu", 10))

# Independent chains of a run; each has one mean.
CHAINS = 16


#: All but two cases, whose fixed points are slow (rate .988) and unstable (1.019).
CASES = [
    (activation, batch)
    for activation in BUILTIN
    for batch in BATCHES
    if (activation, batch) not in (("gelu", 32), ("silu", 32))
]


@pytest.mark.parametrize(
    "case",
    only(CASES, quick=[case for case in CASES if case[1] < 32], tiny=CASES),
    ids=lambda case: "{}, {}".format(*case),
)
def test_ratios(turns, case):
    """The ratio at one width."""
    activation, batch = case
    width, stderr = turns.of((WIDTH, STDERR), (WIDTH, 0.01), (100, 0.5))
    turns.group = f"E|G - G*|^2 at width {width}, norm batch, measured over predicted"
    rate = bnmc.MeanField(bnmc.Chain(width, batch, activation)).fixed_point().rate
    name = f"{activation}, {batch}"
    value, error, predicted = turns.timed(name, lambda: ratio(activation, batch, width, stderr))
    turns.add(name, {"predicted": predicted, "ratio": value,
                     "standard error": error, "off by": abs(value - 1.0) / error})  # fmt: skip
    turns.hold(name, "rate", rate, at_most=MOST_RATE)
    excess = abs(value - 1.0) - 3.0 * error
    turns.hold(name, "|ratio - 1| less 3 standard errors", excess, at_most=FLOOR)


@pytest.mark.runs(FULL, TINY)
@pytest.mark.parametrize(("activation", "batch"), SLOPE_CASES)
def test_slopes(turns, activation, batch):
    """The remainder ratio − 1 by width, its fit c/width, and its slope if it is positive.

    The errors of the remainders come from 16 chains, so four of them have a false-alarm probability
    of 1e-3 for each width.
    """
    widths, stderr = turns.of((SLOPE_WIDTHS, SLOPE_STDERR), (), ((50, 100), 0.5))
    turns.group = f"Remainder of the linear theory, {activation}, batch {batch}"
    results = [
        turns.timed(f"{width}", lambda width=width: ratio(activation, batch, width, stderr))[:2]
        for width in widths
    ]
    values, errors = np.array(results).T
    rest, inverse = values - 1.0, 1.0 / np.array(widths, dtype=float)
    weight = (inverse / errors) ** 2
    factor = float(weight @ (rest / inverse) / weight.sum())
    apart = np.abs(rest - factor * inverse) / errors
    for width, remainder, error, far in zip(widths, rest, errors, apart, strict=True):
        turns.add(f"{width}", {"ratio - 1": float(remainder), "standard error": float(error)})
        turns.hold(f"{width}", "standard errors from c/width", float(far), at_most=4.0)
    fit = {"c": factor, "its error": float(weight.sum() ** -0.5)}
    if (rest > 0.0).all():
        fit["slope"], fit["error of the slope"] = power(1.0 / inverse, rest, errors)
    turns.add(f"{widths[-1]}", fit)


def power(widths, values, errors):
    """Return the exponent of a power law of the width, and its standard error."""
    x, y = np.log(widths), np.log(np.maximum(values, 1e-9))
    weight = (values / errors) ** 2
    centred = x - weight @ x / weight.sum()
    size = float(weight @ centred**2)
    return float(weight @ (centred * y)) / size, 1.0 / math.sqrt(size)


def ratio(name, batch, width, stderr):
    """Return the ratio, its standard error, and the prediction."""
    chain = bnmc.Chain(width, batch, name)
    law = bnmc.MeanField(chain).fluctuations()
    predicted = law.mean_square(width).value
    layers = math.ceil(needed(law) / stderr**2 / CHAINS)
    burn_in = math.ceil(math.log(1e-4) / math.log(min(law.fixed_point.rate, 0.999)))
    run = bnmc.simulate(chain, burn_in + layers, burn_in=burn_in + 1, chains=CHAINS, rng=21)
    deviation = run.gram - law.fixed_point.gram
    means = np.einsum("clij,clij->c", deviation, deviation) / deviation.shape[1] / predicted
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(CHAINS)), predicted


def needed(law):
    """Return the relative variance of a mean square over layers, times their number."""
    total = squares = 0.0
    for sector in law.sectors:
        values, memory = np.linalg.eigvalsh(sector.variance), sector.eigenvalue**2
        total += sector.multiplicity * float(values.sum())
        squares += sector.multiplicity * float(values @ values) * (1 + memory) / (1 - memory)
    return 2.0 * squares / total**2
