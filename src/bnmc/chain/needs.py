"""What a function needs of a chain, declared once, and the error that names what is missing.

A function lists what it needs: ``require(chain, COUPLED)``.  If the chain lacks something, one
function makes the error, with the option of `Chain`, its value, the allowed values and the advice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from bnmc._kernels.scalar.codes import MOST_ROWS
from bnmc.chain.chain import Chain, as_chain
from bnmc.chain.norms import NORMS, ROW_NORMS, as_norm
from bnmc.errors import ArgumentError

_NORMALIZING = ", ".join(f'"{name}"' for name in NORMS if not as_norm(name).is_identity)
_NORMALIZING += ' or "group(g)"'


class Need(NamedTuple):
    """Something that a chain has or lacks.

    option : str
        The option of `Chain` that decides, for the message.
    holds : callable
        Whether a chain has it.
    allowed : str
        The values of the option with which it has, in words.
    hint : str
        The reason.  ``{instead}`` stands for the advice of the function that needs it.
    """

    option: str
    holds: Callable[[Chain], bool]
    allowed: str
    hint: str = "{instead}"

    def refusal(self, value: object, instead: str = "") -> ArgumentError:
        """Return the error about a value of the option with which a chain lacks it."""
        return ArgumentError(self.option, value, self.allowed, self.hint.format(instead=instead))


TWO_SAMPLES = Need(
    "batch", lambda chain: chain.batch >= 2, "an integer >= 2", "one sample is no chain"
)
NO_SKIP = Need("skip", lambda chain: chain.skip == 0.0, "0")
NO_BIAS = Need("bias_variance", lambda chain: chain.bias_variance == 0.0, "0")
FULLY_CONNECTED = Need("convolution", lambda chain: chain.convolution is None, "None")
NORM_OVER_BATCH = Need(
    "norm", lambda chain: chain.normalization.axis == "batch", '"batch" or "batch-uncentred"'
)
INDEPENDENT_ENTRIES = Need(
    "weights", lambda chain: not chain.is_orthogonal, "a law with independent entries"
)

#: Advice for chains that cannot be coupled.
OF_A_RUN = "use bnmc.mixing.autocorrelation"

#: A known stationary law.
STATIONARY = (
    Need(
        "norm",
        lambda chain: not chain.normalization.is_identity or chain.bias_variance > 0.0,
        _NORMALIZING,
        "without normalization no stationary law exists",
    ),
    Need(
        "norm",
        lambda chain: not chain.normalization.is_identity,
        _NORMALIZING,
        "with biases alone a stationary law may exist: measure a run by "
        "bnmc.mixing.autocorrelation",
    ),
)

#: A coupling of two chains: the Gram matrix is the state, and two chains can draw the same rows.
COUPLED = (
    *STATIONARY,
    NO_SKIP._replace(hint="with a skip connection the Gram matrix is no state; {instead}"),
    Need(
        "weights",
        lambda chain: not chain.is_orthogonal,
        '"gaussian"',
        "with orthogonal weights the rows W a have the Gram matrix of a exactly, so chains with "
        "different Gram matrices cannot draw the same rows; chain.idealized() has Gaussian "
        "weights, or {instead}",
    ),
    Need(
        "weights",
        lambda chain: chain.is_gaussian,
        '"gaussian"',
        "for other laws, rows W a depend on more of a than its Gram matrix; chain.idealized() has "
        "Gaussian weights, or {instead}",
    ),
    Need(
        "width", lambda chain: chain.width <= MOST_ROWS, f"at most {MOST_ROWS} for this chain", ""
    ),
    TWO_SAMPLES,
)

# The activation follows a norm that acts on rows.
_ROWS_IN_ORDER = Need(
    "order",
    lambda chain: chain.is_row_by_row or not chain.normalization.acts_on_rows,
    '"norm-activation"',
)

#: Layers N(skip x + gain W σ(x)), with N over the batch or none, and no bias that N shows.
ROWS_ALONE = (
    Need(
        "norm",
        lambda chain: chain.normalization.acts_on_rows,
        " or ".join(f'"{name}"' for name in ROW_NORMS),
    ),
    _ROWS_IN_ORDER,
    NO_BIAS._replace(holds=lambda chain: not chain.shows_bias),
)

#: The same with a W that is no convolution.
ROW_BY_ROW = (FULLY_CONNECTED, *ROWS_ALONE)

#: A map of pairs of samples at infinite width.
PAIRWISE = Need(
    "norm",
    lambda chain: chain.normalization.axis != "batch",
    "none, layer, rms, group",
    "with a norm over the batch the map acts on Gram matrices: use bnmc.MeanField(chain)",
)

_PAIRS = "without a norm over the batch use bnmc.mean_field.CorrelationMap.of(chain)"

#: A fixed point of the map of Gram matrices that all permutations of samples preserve, with a
#: Jacobian.
SYMMETRIC_FIXED_POINT = (
    NORM_OVER_BATCH._replace(
        holds=lambda chain: chain.convolution is None or NORM_OVER_BATCH.holds(chain),
        hint=f"{_PAIRS} of the fully connected chain, which has the same fixed points",
    ),
    NORM_OVER_BATCH._replace(hint=_PAIRS),
    NO_BIAS._replace(
        holds=lambda chain: not chain.shows_bias,
        hint="with a bias it depends on the gain: iterate bnmc.MeanField(chain).trajectory",
    ),
    NO_SKIP._replace(
        hint="MeanField(chain).trajectory(covariance=) has the skip connection of a branch with a "
        "norm, and bnmc.simulate measures other chains"
    ),
    _ROWS_IN_ORDER._replace(hint="iterate bnmc.MeanField(chain).trajectory"),
    Need(
        "eps",
        lambda chain: chain.eps == 0.0,
        "0",
        "chain.idealized() has eps 0; with eps, iterate bnmc.MeanField(chain).trajectory",
    ),
    TWO_SAMPLES._replace(hint="one sample has no Jacobian"),
)


def lacking(chain: Chain, needs: Iterable[Need]) -> Need | None:
    """Return the first need that a chain does not meet, or None."""
    return next((need for need in needs if not need.holds(chain)), None)


def require(chain: object, needs: Iterable[Need], instead: str = "") -> None:
    """Raise unless an argument is a chain that meets all needs.

    Parameters
    ----------
    chain : object
    needs : iterable of Need
        In the order in which they are checked.
    instead : str
        Advice for other chains: what to call instead.

    Raises
    ------
    ArgumentTypeError
        If it is no chain.
    ArgumentError
        About the option that decides the first need that it does not meet.
    """
    need = lacking(checked := as_chain(chain), needs)
    if need is not None:
        raise need.refusal(getattr(checked, need.option), instead)
