"""The outlook of `bnmc.torch.measure` beside what training gives, on models of many kinds.

A model is trained first, with SGD and with Adam, and measured afterwards.  Intervals of shares are
exact (Clopper and Pearson), at level 0.95.
"""

# Read `comparing.py` first.  `outcomes.py` trains, `collection.py` and `held_out.py` have the
# models, `modules.py` what they are built of, and `tasks.py` the data.

from __future__ import annotations

from bnmc.experiments.outlooks.comparing import outlook_table

__all__ = ["outlook_table"]
