"""Draws pytorch.png: run it from the root of the repository, with the extra ``plot``.

The measured values are in pytorch.json; ``docs/scripts/measured_in_pytorch.py`` writes them.
"""

import json
from pathlib import Path

import numpy as np
from saving import axes, save

import bnmc
from bnmc.plot import COLOURS

NAMES = ("relu", "tanh", "elu")
MEASURED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def numbers():
    found = {}
    for name in NAMES:
        chain = bnmc.Chain(MEASURED["width"], MEASURED["batch"], name)
        norms = MEASURED["activations"][name]["norms"]
        rate = bnmc.MeanField(chain).fixed_point().backward_rate
        found[name] = np.exp(np.array(norms) / 2)
        found[f"{name} predicted"] = rate ** (np.arange(len(norms))[::-1] / 2)
    return found


def draw(values):
    figure, ax = axes()
    layers = np.arange(1, MEASURED["depth"] + 1)
    for name, label, colour in zip(NAMES, ("ReLU", "Tanh", "ELU"), COLOURS, strict=False):
        ax.plot(layers, values[f"{name} predicted"], color=colour, lw=1.2)
        ax.plot(layers, values[name], "o", ms=3.5, color=colour, label=label)
    ax.set(yscale="log", xlabel="layer", ylabel="gradient norm, over that of layer 40")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    save(__file__, numbers, draw)
