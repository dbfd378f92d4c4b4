"""The stationary spectrum of Gram matrices of deep networks with batch normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bnmc._support.arguments import integer, real
from bnmc._support.text import Result
from bnmc.errors import ArgumentError
from bnmc.plot.axes import COLOURS
from bnmc.plot.drawn import Drawn
from bnmc.random_matrix.marchenko_pastur import MarchenkoPastur

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class StationaryBulk(Drawn, Result):
    """Approximate law of the eigenvalues of a stationary Gram matrix of a wide, deep network.

    Fluctuations of all layers add up, so the bulk is wider than that of one Gaussian layer, which
    is the law of Marchenko and Pastur of ratio n/d. Its variance is v times as large, and the law
    of ratio v n/d has that variance. Quantiles are within about .01 of the mean. `plot` draws the
    density of the bulk, and a line at the eigenvalue outside.

    Parameters
    ----------
    width : int
        d, at least 1.
    batch : int
        n, at least 2.
    b : float
        Diagonal entries of the Gram matrix at infinite width, above 0 and at most 1e150.
    c : float
        Correlation of two samples, in [−1/(n−1), 1).
    spread : float
        v, the variance of the bulk over n/d, above 0.
        `bnmc.mean_field.Fluctuations.bulk` takes all numbers from the mean field of a chain.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed, or v n/d is at least 1, where the approximation fails.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(500, 20, "relu")
    >>> spectrum = bnmc.MeanField(chain).fluctuations().bulk(500)
    >>> law = spectrum.bulk
    >>> print((law.ppf([0.05, 0.5, 0.95]) / law.mean()).round(3), round(spectrum.outlier, 3))
    [0.567 0.97  1.528] 3.278
    """

    width: int
    batch: int
    b: float
    c: float
    spread: float

    def __post_init__(self) -> None:
        batch = integer("batch", self.batch, low=2)
        values = {
            "width": integer("width", self.width, low=1),
            "batch": batch,
            "b": real("b", self.b, above=0.0, high=1e150),
            "c": real("c", self.c, low=-1.0 / (batch - 1.0), below=1.0),
            "spread": real("spread", self.spread, above=0.0),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.spread * self.batch >= self.width:
            allowed = f"a width above {self.spread * self.batch:.4g}, v times the batch"
            raise ArgumentError("width", self.width, allowed)

    @property
    def bulk(self) -> MarchenkoPastur:
        """Law of the n − 1 eigenvalues orthogonal to (1, …, 1), of mean b (1 − c)."""
        ratio = self.spread * self.batch / self.width
        return MarchenkoPastur(ratio, self.b * (1.0 - self.c))

    @property
    def outlier(self) -> float:
        """The eigenvalue along (1, …, 1), b (1 + (n − 1) c)."""
        return self.b * (1.0 + (self.batch - 1.0) * self.c)

    @property
    def _about(self) -> str:
        return f"width {self.width}, batch {self.batch}"

    def _draw(self, ax: Axes) -> None:
        law = self.bulk
        x = np.linspace(*law.edges, 400)
        ax.plot(x, law.pdf(x), color=COLOURS[0], label=f"{self.batch - 1} eigenvalues")
        label = "eigenvalue along (1, …, 1)"
        ax.axvline(self.outlier, color=COLOURS[1], linestyle="--", label=label)
        ax.set(xlabel="eigenvalue of G", ylabel="density")
        ax.legend(fontsize="small")
