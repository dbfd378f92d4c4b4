"""The law of linear networks with batch normalization in deep layers."""

from __future__ import annotations

from bnmc._support.arguments import integer
from bnmc.bounds.orthogonalizes import stationary_squared_distance


def stationary_linear(width: int, batch: int) -> float:
    r"""Mean square of :math:`\|G - G_*\|_F` in deep linear layers with batch normalization.

    :math:`n^2 (m-1)(m+2)^2 / (4 m (m+1) d)` with d the width, n the batch size and m = n − 1, to
    leading order in 1/d (`bnmc.bounds.orthogonalizes.stationary_squared_distance`).  One layer
    adds the mean square :math:`n^2 (m-1)/(m d)`; the sum over all former layers divides it by
    1 − λ², with λ = m/(m+2).

    Parameters
    ----------
    width, batch : int
        d >= 1 and n >= 2.

    Returns
    -------
    float

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not such an integer.

    Examples
    --------
    >>> from bnmc.experiments.bridging import stationary_linear
    >>> round(stationary_linear(1000, 10), 4)
    0.2689
    """
    width, batch = integer("width", width, low=1), integer("batch", batch, low=2)
    return float(stationary_squared_distance(width, batch))
