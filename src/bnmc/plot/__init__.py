"""Pictures of runs; needs the extra ``plot``.

Figures are made with Matplotlib's object-oriented interface: no window opens, no global state
changes, and they can be drawn in any thread.  The package draws numbers: it takes any object that
has the attributes that it draws.  It may import `gram`, `random_matrix` and lower levels.  Read
`runs.py` first; `axes.py` has what all pictures share.
"""

from __future__ import annotations

from bnmc.plot.axes import COLOURS, band, estimates, figure, plain_ticks, style
from bnmc.plot.runs import LABELS, overview, spectrum, trajectory

__all__ = [
    "COLOURS",
    "LABELS",
    "band",
    "estimates",
    "figure",
    "overview",
    "plain_ticks",
    "spectrum",
    "style",
    "trajectory",
]
