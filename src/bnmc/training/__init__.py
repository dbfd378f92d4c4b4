"""Training: gradient descent of random networks at any width, exact in law.

`train` takes networks through steps of SGD or Muon.  Hidden matrices are never drawn: what they
were multiplied by is kept, and a step adds coefficients (`bnmc.implicit`).  Read `running.py`
first, then `course.py`: one network through its training.  `passes.py` has the forward, backward
and tangent passes, `weights.py` the matrices, `architecture.py` the layers and their
parametrization (`scalings.py`), `steps.py` losses and optimizers, and `observables.py` what is
recorded.  `forecast.py` predicts memory and time, and `store.py` keeps finished networks.
`stable_rates.py` has the largest stable learning rates.

The package may import `gradients`, `infinite_width`, `implicit` and lower levels.
"""

from __future__ import annotations

from bnmc._support.arithmetic import make_public
from bnmc.training.result import Training as Training
from bnmc.training.running import train
from bnmc.training.stable_rates import LargestRate as LargestRate
from bnmc.training.stable_rates import largest_rate

__all__ = ["largest_rate", "train"]

make_public(__name__)
