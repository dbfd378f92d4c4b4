"""``bnmc fixed-point``: the fixed point of the mean field."""

from __future__ import annotations

import math

from bnmc.cli.command import Report, command, table_of


@command()
def fixed_point(
    batch: int,
    activation: str,
    norm: str,
    gain: float | None,
    width: int | None = None,
) -> Report:
    """Compute the fixed point at infinite width.

    The table shows the Gram matrix of the fixed point, its rates and its stability.

    Example: bnmc fixed-point --activation tanh --batch 64 --width 1000

    Parameters
    ----------
    width
        Number of neurons per layer, for the predicted distance at finite width. Default: no
        prediction.
    """
    from bnmc.chain.chain import Chain
    from bnmc.mean_field.field import MeanField

    size = max(batch, 2) * 1000 if width is None else width
    chain = Chain(size, batch, activation, norm=norm, gain=gain)
    point = MeanField(chain).fixed_point()
    facts = point.to_dict()
    if width is not None:
        law = MeanField(chain).fluctuations()
        facts["distance"] = math.sqrt(law.mean_square(width).value)
        facts["least_width"] = law.least_width
    chosen = {"activation": activation, "batch": batch, "norm": norm, "gain": chain.gain}
    names = {"eigenvalues": "eigenvalues λ_L, λ_M"} if norm == "batch" else {}
    # A number below the error is a rounding error of 0.
    is_zero = abs(point.cross_batch) < point.error
    text = [
        f'{activation}, batch {batch}, norm "{norm}": fixed point of the mean field\n',
        table_of(facts | ({"cross_batch": 0.0} if is_zero else {}), names=names),
    ]
    if not point.stable:
        text.append(
            "\nThe fixed point is unstable: networks leave its neighbourhood. The backward rate is "
            "the one at the fixed point, so it does not describe these networks."
        )
    elif math.isinf(point.backward_rate):
        text.append(
            "\nThe backward rate is infinite: in the limit ε → 0, the squared gradient norm has no "
            "finite mean."
        )
    return Report({**chosen, **facts}, text)
