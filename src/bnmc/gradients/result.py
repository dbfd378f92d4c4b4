"""The result of a backward pass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import Float64Array, real
from bnmc._support.extras import import_extra
from bnmc._support.text import text_table
from bnmc.chain.chain import Chain, Network, layer_at, options_of, shown_of
from bnmc.errors import ArgumentError, BnmcError, PartialEstimateError
from bnmc.estimate.estimate import Estimate, growth_estimate, layers_of_growth
from bnmc.gradients.observables import MATRICES
from bnmc.mean_field.field import MeanField
from bnmc.simulation.trajectory import Recordings

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Backpropagation(Recordings):
    """Gradients of an ensemble of networks, layer by layer; ``print`` shows a table.

    An observable is an item, ``run["delta_gram"]``, and an attribute, ``run.delta_gram``: an array
    of shape (chains, layers, ...).

    Attributes
    ----------
    network : Network
    depth : int
    loss : str
        The direction at the top: "gaussian", "cross-entropy", "squared", "given" or "function".
    log_gradient_norm : (chains, depth) ndarray of float64
        ½ ln ‖∂L/∂W_l‖² (Frobenius norm) for l = 0, …, depth − 1.  −inf where the gradient is zero,
        as below a layer whose activations are all in a flat piece of the activation.
    layers : (layers,) ndarray of int
        The recorded layers l of the observables, of 1, …, depth.
    log_scale : (chains, layers) ndarray of float64
        δ_l = ∂L/∂h_l is recorded in units of exp(`log_scale`).
    observables : dict of ndarray
        Recorded values by name.
    key : int
        The 64-bit key of all random numbers: as `rng` it repeats the call.
    dtype : str
        Precision of rows, "float64" or "float32"; results are float64.
    cpu : str
        The kind of processor: on the same kind, the same key gives the same bits.
    inputs : int or None
        Number of input batches, None for one without an axis of its own.
    sampler : str
        "conditional" or "weights".
    widened : tuple of int
        The chains of a float32 run whose forward pass continued in float64.
    complete : bool
        Whether all chains are finished; False if `timeout` or Ctrl-C ended the run.
    backend : str
        "cpu" or "cuda".

    Examples
    --------
    >>> import bnmc
    >>> run = bnmc.backpropagate(bnmc.Chain(200, 5, "relu"), 30, chains=20, rng=0)
    >>> run.log_gradient_norm.shape
    (20, 30)
    >>> run.backward_rate().value > 2
    True
    """

    network: Network
    depth: int
    loss: str
    log_gradient_norm: Float64Array
    layers: NDArray[np.int64]
    log_scale: Float64Array
    observables: Mapping[str, Float64Array] = field(repr=False)
    key: int
    dtype: str
    cpu: str
    inputs: int | None
    sampler: str
    widened: tuple[int, ...]
    complete: bool
    backend: str = "cpu"

    @property
    def chain(self) -> Chain:
        """The chain, whose layer repeats; `ArgumentTypeError` if layers differ."""
        return self.network.chain

    @property
    def chains(self) -> int:
        """Number of networks."""
        return len(self.log_gradient_norm)

    def __repr__(self) -> str:
        recorded = ", ".join(["log_gradient_norm", *self.observables])
        return (
            f"<Backpropagation of {self.chains} chains, {self.depth} layers, "
            f"loss {self.loss!r}{'' if self.complete else ', interrupted'}: {recorded}; "
            f"{shown_of(self.network)}>"
        )

    def __str__(self) -> str:
        rows = [
            (str(row["layer"]), _number(row["mean"]), _number(row["stderr"]))
            for row in self._shown()
        ]
        heads = ("layer", "ln ‖∂L/∂W‖", "stderr")
        networks = "1 network" if self.chains == 1 else f"{self.chains} networks"
        lines = [
            f"{shown_of(self.network)}: gradients of {networks}, {self.depth} layers, "
            f"loss {self.loss!r}",
            text_table(heads, rows, align=">>>"),
        ]
        try:
            lines.append(f"squared gradient norm, growth per layer: ×{self.backward_rate()}")
        except (ArgumentError, PartialEstimateError) as error:
            lines.append(f"no rate: {error}")
        predicted = self.mean_field_backward_rate()
        if predicted is not None:
            lines.append(f"the same at infinite width: ×{predicted:.6g}")
        if not self.complete:
            lines.append(f"incomplete: the run ended after {networks}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the table that `print` shows, and the rates, for `json.dumps`."""
        try:
            rate: dict[str, Any] | None = self.backward_rate().as_json()
        except (ArgumentError, PartialEstimateError):
            rate = None
        return {
            "chain": options_of(self.network), "depth": self.depth, "chains": self.chains,
            "loss": self.loss, "rows": self._shown(), "backward_rate": rate,
            "mean_field_backward_rate": self.mean_field_backward_rate(), "complete": self.complete,
            "key": str(self.key), "dtype": self.dtype, "sampler": self.sampler, "cpu": self.cpu,
        }  # fmt: skip

    def mean_field_backward_rate(self) -> float | None:
        """Return `bnmc.mean_field.FixedPoint.backward_rate` of the chain, or None if it has none.

        It is None if the mean field has no fixed point for the chain or does not find it, or if the
        rate is infinite, as for centred norms of up to three samples. For two samples, the infinite
        rate is the limit eps → 0; with eps = 0 gradients below a centred norm are exactly 0.
        """
        try:
            rate = MeanField(self.chain).fixed_point().backward_rate
        except BnmcError:
            return None
        return rate if math.isfinite(rate) and rate > 0.0 else None

    def plot(self, *, ax: Axes | None = None, level: float = 0.9) -> Axes:
        """Draw the logarithm of the gradient norm against depth.

        A dashed line has the slope of `mean_field_backward_rate`, if there is one.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw on; by default those of a new figure.
        level : float, default 0.9
            Fraction of the chains in the band, as in `bnmc.plot.gradient_norms`.

        Returns
        -------
        matplotlib.axes.Axes

        Raises
        ------
        MissingExtraError
            Without Matplotlib (extra ``plot``).
        ArgumentError
            If `level` is not in (0, 1).

        Examples
        --------
        >>> import bnmc
        >>> run = bnmc.backpropagate(bnmc.Chain(300, 10, "relu"), 30, chains=16, rng=0)
        >>> ax = run.plot()
        >>> len(ax.lines)
        2
        """
        from bnmc.plot.gradients import gradient_norms

        predicted = self.mean_field_backward_rate()
        return gradient_norms(self, backward_rate=predicted, ax=ax, level=level)

    def backward_rate(
        self, *, first: int | None = None, last: int | None = None, level: float = 0.95
    ) -> Estimate:
        r"""Return the growth of the squared gradient norm per layer, towards the input.

        With g_l the norm of the gradient of layer l, it is

        .. math:: \exp\big(2\, E[\ln g_{first} - \ln g_{last}] / (last - first)\big),

        by the mean over chains.  If the chain has a stable fixed point, it tends to
        `bnmc.mean_field.FixedPoint.backward_rate` at infinite width.  At finite width the mean of
        squares grows faster.  The mean of logarithms exists where that of squares does not, as for
        a centred norm of three samples.  It does not exist if a gradient is 0 with positive
        probability, as for a centred norm of two samples and eps = 0, or at small widths for an
        activation with a flat piece.

        Parameters
        ----------
        first, last : int, optional
            Layers between which the growth is taken.  The defaults are a quarter and three quarters
            of the depth: near the input the Gram matrices, and near the output the gradients,
            depend on how they began.
        level : float, default 0.95
            Level of the interval, which is Student's, for the logarithm.

        Returns
        -------
        Estimate

        Raises
        ------
        ArgumentError
            If the layers are not 0 <= first < last < depth.
        PartialEstimateError
            If there are fewer than two chains, or a gradient is zero.

        Examples
        --------
        >>> import bnmc
        >>> run = bnmc.backpropagate(bnmc.Chain(1000, 10, "relu"), 40, chains=20, rng=0)
        >>> rate = run.backward_rate()
        >>> abs(rate.value - bnmc.MeanField(run.chain).fixed_point().backward_rate) < 0.05
        True
        """
        level = real("level", level, above=0.0, below=1.0)
        begin, end = layers_of_growth(first, last, self.depth)
        with np.errstate(invalid="ignore"):
            growth = self.log_gradient_norm[:, begin] - self.log_gradient_norm[:, end]
        growth = 2.0 * growth / (end - begin)
        if not np.isfinite(growth).all():
            chain = int((~np.isfinite(growth)).argmax())
            raise PartialEstimateError(f"the gradient of chain {chain} is zero", None)
        method = f"growth of gradient norms, layers {begin} to {end}"
        return growth_estimate(growth, level, method, "chains")

    def cosines(self) -> Float64Array:
        r"""Return the cosines between the parts of the gradients that single samples contribute.

        The gradient of layer l − 1 is :math:`\mathrm{gain} \sum_i δ_{l,i} a_{l-1,i}^T`.  The cosine
        of the parts of samples i and j is corr(δ_i, δ_j) corr(a_i, a_j).  Without normalization
        a part is the gradient of the sample's own loss.  For a convolution, i and j are columns,
        each a pixel of an image, and the patches around them take the place of a.

        Returns
        -------
        (chains, layers, samples, samples) ndarray
            For the recorded layers; NaN where a sample contributes nothing.

        Raises
        ------
        ArgumentError
            If "delta_gram" and "gram" of all layers were not recorded.
        """
        for name in ("delta_gram", "gram"):
            if name not in self.observables:
                raise ArgumentError("observables", list(self.observables), f"with {name!r}")
        if len(self.layers) != self.depth:
            raise ArgumentError("every", int(self.layers[0]), "1")
        delta = _correlations(self.observables["delta_gram"][:, 1:])
        before = self.observables["gram"][:, :-1].swapaxes(0, 1)
        seen = [
            layer_at(self.network, layer).linear.patches.covariance(grams)
            for layer, grams in enumerate(before, 2)
        ]
        return delta * _correlations(np.reshape(seen, before.shape).swapaxes(0, 1))

    def to_xarray(self) -> xarray.Dataset:
        """Return the result as a dataset (extra ``xarray``).

        Returns
        -------
        xarray.Dataset
            `log_gradient_norm` with the dimensions (chain, weight_layer), `log_scale` and the
            observables with the dimensions (chain, layer, …).
        """
        xr: Any = import_extra("xarray", "xarray")
        data: dict[str, Any] = {
            "log_gradient_norm": (("chain", "weight_layer"), self.log_gradient_norm),
            "log_scale": (("chain", "layer"), self.log_scale),
        }
        for name, values in self.observables.items():
            axes = [f"{name}_{axis}" for axis in range(values.ndim - 2)]
            if name in MATRICES:
                axes = ["sample_i", "sample_j"]
            data[name] = (("chain", "layer", *axes), values)
        coordinates = {"layer": self.layers, "weight_layer": np.arange(self.depth)}
        attributes = {
            "chain": repr(shown_of(self.network)), "loss": self.loss, "key": str(self.key),
            "dtype": self.dtype, "sampler": self.sampler, "cpu": self.cpu,
        }  # fmt: skip
        return xr.Dataset(data, coordinates, attributes)

    def _shown(self) -> list[dict[str, Any]]:
        """Return mean and standard error of the log norm of some layers."""
        layers = _shown_layers(self.depth)
        values = self.log_gradient_norm[:, layers]
        with np.errstate(invalid="ignore"):
            means = values.mean(axis=0)
            errors = np.full(len(layers), np.nan)
            if self.chains > 1:
                errors = values.std(axis=0, ddof=1) / math.sqrt(self.chains)
        return [
            {
                "layer": layer,
                "mean": float(mean),
                "stderr": None if math.isnan(error) else float(error),
            }
            for layer, mean, error in zip(layers, means, errors, strict=True)
        ]


def _shown_layers(depth: int) -> list[int]:
    """Return at most a dozen layers of 0, …, depth - 1: the ends, and layers evenly between."""
    return sorted({round(k * (depth - 1) / 10) for k in range(11)})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _correlations(grams: Float64Array) -> Float64Array:
    lengths = np.sqrt(np.diagonal(grams, axis1=-2, axis2=-1))
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations: Float64Array = grams / (lengths[..., :, None] * lengths[..., None, :])
    return correlations
