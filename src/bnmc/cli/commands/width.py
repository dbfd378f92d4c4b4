"""``bnmc width``: the width at which a chain is within a distance of the mean field."""

from __future__ import annotations

from bnmc.cli.command import Report, command


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
        "activation": activation, "batch": batch, "norm": norm, "distance": distance,
        "width": needed, "least_width": least,
    }  # fmt: skip
    text = [
        f'{activation}, batch {batch}, norm "{norm}": distance {distance:g} from the mean field at '
        f"width {needed}"
    ]
    if needed < least:
        text.append(f"This prediction is inaccurate. Predictions hold from width {least} on.")
    return Report(document, text)
