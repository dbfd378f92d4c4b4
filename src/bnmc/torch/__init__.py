"""Your own PyTorch model: measured, explained, cured (extra ``torch``).

`measure` takes a model and a batch, and returns ranks, correlations and gradient norms of all
layers, a verdict on training, and random networks of the same layers beside them. `chain_of` reads
the `bnmc.Chain` of a model, `network_of` the `bnmc.Network` of layers that differ. Functions whose
names end in ``_`` change a model in place, as initializers of PyTorch do.

The package imports PyTorch when a function is called, and may import `gradients`, `mean_field`,
`plot` and lower levels. Read `measuring.py` first: a forward pass (`layers.py`) of an
observed model (`preservation.py`) gives numbers (`representations.py`, `losses.py`) and facts
(`facts.py`), which `result.py` tells. The rules that decide whether the model trains are in
`outlook.py`. `steps.py` and `reading.py` read the network, and `prediction.py` simulates it.
`coordinates.py` trains a model at several widths.
The cures are in `orthogonalizing.py`, `ranks.py`, `initializing.py` and `gains.py`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bnmc._support.arithmetic import make_public
from bnmc.torch.coordinates import CoordinateCheck as CoordinateCheck
from bnmc.torch.coordinates import coordinate_check
from bnmc.torch.facts import Facts as Facts
from bnmc.torch.gains import gain_for_
from bnmc.torch.initializing import break_, haar_
from bnmc.torch.measuring import measure
from bnmc.torch.orthogonalizing import orthogonalize_
from bnmc.torch.outlook import Outlook as Outlook
from bnmc.torch.prediction import Prediction as Prediction
from bnmc.torch.ranks import maximize_rank_
from bnmc.torch.reading import ModelChain as ModelChain
from bnmc.torch.reading import ModelNetwork as ModelNetwork
from bnmc.torch.reading import chain_of, network_of
from bnmc.torch.result import Measurement as Measurement

if TYPE_CHECKING:
    from bnmc.torch.implicit_models import implicit_, implicit_layers
    from bnmc.torch.implicit_modules import ImplicitLinear
    from bnmc.torch.implicit_steps import ImplicitSGD

#: Modules that derive classes from those of PyTorch are imported when a name is first used.
_HOMES = {
    "ImplicitLinear": "implicit_modules", "ImplicitSGD": "implicit_steps",
    "implicit_": "implicit_models", "implicit_layers": "implicit_models",
}  # fmt: skip

__all__ = [
    "ImplicitLinear",
    "ImplicitSGD",
    "break_",
    "chain_of",
    "coordinate_check",
    "gain_for_",
    "haar_",
    "implicit_",
    "implicit_layers",
    "maximize_rank_",
    "measure",
    "network_of",
    "orthogonalize_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bnmc.torch.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


make_public(__name__)
