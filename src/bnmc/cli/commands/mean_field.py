"""``bnmc fixed-point``, ``width``, ``stability`` and ``phase``: networks of infinite width."""

from __future__ import annotations

import math
from typing import Any

from bnmc.cli.command import Report, command, table_of
from bnmc.cli.options import integers, names

#: Names in tables that have a unit, or differ from the attribute.
_NAMES = {
    "rate": "rate per layer",
    "timescale": "timescale in layers",
    "backward_rate": "squared gradient norm, growth per layer",
    "cross_batch_rate": "cross batch rate per layer",
    "variance_depth": "variance depth in layers",
    "correlation_depth": "correlation depth in layers",
    "gradient_depth": "gradient depth in layers",
}


@command()
def fixed_point(
    batch: int,
    activation: str,
    norm: str = "batch",
    *,
    gain: float | None,
    width: int | None = None,
) -> Report:
    """Compute the fixed point at infinite width.

    The table shows the Gram matrix of the fixed point, its rates and its stability.

    Example: bnmc fixed-point --activation tanh --batch 64 --width 1000

    Parameters
    ----------
    norm : NAME
        Normalization: batch or batch-uncentred; bnmc phase takes others.
    width
        Number of neurons per layer, for the predicted distance at finite width. Default: no
        prediction.
    """
    from bnmc.chain.chain import Chain
    from bnmc.chain.needs import NORM_OVER_BATCH, require
    from bnmc.errors import NotMixing
    from bnmc.mean_field.field import MeanField

    size = max(batch, 2) * 1000 if width is None else width
    chain = Chain(size, batch, activation, norm=norm, gain=gain)
    require(chain, [NORM_OVER_BATCH], f"without a norm over the batch: bnmc phase --norm {norm}")
    point = MeanField(chain).fixed_point()
    facts = point.to_dict()
    if width is not None:
        try:
            law = MeanField(chain).fluctuations()
        except NotMixing:  # networks do not stay near an unstable fixed point
            facts |= {"distance": None, "least_width": None}
        else:
            facts["distance"] = math.sqrt(law.mean_square(width).value)
            facts["least_width"] = law.least_width
    chosen = {"batch": batch, "activation": activation, "norm": norm, "gain": chain.gain}
    if width is not None:
        chosen = {"width": width, **chosen}
    names = dict(_NAMES)
    if norm == "batch":
        names["eigenvalues"] = "eigenvalues λ_L, λ_M"
    # A number below the error is a rounding error of 0.
    is_zero = abs(point.cross_batch) < point.error
    text = [
        f'{activation}, batch {batch}, norm "{norm}": fixed point of the mean field\n',
        table_of(facts | ({"cross_batch": 0.0} if is_zero else {}), names=names),
    ]
    if not point.stable:
        text.append(
            "\nThe fixed point is unstable: networks leave its neighbourhood. The growth is the "
            "one at the fixed point, so it does not describe these networks."
        )
    elif math.isinf(point.backward_rate):
        text.append(
            "\nThe growth is infinite: in the limit ε → 0, the squared gradient norm has no finite "
            "mean."
        )
    return Report({"chain": chosen, **facts}, text)


@command()
def width(
    batch: int,
    activation: str,
    norm: str,
    distance: float = 0.1,
) -> Report:
    """Predict the width for a distance from the mean field.

    The prediction is the leading order in 1/width.

    Example: bnmc width --distance 0.1 --activation tanh --batch 32

    Parameters
    ----------
    distance
        Root-mean-square Frobenius distance between the stationary Gram matrix and the fixed
        point of the mean field.
    """
    from bnmc.chain.chain import Chain
    from bnmc.mean_field.field import MeanField

    chain = Chain(max(batch, 2) * 1000, batch, activation, norm=norm)
    law = MeanField(chain).fluctuations()
    least, needed = law.least_width, law.width_for(distance)
    document = {
        "chain": {"batch": batch, "activation": activation, "norm": norm},
        "distance": distance, "width": needed, "least_width": least,
    }  # fmt: skip
    text = [
        f'{activation}, batch {batch}, norm "{norm}": distance {distance:g} from the mean field at '
        f"width {needed}"
    ]
    if needed < least:
        text.append(f"This prediction is inaccurate. Predictions hold from width {least} on.")
    return Report(document, text)


@command(plot=True)
def stability(
    activation: str = "relu,tanh,silu",
    batches: str = "3,4,5,8,12,16,24,32,48,64",
    norm: str = "batch",
) -> Report:
    """Compute the batch sizes with a stable fixed point.

    Example: bnmc stability --activation silu,relu --batches 8,16,32,64

    Parameters
    ----------
    activation : NAME,NAME,…
        Activations, separated by commas.
    batches : N,N,…
        Batch sizes, separated by commas.
    norm : NAME
        Normalization: batch or batch-uncentred.
    """
    from bnmc.mean_field import atlas, plot_stability

    sizes = integers("batches", batches)
    entries = atlas(names(activation), sizes, norm=norm)
    document = {"chain": {"norm": norm}, "rows": [entry.to_dict() for entry in entries]}
    return Report(
        document, ["\n\n".join(entry.table() for entry in entries)], lambda: plot_stability(entries)
    )


@command()
def phase(
    activation: str = "tanh",
    weight_variance: float = 1.0,
    bias_variance: float = 0.0,
    norm: str = "none",
    *,
    order: str,
    skip: float,
) -> Report:
    """Compute the phase of networks without batch norm.

    The phase is ordered, critical or chaotic. The table also shows the depth scales of correlations
    and gradients, and the weight variance at the edge of chaos for this bias variance.

    Example: bnmc phase --activation tanh --weight-variance 1.5 --bias-variance .05

    Parameters
    ----------
    weight_variance
        Variance of a weight, times the number of inputs of a neuron.
    norm : NAME
        Normalization: none, layer, rms or group.
    """
    from bnmc.errors import ArgumentError
    from bnmc.mean_field import CorrelationMap, edge_of_chaos

    chosen: dict[str, Any] = {
        "activation": activation, "weight_variance": weight_variance,
        "bias_variance": bias_variance, "norm": norm, "order": order, "skip": skip,
    }  # fmt: skip
    facts = CorrelationMap(**chosen).phase().to_dict() | {"edge_weight_variance": None}
    if skip == 0.0:
        try:
            edge = edge_of_chaos(activation, bias_variance, norm=norm, order=order)
            facts["edge_weight_variance"] = float(edge.weight_variance)
        except ArgumentError:  # no edge at this bias variance
            pass
    facts["error"] = facts.pop("error")  # the last row
    head = (
        f'{activation}, norm "{norm}", weight variance {weight_variance:g}, bias variance '
        f"{bias_variance:g}: mean field\n"
    )
    return Report({"chain": chosen, **facts}, [head, table_of(facts, names=_NAMES)])
