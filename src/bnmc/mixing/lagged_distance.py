"""`LaggedDistance`: the distance of two layers that are a lag apart, without any assumption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc._support.text import text_table


@dataclass(frozen=True)
class LaggedDistance:
    r"""Upper bounds of ‖μ_l − μ_{l+lag}‖_tv for each layer l; ``print`` shows a table.

    A pair that has met by layer l + lag of the chain ahead is one state with both laws, so

    .. math:: \|\mu_l - \mu_{l + L}\|_{tv} \le P(\tau - L > l)

    for any chain, any law of layer 0 and any lag L.  The number of pairs that have not met is
    binomial, so the confidence intervals of the probability are exact.  A small distance between
    layers l and l + L does not mean that μ_l is near the stationary law: if a chain leaves a set of
    states only once in 10⁶ layers, the two laws are nearly equal for about that long.

    Attributes
    ----------
    layers : (depth + 1,) ndarray of int
        0 to depth.
    bound : (depth + 1,) ndarray of float64
        Share of the pairs that have not met l layers after the coupling began.
    ci : (depth + 1, 2) ndarray of float64
        Clopper–Pearson intervals of P(τ − lag > l), for each layer separately.
    band : float
        Half width of a confidence band for all layers simultaneously (Dvoretzky, Kiefer and
        Wolfowitz, with Massart's constant).
    lag : int
        Layers between the two laws.
    replicates : int
        Number of pairs.
    level : float
        Level of the intervals and of the band.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(width=500, batch=5, activation="relu")
    >>> cert = bnmc.mixing.tv_bound(chain, depth=8, replicates=200, rng=0)
    >>> print(cert.lagged)
    Upper bound of the total-variation distance between layers l and l + 7; 200 pairs, no assumption
    layer  bound      95 % interval
        0      1        [0.9817, 1]
        1      1        [0.9817, 1]
        2      1        [0.9817, 1]
        4   0.99   [0.9643, 0.9988]
        8  0.065  [0.03506, 0.1086]
    """

    layers: NDArray[np.int64]
    bound: NDArray[np.float64]
    ci: NDArray[np.float64]
    band: float
    lag: int
    replicates: int
    level: float

    def layers_to(self, tolerance: float) -> int | None:
        """Return the first layer whose interval ends at or below `tolerance`; None if none does."""
        below = np.flatnonzero(self.ci[:, 1] <= real("tolerance", tolerance, above=0.0))
        return int(self.layers[below[0]]) if below.size else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as numbers and lists, for `json.dumps`."""
        return {
            "lag": self.lag,
            "bound": self.bound.tolist(),
            "ci": self.ci.tolist(),
            "band": self.band,
        }

    def __str__(self) -> str:
        """The bound at layers 0, 1, 2, 4, 8, … and the last, with its interval."""
        rows = [
            (
                str(layer),
                bound_text(self.bound[layer], self.replicates),
                "[{:.4g}, {:.4g}]".format(*self.ci[layer]),
            )
            for layer in shown_layers(int(self.layers[-1]))
        ]
        table = text_table(
            ("layer", "bound", f"{100 * self.level:g} % interval"), rows, align=">>>"
        )
        return (
            f"Upper bound of the total-variation distance between layers l and l + {self.lag}; "
            f"{self.replicates} pairs, no assumption\n{table}"
        )


def bound_text(bound: float, replicates: int) -> str:
    """Return a bound as text: a share of 0 of the pairs is less than one pair, not nothing."""
    return f"{bound:.4g}" if bound > 0.0 else f"< {1.0 / replicates:.4g}"


def shown_layers(depth: int) -> list[int]:
    """Return the layers of a table: 0, the powers of 2, and `depth`."""
    return sorted({0, depth} | {2**k for k in range(depth.bit_length()) if 2**k < depth})
