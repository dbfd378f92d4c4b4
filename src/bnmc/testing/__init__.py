"""Tools for the tests of other programs.

`assert_same_law` tests whether your layer has the law of a chain, or your network that of all its
layers, and names likely causes if it has not.  `chains`, `batches`, `gram_matrices`, `activations`
and `generators` are Hypothesis strategies (extra ``testing``).  `examples` builds layers in
PyTorch and JAX, and `roofline` compares a time with the peak rates of the machine.
`bnmc.pytest_plugin` has fixtures.

The package may import `_claims`, `chain` and lower levels, but neither `invariant` nor `mixing`.
Read `same_law.py` first, which calls the step on some states.  `calls_on_state.py` sums what it
returns, and `exact_tests.py` tests the sums.  `explanation.py` finds the causes, with `faults.py`
for wrong covariances.  `whole_networks.py` tests the layers of a network.
"""

from bnmc._support.arithmetic import make_public
from bnmc.testing import examples as examples
from bnmc.testing.examples import from_features_last, from_images, from_linear_first
from bnmc.testing.machine_limits import Roofline as Roofline
from bnmc.testing.machine_limits import roofline
from bnmc.testing.same_law import LawMismatch as LawMismatch
from bnmc.testing.same_law import assert_same_law
from bnmc.testing.strategies import activations, batches, chains, generators, gram_matrices

__all__ = [
    "activations",
    "assert_same_law",
    "batches",
    "chains",
    "from_features_last",
    "from_images",
    "from_linear_first",
    "generators",
    "gram_matrices",
    "roofline",
]

make_public(__name__)
