"""``bnmc phase``: ordered, critical or chaotic, with depth scales and the edge of chaos."""

from __future__ import annotations

from typing import Any

from bnmc.cli.command import Report, command, table_of


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
    return Report({**chosen, **facts}, [head, table_of(facts)])
