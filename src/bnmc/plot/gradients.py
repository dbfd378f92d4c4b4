"""Pictures of gradients against depth: of backward passes, and of PyTorch models."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.arguments import real
from bnmc.plot import axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def gradient_norms(
    run: Any,
    *,
    backward_rate: float | None = None,
    label: str | None = None,
    ax: Axes | None = None,
    level: float = 0.9,
) -> Axes:
    r"""Draw the logarithm of the gradient norm against depth: its mean over chains, and a band.

    Parameters
    ----------
    run : Backpropagation
    backward_rate : float, optional
        Growth of the squared gradient norm per layer towards the input, > 0, for example
        `bnmc.mean_field.FixedPoint.backward_rate`. A dashed line of slope
        :math:`-\tfrac12 \ln(\text{backward rate})` per layer goes through the mean of the middle
        layer.
    label : str, optional
        Label of the run in the legend.
    ax : matplotlib.axes.Axes, optional
        Axes to draw in. Default: those of a new figure.
    level : float, default 0.9
        Fraction of the chains in the band, in (0, 1). The edges of the band are the quantiles
        (1 ± level)/2. A single chain has no band.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `run` is no backward pass, or `rate` or `level` is not allowed.

    Notes
    -----
    Layers in which the gradient of a chain is zero have no mean of logarithms and are left out.

    Examples
    --------
    >>> from bnmc.plot import gradient_norms
    >>> import bnmc
    >>> run = bnmc.backpropagate(bnmc.Chain(300, 10, "relu"), 30, chains=16, rng=0)
    >>> ax = gradient_norms(run, backward_rate=1.696)
    >>> ax.get_xlabel()
    'layer $\\ell$'
    """
    allowed = "a result of bnmc.backpropagate"
    axes.require_attributes("run", run, allowed, "log_gradient_norm", "network")
    level = real("level", level, above=0.0, below=1.0)
    if backward_rate is not None:
        backward_rate = real("backward_rate", backward_rate, above=0.0)
    norms = run.log_gradient_norm
    chains, depth = norms.shape
    layers = np.arange(depth)
    if ax is None:
        ax = axes.figure()[1][0]
        title = f"{axes.about_network(run.network)}: {axes.about_band([chains], level)}"
        ax.set_title(title, fontsize="medium")
    finite = np.where(np.isfinite(norms).all(axis=0), norms, np.nan)
    mean = finite.mean(axis=0)
    edges = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2], axis=0)
    axes.draw_mean(ax, layers, (mean, *edges), label or "measured")
    middle = depth // 2
    if backward_rate is not None and np.isfinite(mean[middle]):
        predicted = mean[middle] - 0.5 * math.log(backward_rate) * (layers - middle)
        ax.plot(
            layers, predicted, "--", color="black", linewidth=1.0,
            label=f"infinite width: squared norm ×{backward_rate:.4g} per layer, towards the input",
        )  # fmt: skip
    axes.label_layers(ax, r"layer $\ell$")
    ax.set_ylabel(r"$\ln\, \|\partial L / \partial W_\ell\|_F$")
    ax.legend(fontsize="small")
    return ax


def measurement(result: Any, *, backward_rate: float | None = None) -> Figure:
    r"""Draw ranks, and gradient norms if there are any, against the layers.

    Lines are means over networks, and bands of their colour reach from the smallest to the largest
    value. The grey band holds the gradient norms of 90 % of fresh networks of the model.

    Parameters
    ----------
    result : bnmc.torch.Measurement
    backward_rate : float, optional
        Growth of the squared gradient norm per layer towards the input, > 0. A dashed line of this
        slope goes through the middle one of the comparable layers.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    ArgumentError, ArgumentTypeError
        If `result` is no measurement, or `rate` is not allowed.

    Examples
    --------
    >>> import torch, bnmc
    >>> from bnmc.plot import measurement
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> picture = measurement(bnmc.torch.measure(model, torch.randn(4, 8)))
    >>> len(picture.axes)
    1
    """
    names = ("layers", "rank", "soft_rank", "effective_rank", "layer_gradient_norm", "comparable")
    axes.require_attributes("result", result, "a result of bnmc.torch.measure", *names)
    if backward_rate is not None:
        backward_rate = real("backward_rate", backward_rate, above=0.0)
    norms = result.layer_gradient_norm
    picture, places = axes.figure(columns=1 if norms is None else 2)
    depth = np.arange(1, len(result.layers) + 1)
    curves = zip(("rank", "soft_rank", "effective_rank"), axes.COLOURS, strict=False)
    for name, colour in curves:
        # The soft rank often equals the rank, so both must be seen.
        label, style = name.replace("_", " "), "o--" if name == "soft_rank" else "o-"
        _curve(places[0], depth, getattr(result, name), colour, label, style)
    places[0].set_ylabel("rank")
    places[0].set_ylim(bottom=0.0)
    if norms is not None:
        band = getattr(result, "gradient_band", None)
        if band is not None and np.isfinite(band).any():
            places[1].fill_between(
                depth, *band.T, color="0.85", linewidth=0, label="90 % of fresh networks"
            )
        _gradients(places[1], depth, norms, result.comparable, backward_rate)
    for ax in places:
        axes.label_modules(ax, result.layers)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(fontsize="small")
    return picture


def _gradients(
    ax: Axes,
    depth: NDArray[Any],
    norms: NDArray[np.float64],
    comparable: tuple[int, ...],
    backward_rate: float | None,
) -> None:
    present = np.all((norms > 0.0) & (norms < math.inf), axis=0)
    ax.set_ylabel("norm of the gradient of the weights")
    if not present.any():
        return
    label = "measured" if ax.collections or backward_rate is not None else None
    _curve(ax, depth[present], norms[:, present], axes.COLOURS[0], label)
    compared = [layer for layer in comparable if present[layer]]
    if backward_rate is not None and len(compared) > 1:
        middle = compared[len(compared) // 2]
        centre = math.exp(float(np.log(norms[:, middle]).mean()))
        steps = np.array([compared.index(layer) for layer in compared]) - len(compared) // 2
        ax.plot(
            depth[compared], centre * backward_rate ** (-0.5 * steps), "--", color="black",
            linewidth=1.0,
            label=f"infinite width: squares ×{backward_rate:.4g} per layer, towards the input",
        )  # fmt: skip
    axes.logarithmic(ax)


def _curve(
    ax: Axes,
    x: NDArray[Any],
    values: NDArray[Any],
    colour: str,
    label: str | None,
    style: str = "o-",
) -> None:
    if len(values) == 1:
        ax.plot(x, values[0], style, markersize=3, color=colour, label=label)
    else:
        low, high = values.min(axis=0), values.max(axis=0)
        line, mean = style.removeprefix("o"), values.mean(axis=0)
        axes.band(ax, x, mean, low, high, colour=colour, label=label, linestyle=line)
