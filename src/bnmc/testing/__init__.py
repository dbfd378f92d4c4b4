"""Tools for the tests of other programs.

`assert_same_law` says whether a layer of one's own has the law of a chain, and what differs if not.
`chains`, `batches`, `gram_matrices` and `activations` are Hypothesis strategies (extra
``testing``), and `examples` builds layers in PyTorch and JAX.  `roofline` compares a time with what
the machine could do; `bnmc.pytest_plugin` has fixtures.
"""

from bnmc.testing import examples
from bnmc.testing.adapters import from_features_last, from_linear_first
from bnmc.testing.machine_limits import Roofline, roofline
from bnmc.testing.same_law import LawMismatch, assert_same_law
from bnmc.testing.strategies import activations, batches, chains, gram_matrices

__all__ = [
    "LawMismatch",
    "Roofline",
    "activations",
    "assert_same_law",
    "batches",
    "chains",
    "examples",
    "from_features_last",
    "from_linear_first",
    "gram_matrices",
    "roofline",
]
