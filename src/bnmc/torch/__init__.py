"""Your own PyTorch model: measured, explained, cured (extra ``torch``).

`measure` takes a model and a batch, and returns ranks, correlations and gradient norms of all
layers, with a verdict in words and the mean field beside them. `chain_of` reads the `bnmc.Chain` of
a model. Functions whose names end in ``_`` change a model in place, as initializers of PyTorch do.

The package imports PyTorch when a function is called, and may import `mean_field`, `plot` and lower
levels. Read `measuring.py` first: a forward pass (`layers.py`) of an
observed model (`preservation.py`) gives numbers (`representations.py`, `losses.py`), which
`result.py` tells. `steps.py` and `reading.py` read the chain, `prediction.py` asks its mean field.
The cures are in `orthogonalizing.py`, `ranks.py`, `initializing.py` and `gains.py`.
"""

from __future__ import annotations

from bnmc.torch.gains import gain_for_
from bnmc.torch.initializing import break_, haar_
from bnmc.torch.measuring import measure
from bnmc.torch.orthogonalizing import orthogonalize_
from bnmc.torch.prediction import Prediction
from bnmc.torch.ranks import maximize_rank_
from bnmc.torch.reading import ModelChain, chain_of
from bnmc.torch.result import Measurement

__all__ = [
    "Measurement",
    "ModelChain",
    "Prediction",
    "break_",
    "chain_of",
    "gain_for_",
    "haar_",
    "maximize_rank_",
    "measure",
    "orthogonalize_",
]
