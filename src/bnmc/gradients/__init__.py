"""The backward pass: gradients through deep random networks, exact in law and without weights.

`backpropagate` simulates the gradients of an ensemble of networks with respect to the weights of
all layers.  Read `backpropagation.py` first, then `parts.py`: a part of the chains goes forward and
down again (`descent.py`), beginning with a direction (`directions.py`).  The mathematics is in the
docstring of `bnmc._kernels.cpu.backward`.  Networks with all their rows (`network.py`) make the
layers without kernels, and neural tangent kernels (`tangent_kernel`).  `store.py` keeps finished
parts.  `warmup` (`warming.py`) compiles the kernels of all packages ahead of time.

The package may import `mean_field`, `simulation` and lower levels.
"""

from __future__ import annotations

import importlib
from typing import Any

from bnmc._support.arithmetic import make_public
from bnmc.gradients.backpropagation import backpropagate as backpropagate
from bnmc.gradients.jacobian_result import Jacobian as Jacobian
from bnmc.gradients.jacobians import jacobian
from bnmc.gradients.lanczos import ExtremeSingularValues as ExtremeSingularValues
from bnmc.gradients.lanczos import extreme_singular_values
from bnmc.gradients.limit_law import jacobian_law
from bnmc.gradients.result import Backpropagation as Backpropagation
from bnmc.gradients.tangent import TangentKernel as TangentKernel
from bnmc.gradients.tangent import probing_variance, tangent_kernel

__all__ = [
    "extreme_singular_values",
    "jacobian",
    "jacobian_law",
    "probing_variance",
    "tangent_kernel",
]

#: By name, the package above that has it: for callers outside of bnmc alone.
_ABOVE = {"largest_rate": "bnmc.training"}

make_public(__name__)


def __getattr__(name: str) -> Any:
    if name not in _ABOVE:
        raise AttributeError(f"module 'bnmc.gradients' has no attribute {name!r}")
    return getattr(importlib.import_module(_ABOVE[name]), name)
