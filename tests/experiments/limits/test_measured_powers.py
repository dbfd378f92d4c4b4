"""Measured powers of the width beside those of the theory, which is written out."""

import numpy as np
from scipy import special

#: Outputs, two kernels, change of outputs, square of output weights, change of both weights, and
#: change of both kernels as sums over neurons.
THEORY = {
    "ntk": (0, 0, 0, 0, -1, -0.5, -0.5, -1, -1),
    "mean-field": (-0.5, 0, 0, 0, -2, 0, 0, 0, 0),
    "default": (0, 1, 0, 1, -1, 0.5, -0.5, -1, 1),
    "sym-default": (0, 0.5, 0.5, 0.5, -1, 0, 0, 0, 0),
    "ic-mf": (0, 0, 0, 0, -2, 0, 0, 0, 0),
}
PRINTED = {
    "ntk": (-0.5, -0.5), "mean-field": (0, 0), "default": (-0.5, 0.5), "sym-default": (0, 0),
    "ic-mf": (0, 0),
}  # fmt: skip


FIGURE = "limits-exponents"


def test_theory(data):
    for name, powers in THEORY.items():
        part = data.sel(scaling=name)
        np.testing.assert_allclose(part["summed"], powers, atol=1e-12)
        np.testing.assert_allclose(part["printed"], (*powers[:7], *PRINTED[name]), atol=1e-12)


def test_measured_powers(data):
    """Within six standard errors and 0.15, for the next order at width 64."""
    power = data["power"]
    errors = (data["power_high"] - power) / special.ndtri(0.975)
    gap = np.abs(power - data["summed"])
    assert (gap < 6 * errors + 0.15).all()
    assert float(errors.median()) < 0.03
    # The power -1/2 of the change of kernels under NTK is excluded.
    change = power.sel(scaling="ntk", quantity="change of kernel of output weights")
    assert float(change) < -0.7
