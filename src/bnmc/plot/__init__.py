"""Pictures of runs; needs the extra ``plot``.

The functions use Matplotlib's object-oriented interface: they open no window, change no global
state, and work in any thread. They take a `bnmc.Trajectory`, `bnmc.gradients.Backpropagation` or
`bnmc.torch.Measurement`, a `bnmc.mean_field.PathFluctuations`, or any object with the attributes
that they read. The package may import `gram`, `random_matrix` and lower levels. Read
`runs.py` first; `axes.py` has the style that all pictures share.
"""

from __future__ import annotations

from bnmc._support.arithmetic import ignore_underflow
from bnmc.plot.axes import COLOURS, band, estimates, figure, plain_ticks, style
from bnmc.plot.gradients import gradient_norms, measurement
from bnmc.plot.runs import LABELS, overview, predicted_band, spectrum, trajectory

__all__ = [
    "COLOURS",
    "LABELS",
    "band",
    "estimates",
    "figure",
    "gradient_norms",
    "measurement",
    "overview",
    "plain_ticks",
    "predicted_band",
    "spectrum",
    "style",
    "trajectory",
]

ignore_underflow(__name__)
