"""Gradient norms under Gaussian and orthogonal weights, at a width of the order of the batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from bnmc._support.progress import Progress
from bnmc.chain.chain import Chain
from bnmc.estimate.estimate import Estimate
from bnmc.experiments import kit, pictures
from bnmc.experiments.experiment import Dataset, Drawing, Experiment, Table
from bnmc.experiments.kit import Float64Array
from bnmc.experiments.runs import Run
from bnmc.experiments.sizes import Builtin, Several
from bnmc.experiments.statistics import interval
from bnmc.gradients import backpropagate
from bnmc.mean_field.field import MeanField

#: Number of layers in the data, evenly spaced.
_POINTS = 101


class Sizes(NamedTuple):
    """Sizes of the figure.

    kinds: activation and batch size of each kind of network
    """

    width: int = 100
    depth: Several = 160
    networks: Several = 6
    kinds: tuple[tuple[Builtin, int], ...] = (("linear", 100), ("linear", 50), ("tanh", 100))


@kit.figure("gradients-orthogonal", Sizes(), depth=1000, networks=20)
def orthogonal(run: Run, sizes: Sizes) -> Experiment:
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
    depth = sizes.depth

    def chain(kind: str, weights: str) -> Chain:
        name, batch = kinds[kind]
        return Chain(sizes.width, batch, name, norm="batch-uncentred", weights=weights)

    def log_norms(kind: str, weights: str, progress: Progress) -> Float64Array:
        """Return the log norms of the gradients of all layers, (networks, depth)."""
        return backpropagate(
            chain(kind, weights), depth, chains=sizes.networks, observables=(), rng=run.generator,
            threads=run.threads, progress=progress,
        ).log_gradient_norm  # fmt: skip

    kinds = {f"{name}, batch {batch}": (name, batch) for name, batch in sizes.kinds}
    predicted = {
        kind: 0.5 * math.log(MeanField(chain(kind, "gaussian")).fixed_point().backward_rate)
        for kind in kinds
    }
    layers = np.unique(np.linspace(0, depth - 1, _POINTS).astype(np.int64))
    results = kit.Results(
        run, network=kit.Axis(kinds, "activation and batch size", ""),
        weights=("gaussian", "haar"), layer=layers,
    )  # fmt: skip
    per = ("network", "weights")
    points = results.points(*per)
    logs = run.parts(log_norms, points, [float(kinds[kind][1]) ** 2 for kind, _ in points])
    results.add_means(
        "log_norm", (*per, "layer"),
        {point: norms[:, layers] - norms[:, -1:] for point, norms in logs.items()},
        "ln of the gradient norm, relative to the last layer",
    )  # fmt: skip
    first, end = depth // 4, 3 * depth // 4
    growths = {
        point: Estimate.from_samples((norms[:, first] - norms[:, end]) / (end - first))
        for point, norms in logs.items()
    }
    totals = {
        point: Estimate.from_samples(norms[:, 0] - norms[:, -1]) for point, norms in logs.items()
    }
    results.add("growth", per, growths, "growth of ln of the norm per layer")
    results.add("total", per, totals, "ln of first over last gradient norm")
    results.add(
        "mean_field", ("network",), list(predicted.values()), "growth per layer at infinite width"
    )
    table = Table(
        (
            "activation", "batch", "weights", "ln norm, per layer", "mean field",
            f"first layer over last of {depth}",
        ),
        tuple(
            (*kinds[kind], weights, growths[kind, weights], predicted[kind], totals[kind, weights])
            for kind, weights in points
        ),
    )  # fmt: skip
    findings = (
        f"{name}, width {sizes.width}, batch {batch}, {weights} weights: ln of the gradient norm "
        f"grows by {interval(growth)} per layer towards the input; the interval "
        f"{'contains' if growth.ci[0] <= theory <= growth.ci[1] else 'excludes'} the {theory:.3g} "
        f"of the mean field. Over all {depth} layers it changes by {interval(total)}."
        for name, batch, weights, growth, theory, total in table.rows
    )
    return results.experiment(
        f"Gradients under Gaussian and orthogonal weights, width {sizes.width}", table, findings,
        _draw, width=sizes.width, depth=depth, chains=sizes.networks, norm="batch-uncentred",
    )  # fmt: skip


def _draw(data: Dataset, figure: Drawing) -> None:
    kinds = data["network"].values
    axes = pictures.axes_of(figure, len(kinds), width=4.6)
    layers, last = data["layer"].values, data.attrs["depth"] - 1
    for ax, kind in zip(axes[0], kinds, strict=True):
        part = data.sel(network=kind)
        pictures.lines(ax, part, "log_norm", "layer", by="weights", text="{} weights")
        slope = float(part["mean_field"])
        ax.plot(layers, slope * (last - layers), ":", color="black", label="mean field")
        ax.set_title(str(kind), loc="left")
    pictures.label_outer(
        axes, len(kinds), r"layer $\ell$", r"$\ln\, \|\partial L/\partial W_\ell\|_F$, relative"
    )
    axes[0, 0].legend(fontsize="small")
    attrs = data.attrs
    figure.suptitle(
        f"Gradients under Gaussian and orthogonal weights, width {attrs['width']}: "
        f"mean of {attrs['chains']} networks, 95 % interval"
    )
