"""Draws logo.svg: run it from the root of the repository.

The logo is the Gram matrix of five samples at the fixed point of ReLU networks: 1 on the diagonal,
and the cosine of two samples beside it.
"""

from pathlib import Path

import bnmc

SAMPLES, CELL, GAP = 5, 16, 2
COLOUR = "#0072B2"


def svg():
    """Return the text of the picture."""
    cosine = bnmc.MeanField(bnmc.Chain(512, SAMPLES, "relu")).fixed_point().c
    places = range(0, SAMPLES * (CELL + GAP), CELL + GAP)
    side = places[-1] + CELL
    cells = [
        f'  <rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3"'
        f' opacity="{1.0 if x == y else cosine:.2f}"/>'
        for y in places
        for x in places
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {side} {side}" fill="{COLOUR}">'
    return "\n".join((head, "  <title>bnmc</title>", *cells, "</svg>", ""))


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(svg(), encoding="utf-8")
