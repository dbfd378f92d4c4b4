"""How far kernels of finite width are from their limit: `convergence`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bnmc._support.arguments import draw_key, integer, items
from bnmc._support.progress import Progress
from bnmc.errors import ArgumentError
from bnmc.infinite_width.kernels import MOST_LAYERS, ntk
from bnmc.infinite_width.networks import SimulatedKernel
from bnmc.mean_field.float64 import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Convergence", "convergence"]


@dataclass(frozen=True, eq=False)
class Convergence:
    """Distances of tangent kernels of finite width from their limit.

    Attributes
    ----------
    widths : (widths,) ndarray of int64
    distances : (widths,) ndarray of float64
        Mean over networks of ``‖Θ − Θ_∞‖_F / ‖Θ_∞‖_F``.
    stderr : (widths,) ndarray of float64
        Its standard error.
    slope, slope_stderr : float
        Slope of log distance against log width by weighted least squares, and its standard error.
        Theory: −1/2 for large widths.
    limit : ndarray of float64
        Θ_∞.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import convergence
    >>> x = np.random.default_rng(0).standard_normal((4, 5))
    >>> found = convergence(x, 1, widths=[32, 512], weight_variance=2.0, rng=0)
    >>> found.widths, bool(found.distances[1] < found.distances[0])
    (array([ 32, 512]), True)
    """

    widths: NDArray[np.int64]
    distances: FloatArray
    stderr: FloatArray
    slope: float
    slope_stderr: float
    limit: FloatArray

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the distances against the width, and a line of slope −1/2 through the last one.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Axes to draw in. Default: those of a new figure.

        Raises
        ------
        MissingExtraError
            If Matplotlib is not installed.
        """
        from bnmc.plot.axes import COLOURS, figure

        axes = figure()[1][0] if ax is None else ax
        axes.errorbar(
            self.widths, self.distances, yerr=self.stderr, fmt="o", color=COLOURS[0],
            label=f"networks, slope {self.slope:.2f}",
        )  # fmt: skip
        line = self.distances[-1] * np.sqrt(self.widths[-1] / self.widths)
        axes.plot(self.widths, line, "--", color=COLOURS[1], label="slope −1/2")
        axes.set(
            xscale="log", yscale="log", xlabel="width",
            ylabel="relative distance of tangent kernels",
        )  # fmt: skip
        axes.legend()
        return axes


def convergence(
    x: ArrayLike,
    depth: int,
    *,
    widths: Iterable[int] = (64, 128, 256, 512),
    networks: int = 50,
    rng: Any = None,
    progress: bool | Progress = False,
    **options: Any,
) -> Convergence:
    """Measure how fast tangent kernels of finite networks converge to that of infinite width.

    Parameters
    ----------
    x, depth
        As in `ntk`; depth >= 1.
    widths : iterable of int, default (64, 128, 256, 512)
        At least two different widths >= 2.
    networks : int, default 50
        Networks of each width, >= 2.
    rng : optional
        Seed of the networks, and of the limit if it is estimated.
    progress : bool or callable, default False
        As in `ntk`, for each width.
    **options
        Other arguments of `ntk` except `method`, `width` and `dtype`.

    Returns
    -------
    Convergence

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.
    NonFiniteError, ResultTooLargeError, PartialEstimateError
        As `ntk`.

    Notes
    -----
    If differences of the samples of a batch have 3 or 4 dimensions, norm "batch" makes the variance
    of the kernel infinite. Distances then decrease more slowly than with the power −1/2, and
    `stderr` is unreliable.

    Examples
    --------
    >>> import numpy as np
    >>> from bnmc.infinite_width import convergence
    >>> found = convergence(np.eye(5), 2, widths=[64, 512], norm="layer", networks=20, rng=0)
    >>> print(f"slope {found.slope:.2f} ± {found.slope_stderr:.2f}")
    slope -0.52 ± 0.05
    """
    depth = integer("depth", depth, low=1, high=MOST_LAYERS)
    sizes = [integer("widths", one, low=2) for one in items("widths", widths, "integers >= 2")]
    if len(set(sizes)) < 2:
        raise ArgumentError("widths", sizes, "at least two different widths")
    networks = integer("networks", networks, low=2)
    for name in ("method", "width", "dtype"):
        if name in options:
            raise ArgumentError(name, options[name], "arguments of ntk except this one")
    key = draw_key(rng)
    limit = np.asarray(ntk(x, depth, rng=key, progress=progress, **options))
    means, errors = [], []
    for number, width in enumerate(sizes):
        found = ntk(
            x, depth, method="monte-carlo", width=width, networks=networks,
            rng=np.random.default_rng([key, number]), progress=progress, **options,
        )  # fmt: skip
        assert isinstance(found, SimulatedKernel)
        far = np.sqrt(np.square(found.kernels - limit).sum(axis=(1, 2)) / np.square(limit).sum())
        means.append(float(far.mean()))
        errors.append(float(far.std(ddof=1)) / np.sqrt(networks))
    distances, stderr = np.array(means), np.array(errors)
    slope, slope_stderr = _line(np.log(sizes), np.log(distances), stderr / distances)
    return Convergence(np.array(sizes), distances, stderr, slope, slope_stderr, limit)


def _line(x: FloatArray, y: FloatArray, errors: FloatArray) -> tuple[float, float]:
    """Return the slope of a weighted line, and its standard error."""
    weight = 1.0 / errors**2
    centred = x - np.average(x, weights=weight)
    total = float((weight * centred**2).sum())
    return float((weight * centred * y).sum()) / total, total**-0.5
