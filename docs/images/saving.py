"""Save a picture together with the numbers that it shows.

A test computes the numbers again and compares: so every picture is made by today's code.
"""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from bnmc.plot import style

KEY = "Numbers"


def axes(columns=1):
    """Return an empty figure of the size of the pages, and its axes."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    ax = figure.subplots(1, columns)
    for each in np.ravel(ax):
        style(each)
    return figure, ax


def save(script, numbers, draw):
    """Draw the numbers, a dict of arrays, and save them beside the script, in one PNG file."""
    values = {name: np.asarray(value, dtype=float) for name, value in numbers().items()}
    text = json.dumps({name: [float(f"{x:.7g}") for x in v.ravel()] for name, v in values.items()})
    draw(values).savefig(Path(script).with_suffix(".png"), dpi=110, metadata={KEY: text})


def saved(path):
    """Return the numbers of a picture, as a dict of flat lists."""
    from PIL import Image  # Matplotlib needs it too

    with Image.open(path) as picture:
        return json.loads(picture.text[KEY])
