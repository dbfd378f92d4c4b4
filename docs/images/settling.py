"""Draws settling.png: run it from the root of the repository, with the extra ``plot``."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import bnmc
from bnmc.plot import COLOURS, band, style, trajectory

DEPTH = 40
figure = Figure(figsize=(10, 3.8), layout="constrained")
left, right = figure.subplots(1, 2)

runs = {}
star = bnmc.MeanField(bnmc.Chain(1000, 10, "relu")).fixed_point()
for width in (250, 1000, 4000):
    rng = np.random.default_rng(0)
    five = rng.standard_normal((width, 5))
    x = np.hstack([five, five + 0.1 * rng.standard_normal((width, 5))])  # five inputs, near copies
    chain = bnmc.Chain(width=width, batch=10, activation="relu")
    runs[f"width {width}"] = bnmc.simulate(chain, DEPTH, chains=500, initial=x, rng=0)
style(left)
trajectory(runs, star=star.gram, ax=left)
start = runs["width 4000"].gram[0, 0]  # of layer 0, where no weights are
field = bnmc.MeanField(chain).trajectory(start, DEPTH)
distance = bnmc.gram.distance(field.gram, star.gram)
left.plot(distance, "k:", lw=1.2, label="mean field", zorder=3)
law = bnmc.MeanField(chain).fluctuations()
for width in (250, 1000, 4000):
    level = law.mean_distance(width).value
    label = "predicted level" if width == 250 else None
    left.plot([30, DEPTH], [level, level], "k--", lw=1.4, label=label, zorder=4)
left.set(ylim=(0.05, 2.6), yscale="log", title="Five inputs and near copies, ReLU networks")
left.legend(frameon=False)

style(right)
for colour, name in zip(COLOURS, ("relu", "tanh", "celu", "linear"), strict=False):
    chain = bnmc.Chain(width=1000, batch=10, activation=name)
    cert = bnmc.mixing.tv_bound(chain, DEPTH, lag=40, chains=4000, rng=0)
    low, high = np.clip(cert.ci.T, 1e-4, None)
    band(right, cert.layers, np.clip(cert.bound, 1e-4, None), low, high, colour=colour, label=name)
right.set(
    yscale="log", ylim=(1e-3, 2), xlabel="layer", ylabel="total variation, at most",
    title="Distance from the law of deep layers, width 1000",
)  # fmt: skip
right.legend(frameon=False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
