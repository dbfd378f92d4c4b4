"""``bnmc compare-norms``: rank, orthogonality, correlation and gradients, for several norms."""

from __future__ import annotations

from bnmc.cli.command import Report, command
from bnmc.cli.commands.figure import report_of


@command(plot=True, needs=lambda _: {"xarray": "xarray"})
def compare_norms(
    activation: str,
    width: int = 400,
    batch: int = 8,
    depth: int = 30,
    chains: int = 8,
    norm: list[str] | None = None,
    *,
    seed: int,
    threads: int | None,
    progress: bool,
) -> Report:
    """Compare ranks and gradients of networks by their norm.

    The table and the picture show soft rank, orthogonality gap, mean correlation and gradient norms
    against depth, beside the mean field. The samples are independent and Gaussian. The gain is such
    that networks without a norm keep their variance.

    Example: bnmc compare-norms --activation tanh --depth 50 --plot norms.png

    Example: bnmc compare-norms --norm batch --norm layer --width 1000 --seed 0 --json

    Parameters
    ----------
    depth
        Number of layers, at least 4.
    chains
        Number of networks per norm, at least 2.
    norm : NAME
        Normalization as in bnmc simulate; repeat the option for several. Default: batch,
        layer, rms, group(8) and none.
    """
    from bnmc._support.arguments import integer
    from bnmc.experiments.beyond import norms

    batch, chains = integer("batch", batch, low=3), integer("chains", chains, low=2)
    return report_of(
        norms(
            norms=tuple(dict.fromkeys(norm)) if norm else None, activation=activation, width=width,
            batch=batch, depth=depth, networks=chains, rng=seed, progress=progress,
            threads=threads,
        )
    )  # fmt: skip
