"""``bnmc stability``: the batch sizes at which the fixed point is stable."""

from __future__ import annotations

from bnmc.cli.command import Report, command


@command(plot=True)
def stability(
    norm: str,
    activation: list[str] | None = None,
    batches: str = "3,4,5,8,12,16,24,32,48,64",
) -> Report:
    """Compute the batch sizes with a stable fixed point.

    Example: bnmc stability --activation silu --activation relu --batches 8,16,32,64

    Parameters
    ----------
    activation : NAME
        Activation; repeat the option for several. Default: relu, tanh and silu.
    batches : N,N,…
        Batch sizes, separated by commas.
    """
    from bnmc.errors import ArgumentError
    from bnmc.mean_field import atlas, plot_stability

    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError:
        raise ArgumentError("batches", batches, "integers, separated by commas") from None
    entries = atlas(activation or ["relu", "tanh", "silu"], sizes, norm=norm)
    document = {"norm": norm, "activations": [entry.to_dict() for entry in entries]}
    return Report(document, ["\n\n".join(map(str, entries))], lambda: plot_stability(entries))
