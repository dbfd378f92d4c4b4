"""The specification of a chain as a value: width, batch, activation, norm, weights, start.

Everything here is known before any random number is drawn.  The package may import `_support`,
`_kernels` and `errors`.  Read `chain.py` first, then `norms.py` and `activations.py`.
"""

from __future__ import annotations

from bnmc._support.keywords import explain_calls
from bnmc.chain.activations import Activation, as_activation
from bnmc.chain.chain import Chain, Network, Residual
from bnmc.chain.convolution import Convolution
from bnmc.chain.norms import NORMS, GroupNorm, Norm
from bnmc.chain.start import FirstLayer
from bnmc.chain.weights import WEIGHTS, WeightLaw, WeightSampler

__all__ = [
    "NORMS",
    "WEIGHTS",
    "Activation",
    "Chain",
    "Convolution",
    "FirstLayer",
    "Network",
    "Norm",
    "Residual",
    "WeightLaw",
    "WeightSampler",
    "as_activation",
]

explain_calls(Activation, Chain, Convolution, FirstLayer, GroupNorm, Network, Residual)
