"""Safe unpickling of finished parts, also of parts from before classes moved.

A pickle can name any function of any module, and unpickling calls it.  A folder of parts may come
from anywhere, so this unpickler only calls the functions and makes the classes listed here.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import is_dataclass
from typing import Any

from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain

__all__ = ["FORMER_NAMES", "unpickled"]

_ACTIVATIONS = "bnmc.chain.activations"
_CHAIN = "bnmc.chain.chain"
_OTHER_ACTIVATIONS = "bnmc.experiments.orthogonalizes.other_activations"

#: Names of functions and classes that a part may use, by module.  Dataclasses of this package may
#: be used as well; `_Unpickler.find_class` recognizes them.
_KNOWN = {
    "builtins": {"complex", "dict", "frozenset", "list", "set", "slice", "tuple"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    # The same functions under the names of NumPy before version 2.
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    _ACTIVATIONS: {"_named", "_rebuilt"},
    _OTHER_ACTIVATIONS: {"sigmoid_of_half", "sin_of_half", "tanh_of_half"},
}

#: Module and name in parts written before the modules moved: module and name today.
FORMER_NAMES = {
    ("bnmc.activations", "_named"): (_ACTIVATIONS, "_named"),
    ("bnmc.activations", "_rebuilt"): (_ACTIVATIONS, "_rebuilt"),
    ("bnmc.chain", "_rebuilt"): (_CHAIN, "_rebuilt"),
    ("bnmc._samplers", "State"): ("bnmc.simulation.engine.state", "State"),
    ("bnmc.estimate", "Estimate"): ("bnmc.estimate.estimate", "Estimate"),
    ("bnmc.experiments.orthogonalizes", "_sigmoid_half"): (_OTHER_ACTIVATIONS, "sigmoid_of_half"),
    ("bnmc.experiments.orthogonalizes", "_sin_half"): (_OTHER_ACTIVATIONS, "sin_of_half"),
    ("bnmc.experiments.orthogonalizes", "_tanh_half"): (_OTHER_ACTIVATIONS, "tanh_of_half"),
    ("bnmc.mixing.autocorrelation", "Autocorrelation"): ("bnmc.mixing", "Autocorrelation"),
    ("bnmc.mixing.comparison", "Comparison"): ("bnmc.mixing", "Comparison"),
    ("bnmc.mixing.comparison", "ComparisonRow"): ("bnmc.mixing", "ComparisonRow"),
    ("bnmc.mixing.contraction", "Contraction"): ("bnmc.mixing", "Contraction"),
    ("bnmc.mixing.coupling", "TVBound"): ("bnmc.mixing", "TVBound"),
    ("bnmc.mixing.rate", "RateEstimate"): ("bnmc.mixing", "RateEstimate"),
    ("bnmc.mixing.relaxation", "Relaxation"): ("bnmc.mixing", "Relaxation"),
    ("bnmc.mixing.spectral", "ChapmanKolmogorov"): ("bnmc.mixing", "ChapmanKolmogorov"),
    ("bnmc.mixing.spectral", "Spectrum"): ("bnmc.mixing", "Spectrum"),
    ("bnmc.regularity", "Averages"): ("bnmc.regularity", "Averages"),
    ("bnmc.regularity", "Figures"): ("bnmc.regularity", "Figures"),
    ("bnmc.trajectory", "Moments"): ("bnmc.simulation.trajectory", "Moments"),
    ("bnmc.trajectory", "Trajectory"): ("bnmc.simulation.trajectory", "Trajectory"),
}


def unpickled(pickled: bytes) -> Any:
    """Return the object that `pickled` holds.

    Raises
    ------
    pickle.UnpicklingError
        If it uses any other function or class than numbers, strings, containers, arrays, and
        results of this package, or if it holds a chain with a function for its weights.
    """
    return _Unpickler(io.BytesIO(pickled)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        is_former = (module, name) in FORMER_NAMES
        if is_former:
            module, name = FORMER_NAMES[module, name]
        if name in _KNOWN.get(module, ()):
            return super().find_class(module, name)
        if (module, name) == (_CHAIN, "_rebuilt"):
            return _chain
        if module.partition(".")[0] == "bnmc" and "." not in name:
            found = super().find_class(module, name)
            # An imported name must not give access to the module that it comes from.
            if is_dataclass(found) and (is_former or found.__module__ == module):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that an experiment keeps")


def _chain(
    width: int, batch: int, activation: Activation, weights: object, options: dict[str, Any]
) -> Chain:
    """Make a chain from its pickled fields, but no chain with a function for its weights."""
    if not isinstance(weights, str):
        raise pickle.UnpicklingError("a function is nothing that an experiment keeps")
    return Chain(width, batch, activation, weights=weights, **options)
