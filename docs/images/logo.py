"""Draws logo.svg: run it from the root of the repository.

The logo is the Gram matrix of five samples at the fixed point of ReLU networks: 1 on the diagonal, and the
cosine of two samples beside it.
"""

from pathlib import Path

import bnmc

SAMPLES, CELL, GAP = 5, 16, 2
COLOUR = "#0072B2"


def svg():
    """Return the text of the picture."""
    cosine = bnmc.MeanField(bnmc.Chain(512, SAMPLES, "relu")).fixed_point().c
    side = SAMPLES * CELL + (SAMPLES - 1) * GAP
    cells = [
        f'  <rect x="{column * (CELL + GAP)}" y="{row * (CELL + GAP)}" width="{CELL}" height="{CELL}"'
        f' rx="3" opacity="{1.0 if row == column else cosine:.2f}"/>'
        for row in range(SAMPLES)
        for column in range(SAMPLES)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" fill="{COLOUR}">'
    return "\n".join((head, "  <title>bnmc</title>", *cells, "</svg>", ""))


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg(), encoding="utf-8")
