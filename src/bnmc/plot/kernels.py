"""Pictures of kernels of finite width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bnmc.plot.axes import COLOURS, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def distances(convergence: Any, ax: Axes | None) -> Axes:
    """Draw the distances of a `Convergence`, and a line of slope −1/2 through the last one."""
    widths, relative = convergence.widths, convergence.distances
    axes = figure()[1][0] if ax is None else ax
    axes.errorbar(
        widths, relative, yerr=convergence.stderr, fmt="o", color=COLOURS[0],
        label=f"networks, slope {convergence.slope.value:.2f}",
    )  # fmt: skip
    line = relative[-1] * np.sqrt(widths[-1] / widths)
    axes.plot(widths, line, "--", color=COLOURS[1], label="slope −1/2")
    axes.set(
        xscale="log", yscale="log", xlabel="width", ylabel="relative distance of tangent kernels"
    )
    axes.legend()
    return axes
