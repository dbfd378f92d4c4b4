"""Pictures of spectra: the eigenvalues of one layer beside their limit law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from bnmc._support.arguments import integer
from bnmc.errors import ArgumentError
from bnmc.plot.axes import COLOURS, figure
from bnmc.plot.protocols import Run, about_chain, as_run, fixed_gram
from bnmc.random_matrix.marchenko_pastur import MarchenkoPastur

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["spectrum"]


def spectrum(run: Run, *, layer: int = -1, star: Any = None, ax: Axes | None = None) -> Axes:
    r"""Draw the spectrum of one layer beside the law of Marchenko and Pastur.

    Let d be the width and n the batch size. The histogram shows, over all chains, the n − 1
    eigenvalues of each Gram matrix on the directions orthogonal to the vector of ones. The curve is
    the density of `bnmc.random_matrix.MarchenkoPastur` with ratio :math:`\gamma = n/d`, where v is
    the mean of these eigenvalues:

    .. math:: \frac{\sqrt{(b - x)(x - a)}}{2 \pi v \gamma x}, \qquad a, b = v(1 \mp \sqrt\gamma)^2.

    Parameters
    ----------
    run : Trajectory
        With the observable "gram", and a batch of at least 2.
    layer : int, default -1
        One of ``run.layers``. Negative numbers count recorded layers from the last.
    star : FixedPoint or (batch, batch) array_like, optional
        A fixed point. Dashed lines mark its eigenvalues on these directions.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `run` is no run or lacks "gram", or if `layer` or `star` is not allowed.

    Notes
    -----
    The law approximates the fluctuations of a single layer without a skip connection: that layer
    has d independent rows, with covariance v times the identity on these directions. The stationary
    spectrum is wider, since the fluctuations of earlier layers add up.

    Examples
    --------
    >>> from bnmc.plot import spectrum
    >>> import bnmc
    >>> chain = bnmc.Chain(width=100, batch=10)
    >>> run = bnmc.simulate(chain, 20, chains=16, rng=0)
    >>> ax = spectrum(run, star=bnmc.MeanField(chain).fixed_point())
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('eigenvalue of $G_{20}$', 'density')
    """
    run = as_run("run", run)
    n, index = run.chain.batch, _index_of_layer(run, layer)
    directions = helmert(n)

    def bulk(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.linalg.eigvalsh(directions @ matrices @ directions.T)).ravel()

    values = np.maximum(bulk(run.observables["gram"][:, index]), 0.0)
    fixed = None if star is None else bulk(fixed_gram(star, run))
    if not values.mean() > 0:
        raise ArgumentError("run", "a layer of equal samples", "one with a spectrum to draw")
    law = MarchenkoPastur(n / run.chain.width, variance=float(values.mean()))
    if ax is None:
        ax = figure()[1][0]
        networks = "1 network" if run.chains == 1 else f"{run.chains} networks"
        ax.set_title(f"{about_chain(run.chain)}: {networks}", fontsize="medium")
    ends = min(values.min(), law.edges[0]), max(values.max(), law.edges[1])
    ax.hist(
        values, bins=40, range=ends, density=True, color=COLOURS[0], alpha=0.5,
        label="on directions orthogonal to ones",
    )  # fmt: skip
    # The edges are left out: at ratio 1 the density is infinite at 0.
    x = np.linspace(*law.edges, 402)[1:-1]
    ax.plot(x, law.pdf(x), color=COLOURS[1], label="Marchenko–Pastur: one layer's fluctuation")
    if fixed is not None:
        for number, value in enumerate(np.unique(np.round(fixed, 12))):
            label = None if number else "fixed point"
            ax.axvline(value, color="black", linestyle="--", linewidth=1.0, label=label)
    ax.set_xlabel(f"eigenvalue of $G_{{{run.layers[index]}}}$")
    ax.set_ylabel("density")
    ax.legend(fontsize="small")
    return ax


def _index_of_layer(run: Run, layer: int) -> int:
    """Return the index of a recorded layer of a run with Gram matrices."""
    if "gram" not in run.observables or "layer" not in run.dims["gram"]:
        raise ArgumentError("run", "one without 'gram' by layer", "a run that recorded it")
    if run.chain.batch < 2:
        raise ArgumentError("run", "one of a batch of 1", "a run of a batch of 2 or more")
    index, layers = integer("layer", layer), run.layers.tolist()
    if index >= 0 and index in layers:
        return int(layers.index(index))
    if not -len(layers) <= index < 0:
        raise ArgumentError("layer", layer, "a recorded layer, or the last ones by -1, -2, …")
    return index
