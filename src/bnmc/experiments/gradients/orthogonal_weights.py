"""Gradient norms under Gaussian and orthogonal weights, at a width of the order of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments.data import Variable, curve, dataset, estimated, with_ends
from bnmc.experiments.experiment import Experiment, Table, with_parameters
from bnmc.experiments.parts import Call, Store, chosen
from bnmc.experiments.pictures import axes_of, draw_band, label_outer
from bnmc.experiments.statistics import banded, interval
from bnmc.gradients import backpropagate
from bnmc.mean_field.field import MeanField
from bnmc.plot.axes import COLOURS

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

__all__ = ["DEFAULT", "FULL", "Sizes", "experiment", "orthogonal"]

Float64Array = NDArray[np.float64]


class Sizes(NamedTuple):
    """Width, layers, networks of each kind, and kinds: activation and batch size."""

    width: int
    depth: int
    chains: int
    kinds: tuple[tuple[str, int], ...] = (("linear", 100), ("linear", 50), ("tanh", 100))


DEFAULT = Sizes(100, 160, 6)
FULL = Sizes(100, 1000, 20)

_WEIGHTS = ("gaussian", "haar")

#: Number of layers in the data, evenly spaced.
_POINTS = 101


@with_parameters
def orthogonal(
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
) -> Experiment:
    r"""Gradients under Gaussian and under orthogonal weights (Meterez et al., arXiv 2310.02012).

    The networks have width 100, uncentred batch normalization, and weights that are Gaussian or
    uniformly distributed on the orthogonal matrices: linear ones with batches of 100 and of 50
    samples, and tanh with a batch of 100.  They have 160 layers (`full`: 1000) and there are 6
    networks of each kind (`full`: 20).  The gradient with respect to the last layer has independent
    normal entries.  The pictures show :math:`\ln \|\partial L/\partial W_\ell\|_F` relative to the
    last layer.  The table has its growth per layer towards the input, between a quarter and three
    quarters of the depth, and half the logarithm of `FixedPoint.backward_rate`, the growth at
    infinite width.

    Expected: Gaussian weights make gradients explode.  The mean field of linear networks has
    ½ ln((n − 1)/(n − 2)) per layer, .0051 for a batch of n = 100.  At width 100 the rate is larger.
    Networks of up to 1000 layers in the paper have .0096.

    In linear networks with orthogonal weights whose batch is as large as the width, gradients are
    bounded.  Let δ be the gradient with respect to h.  If the samples are orthogonal, one layer of
    backpropagation is a rotation and a projection that removes the diagonal of :math:`δ h^T`.
    Hence

    .. math:: E \|δ_{L-k}\|^2 = \frac{d (d - 1)}{2}
              + \Big(\frac{d (d + 1)}{2} - 1\Big) \Big(\frac{d}{d + 2}\Big)^k, \qquad k \ge 1,

    which falls from about :math:`d^2` to half of it.  With fewer samples than the width, or with
    tanh, normalization changes the lengths of rows in every layer, and gradients explode with
    orthogonal weights, too.

    Returns
    -------
    Experiment

    Examples
    --------
    >>> from bnmc.experiments import gradients
    >>> found = gradients.orthogonal()  # doctest: +SKIP
    """
    call = Call("gradients-orthogonal", full, rng, progress, threads, store)
    return experiment(chosen(DEFAULT, FULL, full), call)


class _Measured(NamedTuple):
    """Layers of the data, and results by kind of network and law of weights.

    `norms` are means over networks of log norms relative to the last layer, with their intervals,
    (layers, 3).  `growths` are per layer towards the input; `totals` are of all layers.
    """

    layers: NDArray[np.int64]
    norms: list[list[Float64Array]]
    growths: list[list[Estimate]]
    totals: list[list[Estimate]]


def experiment(sizes: Sizes, call: Call) -> Experiment:
    """Run the experiment with these sizes."""
    predicted = [
        0.5 * math.log(MeanField(_chain(sizes, kind, "gaussian")).fixed_point().backward_rate)
        for kind in sizes.kinds
    ]
    found = _measure(sizes, call)
    rows = tuple(
        (*kind, weights, growth, theory, total)
        for kind, theory, growths, totals in zip(
            sizes.kinds, predicted, found.growths, found.totals, strict=True
        )
        for weights, growth, total in zip(_WEIGHTS, growths, totals, strict=True)
    )
    table = Table(
        (
            "activation", "batch", "weights", "ln norm, per layer", "mean field",
            f"first layer over last of {sizes.depth}",
        ),
        rows,
    )  # fmt: skip
    findings = tuple(
        f"{name}, width {sizes.width}, batch {batch}, {weights} weights: ln of the gradient norm "
        f"grows by {interval(growth)} per layer towards the input; the interval "
        f"{_holds(growth, theory)} the {theory:.3g} of the mean field. Over all {sizes.depth} "
        f"layers it changes by {interval(total)}."
        for name, batch, weights, growth, theory, total in rows
    )
    title = f"Gradients under Gaussian and orthogonal weights, width {sizes.width}"
    data = _data(sizes, call, found, predicted)
    return Experiment(call.name, title, data, table, findings, _draw)


def _chain(sizes: Sizes, kind: tuple[str, int], weights: str) -> Chain:
    name, batch = kind
    return Chain(sizes.width, batch, name, norm="batch-uncentred", weights=weights)


def _holds(found: Estimate, theory: float) -> str:
    low, high = found.ci
    return "contains" if low <= theory <= high else "excludes"


def _measure(sizes: Sizes, call: Call) -> _Measured:
    last = sizes.depth - 1
    layers = np.unique(np.linspace(0, last, _POINTS).astype(np.int64))
    found = _Measured(layers, [], [], [])
    first, end = sizes.depth // 4, 3 * sizes.depth // 4
    costs = [float(batch) ** 2 for _, batch in sizes.kinds for _ in _WEIGHTS]
    with call.parts(costs) as parts:
        for kind in sizes.kinds:
            norms, growths, totals = [], [], []
            for weights in _WEIGHTS:
                logs = parts.run(
                    _log_norms, _chain(sizes, kind, weights), sizes.depth, chains=sizes.chains,
                    rng=call.generator, threads=call.threads,
                )  # fmt: skip
                norms.append(banded(logs[:, layers] - logs[:, -1:]))
                per_layer = (logs[:, first] - logs[:, end]) / (end - first)
                growths.append(Estimate.from_samples(per_layer))
                totals.append(Estimate.from_samples(logs[:, 0] - logs[:, last]))
            found.norms.append(norms)
            found.growths.append(growths)
            found.totals.append(totals)
    return found


def _log_norms(chain: Chain, depth: int, **options: Any) -> Float64Array:
    """Return the log norms of the gradients of all layers, (networks, depth)."""
    return backpropagate(chain, depth, observables=(), **options).log_gradient_norm


def _data(sizes: Sizes, call: Call, found: _Measured, predicted: list[float]) -> xarray.Dataset:
    over = ("network", "weights")
    return dataset(
        {
            **with_ends(
                "log_norm", (*over, "layer"), found.norms,
                "ln of the gradient norm, relative to the last layer",
            ),
            **estimated("growth", over, found.growths, "growth of ln of the norm per layer"),
            **estimated("total", over, found.totals, "ln of first over last gradient norm"),
            "mean_field": Variable(
                ("network",), predicted, "growth per layer at infinite width"
            ),
        },
        {
            "network": Variable(
                ("network",), [f"{name}, batch {batch}" for name, batch in sizes.kinds],
                "activation and batch size", "",
            ),
            "weights": Variable(("weights",), list(_WEIGHTS), "law of weights", ""),
            "layer": Variable(("layer",), found.layers, "layer"),
        },
        call,
        {
            "width": sizes.width, "depth": sizes.depth, "chains": sizes.chains,
            "norm": "batch-uncentred",
        },
    )  # fmt: skip


def _draw(data: xarray.Dataset, figure: Figure) -> None:
    kinds = data["network"].values
    axes = axes_of(figure, len(kinds), width=4.6)
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    for index, (ax, kind) in enumerate(zip(axes[0], kinds, strict=True)):
        for row, weights in enumerate(data["weights"].values):
            draw_band(
                ax, layers, curve(data, "log_norm")[index, row], COLOURS[row], f"{weights} weights"
            )
        slope = float(data["mean_field"][index])
        ax.plot(layers, slope * (last - layers), ":", color="black", label="mean field")
        ax.set_title(str(kind), loc="left")
    label_outer(
        axes, len(kinds), r"layer $\ell$", r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative"
    )
    axes[0, 0].legend(fontsize="small")
    attrs = data.attrs
    figure.suptitle(
        f"Gradients under Gaussian and orthogonal weights, width {attrs['width']}: "
        f"mean of {attrs['chains']} networks, 95 % interval"
    )
