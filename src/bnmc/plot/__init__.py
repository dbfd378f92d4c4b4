"""Pictures of runs; needs the extra ``plot``.

The functions use Matplotlib's object-oriented interface: they open no window, change no global
state, and work in any thread. They take a `bnmc.Trajectory`, `bnmc.gradients.Backpropagation` or
`bnmc.torch.Measurement`, a `bnmc.mean_field.PathFluctuations`, or any object with the attributes
that they read. The package may import `gram`, `random_matrix` and lower levels. Read
`runs.py` first; `axes.py` has the style that all pictures share.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.plot.axes import COLOURS as COLOURS
from bnmc.plot.axes import band as band
from bnmc.plot.axes import estimates as estimates
from bnmc.plot.axes import figure as figure
from bnmc.plot.axes import plain_ticks as plain_ticks
from bnmc.plot.axes import style as style
from bnmc.plot.gradients import gradient_norms, measurement
from bnmc.plot.runs import LABELS as LABELS
from bnmc.plot.runs import overview, spectrum, trajectory
from bnmc.plot.runs import predicted_band as predicted_band

__all__ = [
    "gradient_norms",
    "measurement",
    "overview",
    "spectrum",
    "trajectory",
]

make_public(__name__)
