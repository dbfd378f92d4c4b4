"""How initial weights and learning rates of a trained network depend on its widths.

Each matrix has one ratio r: its fan-in over the reference width, or for the matrix of the inputs
its number of rows over that width.  At r = 1 all parametrizations are the same network.
"""

from __future__ import annotations

from typing import NamedTuple

from bnmc._support.arguments import choice
from bnmc.errors import ArgumentError
from bnmc.infinite_width.scalings import Scaling

#: The places of matrices: that of the inputs, those between hidden layers, and the readout.
INPUT, HIDDEN, READOUT = range(3)


class Powers(NamedTuple):
    """Powers of r for the matrix of the inputs, hidden matrices and the readout.

    Attributes
    ----------
    deviations : tuple of float
        Of the standard deviation of the weights, on top of gain/√fan_in.
    rates : tuple of float
        Of the learning rate.
    """

    deviations: tuple[float, float, float]
    rates: tuple[float, float, float]


#: Multipliers are part of the weights: f = m w x with the rate η for w is W = m w with m² η.
_PARAMETRIZATIONS = {
    "standard": Powers((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    "standard/n": Powers((0.0, 0.0, 0.0), (-1.0, -1.0, -1.0)),
    "ntk": Powers((0.0, 0.0, 0.0), (0.0, -1.0, -1.0)),
    "mean-field": Powers((0.0, -0.5, -0.5), (1.0, 0.0, -1.0)),
    "mup": Powers((0.0, 0.0, -0.5), (1.0, 0.0, -1.0)),
    "symmetric": Powers((0.0, 0.0, 0.0), (0.5, -0.5, -0.5)),
}


def powers_of(parametrization: object) -> Powers:
    """Return the powers of a parametrization: a name or a `Scaling`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is neither, or a scaling that replaces the outputs at initialization.
    """
    if not isinstance(parametrization, Scaling):
        return _PARAMETRIZATIONS[choice("parametrization", parametrization, _PARAMETRIZATIONS)]
    if parametrization.corrected:
        hint = "bnmc.infinite_width.train_networks has it"
        raise ArgumentError("parametrization", parametrization, "corrected=False", hint)
    weights = float(parametrization.q_sigma)
    output, inputs = (float(power) for power in parametrization.q_tilde)
    hidden = float(parametrization.q_hidden)
    return Powers(
        (0.0, weights + 0.5, weights + 0.5),
        (inputs, hidden + 2.0 * weights, output + 2.0 * weights),
    )
