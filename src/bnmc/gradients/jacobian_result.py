"""The result of `jacobian`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array
from bnmc._support.text import Result, text_table
from bnmc.chain.chain import Network, layer_at, options_of, shown_of
from bnmc.errors import ArgumentError, BnmcError, PartialEstimateError
from bnmc.estimate.estimate import Estimate
from bnmc.gradients.limit_law import jacobian_law
from bnmc.plot import axes
from bnmc.plot.drawn import Drawn
from bnmc.random_matrix.product_law import ProductLaw

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Layers in a table, at most.
_SHOWN = 11

#: Columns of a table about the networks, before those about infinite width.
_MEASURED = 4

#: Logarithms of squares that a mean can hold.
_LONGEST = 300.0


@dataclass(frozen=True, eq=False, repr=False)
class Jacobian(Drawn, Result):
    """Singular values of Jacobians of an ensemble of networks; ``print`` shows a table.

    `plot` draws the squared singular values of the last layer beside the law at infinite width.

    Attributes
    ----------
    network : Network
    depth : int
    layers : (layers,) ndarray of int
        The layers of the singular values, of 1, …, depth.
    log_singular_values : (chains, layers, samples, directions) ndarray of float64
        ln of the singular values of J_l, in decreasing order; −inf for 0.  Under a norm over the
        batch `samples` is 1: the batch is one sample.
    features : int
        Number of entries of s_0 of a sample: the number of all directions.
    mean_squares : tuple of (float, float)
        Smallest and largest mean square of a_0 over the samples; for a start with a law, that at
        infinite width.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.
    initial : str
        The start: "gaussian", or the type of another one.

    Examples
    --------
    >>> import bnmc
    >>> chain = bnmc.Chain(60, 1, "tanh", norm="none")
    >>> found = bnmc.gradients.jacobian(chain, 3, chains=20, rng=0)
    >>> found.log_singular_values.shape
    (20, 3, 1, 60)
    >>> print(found)
    Chain(width=60, batch=1, activation='tanh', norm='none'): Jacobians of 20 networks, ...
    layer  mean s²  variance/mean²  largest/mean  limit of mean  variance/mean²  largest/mean
        1    0.633            1.23          4.27          0.637            1.23           4.6
        2    0.461            2.41          6.71          0.463            2.36          7.72
        3    0.356            3.56          8.84          0.362            3.44          10.7
    """

    network: Network
    depth: int
    layers: NDArray[np.int64]
    log_singular_values: Float64Array
    features: int
    mean_squares: tuple[float, float] = field(repr=False)
    key: int = field(repr=False)
    initial: str = field(repr=False)

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.log_singular_values)

    @property
    def squared_singular_values(self) -> Float64Array:
        """Squared singular values in the last layer, (chains, samples · directions).

        Those beyond the range of float64 are infinite or 0.
        """
        with np.errstate(over="ignore", under="ignore"):
            return np.exp(2.0 * self.log_singular_values[:, -1]).reshape(self.chains, -1)

    def mean(self, layer: int | None = None, *, level: float = 0.95) -> Estimate:
        """Return the mean of squared singular values: E tr JᵀJ over the number of its columns.

        Parameters
        ----------
        layer : int, optional
            A layer of `layers`; default: the last one.
        level : float, default 0.95

        Raises
        ------
        ArgumentError
            If the layer has no singular values.
        PartialEstimateError
            If there is one network, or the values leave the range of float64.
        """
        squares = self._squares(layer)
        return self._estimate(squares.mean(axis=(1, 2)), level, "mean of squared singular values")

    def dispersion(self, layer: int | None = None, *, level: float = 0.95) -> Estimate:
        """Return the variance of the squared singular values of a network over their squared mean.

        Parameters and errors are those of `mean`; it needs all directions.
        """
        if self.log_singular_values.shape[-1] != self.features:
            allowed = f"all {self.features}, for the variance of the spectrum"
            raise ArgumentError("directions", self.log_singular_values.shape[-1], allowed)
        squares = self._squares(layer)
        ratios = squares.var(axis=2) / squares.mean(axis=2) ** 2
        return self._estimate(ratios.mean(axis=1), level, "variance over squared mean")

    def largest(self, layer: int | None = None, *, level: float = 0.95) -> Estimate:
        """Return the mean over networks of the largest squared singular value.

        Parameters and errors are those of `mean`.
        """
        tops = self._squares(layer).max(axis=2).mean(axis=1)
        return self._estimate(tops, level, "largest squared singular value")

    def smallest(self, layer: int | None = None, *, level: float = 0.95) -> Estimate:
        """Return the mean over networks of the smallest squared singular value.

        Parameters and errors are those of `mean`.
        """
        ends = self._squares(layer).min(axis=2).mean(axis=1)
        return self._estimate(ends, level, "smallest squared singular value")

    def law(self, layer: int | None = None) -> ProductLaw:
        """Return the law at infinite width; see `jacobian_law`.

        Parameters
        ----------
        layer : int, optional
            From 1 to `depth`; default: the last one.

        Raises
        ------
        ArgumentError
            If the law is not known: for skip connections and convolutions, if samples have
            different sizes on which it depends, and under a norm over the batch if the start is
            not "gaussian".
        """
        depth = self.depth if layer is None else layer
        network = self.network.until(depth)
        if layer_at(network, 1).rows.norm.axis == "batch":
            if self.initial != "gaussian":
                hint = "under a norm over the batch the law is known for this start only"
                raise ArgumentError("initial", self.initial, '"gaussian"', hint)
            return jacobian_law(network)
        low, high = (jacobian_law(network, mean_square=each) for each in self.mean_squares)
        if not math.isclose(low.log_mean, high.log_mean, rel_tol=1e-9, abs_tol=1e-9):
            ends = " to ".join(f"{each:.4g}" for each in self.mean_squares)
            hint = "the law depends on the mean square of the activations a_0 of a sample"
            raise ArgumentError("initial", f"mean squares {ends}", "equal mean squares", hint)
        return low

    @property
    def _about(self) -> str:
        return axes.about_network(self.network)

    def _draw(self, ax: Axes) -> None:
        """Draw the squared singular values of the last layer beside the law at infinite width."""
        squares = self.squared_singular_values
        visible = np.log(squares[(squares > 0.0) & np.isfinite(squares)])
        low, high = np.quantile(visible, [0.01, 1.0]) if visible.size else (-1.0, 1.0)
        edges = np.linspace(low - 0.1, high + 0.1, 61)
        counts = np.histogram(visible, edges)[0] / (squares.size * np.diff(edges))
        ax.stairs(counts, np.exp(edges), fill=True, alpha=0.4, label=f"{self.chains} networks")
        try:
            x = np.geomspace(np.exp(edges[0]), np.exp(edges[-1]), 400)
            ax.plot(x, x * self.law().density(x), "k--", linewidth=1.2, label="infinite width")
        except BnmcError:
            pass
        ax.set_xscale("log")
        ax.set_xlabel("squared singular value $s^2$")
        ax.set_ylabel(r"density of $\ln s^2$")
        ax.legend()

    def __repr__(self) -> str:
        return (
            f"<Jacobian of {self.chains} chains, {self.depth} layers, "
            f"{self.log_singular_values.shape[-1]} of {self.features} directions; "
            f"{shown_of(self.network)}>"
        )

    def __str__(self) -> str:
        count = self.log_singular_values.shape[-1]
        of_all = "all directions" if count == self.features else f"{count} of {self.features}"
        networks = "1 network" if self.chains == 1 else f"{self.chains} networks"
        head = f"{shown_of(self.network)}: Jacobians of {networks}, {of_all}"
        heads = [
            "layer", "mean s²", "variance/mean²", "largest/mean", "limit of mean",
            "variance/mean²", "largest/mean",
        ]  # fmt: skip
        table, reason = self._rows()
        has_limit = any(row["limit_mean"] is not None for row in table)
        columns = len(heads) if has_limit else _MEASURED
        rows = [
            [str(row["layer"]), *(_number(row[name]) for name in list(row)[1:columns])]
            for row in table
        ]
        told = f"\nlimit of infinite width unknown: {reason}" if reason else ""
        return f"{head}\n{text_table(heads[:columns], rows, align='>')}{told}"

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `print` shows, for `json.dumps`."""
        rows, reason = self._rows()
        return {
            "chain": options_of(self.network), "depth": self.depth, "chains": self.chains,
            "directions": self.log_singular_values.shape[-1], "features": self.features,
            "rows": rows, "reason": reason, "key": str(self.key),
        }  # fmt: skip

    def _rows(self) -> tuple[list[dict[str, Any]], str]:
        """Return means over networks of some layers with their limits, and why one is unknown."""
        last = len(self.layers) - 1
        rows, reason = [], ""
        for slot in sorted({round(k * last / (_SHOWN - 1)) for k in range(_SHOWN)}):
            layer = int(self.layers[slot])
            logs = 2.0 * self.log_singular_values[:, slot]
            tops = logs.max(axis=2, keepdims=True)
            tops = np.where(np.isfinite(tops), tops, 0.0)
            units = np.exp(logs - tops)
            means = units.mean(axis=2)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                mean = float(np.mean(means * np.exp(tops[:, :, 0])))
                spread = float(np.mean(units.var(axis=2) / means**2))
                largest = float(np.mean(units.max(axis=2) / means))
            is_whole = logs.shape[2] == self.features
            row = {
                "layer": layer, "mean": mean,
                "dispersion": spread if is_whole else None,
                "largest_over_mean": largest if is_whole else None,
                "limit_mean": None, "limit_dispersion": None, "limit_largest_over_mean": None,
            }  # fmt: skip
            try:
                law = self.law(layer)
            except BnmcError as error:
                law, reason = None, str(error)
            if law is not None:
                row["limit_mean"], row["limit_dispersion"] = law.mean, law.dispersion
                row["limit_largest_over_mean"] = law.largest_over_mean
            rows.append(row)
        return rows, reason

    def _squares(self, layer: int | None) -> Float64Array:
        """Return the squared singular values of a layer, (chains, samples, directions)."""
        number = int(self.layers[-1]) if layer is None else layer
        slots = np.flatnonzero(self.layers == number)
        if not slots.size:
            raise ArgumentError("layer", layer, f"one of {self.layers.tolist()}")
        logs = 2.0 * self.log_singular_values[:, int(slots[0])]
        if logs.max() > _LONGEST:
            raise PartialEstimateError("squared singular values leave the range of means", None)
        with np.errstate(under="ignore"):
            return np.exp(logs)

    def _estimate(self, samples: Float64Array, level: float, method: str) -> Estimate:
        if self.chains < 2:
            raise PartialEstimateError("standard errors need at least 2 chains", float(samples[0]))
        if not np.isfinite(samples).all():
            raise PartialEstimateError("all singular values of a network are 0", None)
        return Estimate.from_samples(samples, level=level, method=method)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3g}"
