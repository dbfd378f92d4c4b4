"""``bnmc phase``: ordered, critical or chaotic, with depth scales and the edge of chaos."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from bnmc.cli import options
from bnmc.cli.report import number_text, print_json, print_table

__all__ = ["phase"]


def phase(
    activation: options.Activation = "tanh",
    weight_variance: Annotated[
        float, typer.Option(help="Variance of a weight, times the number of inputs of a neuron.")
    ] = 1.0,
    bias_variance: Annotated[float, typer.Option(help="Variance of a bias.")] = 0.0,
    norm: Annotated[
        str, typer.Option(metavar="NAME", help="Normalization: none, layer, rms or group.")
    ] = "none",
    order: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Order in a layer: norm-activation, activation-norm or pre-activation (residual).",
        ),
    ] = "norm-activation",
    skip: options.Skip = 0.0,
    as_json: options.Json = False,
) -> None:
    """Compute the phase of networks without batch norm.

    The phase is ordered, critical or chaotic. The table also shows the depth scales of correlations
    and gradients, and the weight variance at the edge of chaos for this bias variance.

    Example: bnmc phase --activation tanh --weight-variance 1.5 --bias-variance .05
    """
    from bnmc.errors import ArgumentError
    from bnmc.mean_field import CorrelationMap, edge_of_chaos

    found = CorrelationMap(
        activation, weight_variance=weight_variance, bias_variance=bias_variance, norm=norm,
        order=order, skip=skip,
    ).phase()  # fmt: skip
    edge = None
    if skip == 0.0:
        try:
            at = edge_of_chaos(activation, bias_variance, norm=norm, order=order)
            edge = float(at.weight_variance)
        except ArgumentError:  # no edge at this bias variance
            edge = None
    facts: dict[str, Any] = {
        "phase": found.name,
        "variance": found.variance,
        "variance_depth": found.variance_depth,
        "correlation": found.correlation,
        "correlation_depth": found.correlation_depth,
        "gradient_factor": found.gradient_factor,
        "gradient_depth": found.gradient_depth,
        "edge_weight_variance": edge,
        "error": found.error,
    }
    if as_json:
        given = {
            "activation": activation, "weight_variance": weight_variance,
            "bias_variance": bias_variance, "norm": norm, "order": order, "skip": skip,
        }  # fmt: skip
        print_json({**given, **facts})
        return
    print(
        f'{activation}, norm "{norm}", weight variance {weight_variance:g}, bias variance '
        f"{bias_variance:g}: mean field\n"
    )
    rows = [[name.replace("_", " "), _value_text(value)] for name, value in facts.items()]
    print_table(["quantity", "value"], rows)


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return "infinite" if value == math.inf else number_text(value)
