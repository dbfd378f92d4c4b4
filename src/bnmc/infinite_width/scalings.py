"""`Scaling`: how initial weights and learning rates of a network depend on its width.

A network with one hidden layer is ``f(x) = σ Σ_r â_r φ(ŵ_rᵀ x)``, with initial weights of variance
1. In a deeper one, weights between hidden layers have the factor σ, too. Golikov, *Towards a
general theory of infinite-width limits of neural classifiers* (arXiv 2003.05884) and *Dynamically
stable infinite-width limits of neural classifiers* (arXiv 2006.06574), lets σ and the learning
rates be powers of the width d: ``σ ∝ d^q_sigma`` and ``η̂ ∝ d^q_tilde``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from bnmc._support.arguments import choice, instance, integer, real
from bnmc._support.text import Result, text_table
from bnmc.errors import ArgumentTypeError

_HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Properties(Result):
    """Powers of the width of a limit, and which properties of finite networks the limit has.

    Attributes
    ----------
    logits : Fraction
        Power of the outputs at initialization.
    kernels : tuple of Fraction
        Powers of the two tangent kernels at initialization, that of the output weights and that of
        the input weights, each with its learning rate.
    ratio : Fraction
        Power of the larger kernel over the outputs.
    evolution : tuple of Fraction
        Powers of the relative change of the two tangent kernels in one step. The kernel of the
        output weights depends on the input weights, and changes with these.

    Examples
    --------
    >>> from bnmc.infinite_width import SCALINGS
    >>> found = SCALINGS["mean-field"].properties()
    >>> found.evolving_kernels, found.finite_logits, found.logits
    (True, False, Fraction(-1, 2))
    """

    logits: Fraction
    kernels: tuple[Fraction, Fraction]
    ratio: Fraction
    evolution: tuple[Fraction, Fraction]

    @property
    def finite_logits(self) -> bool:
        """Property 1: the outputs at initialization neither vanish nor diverge."""
        return self.logits == 0

    @property
    def finite_kernels(self) -> bool:
        """Property 2: the tangent kernels at initialization neither vanish nor diverge."""
        return not any(self.kernels)

    @property
    def same_order(self) -> bool:
        """Property 3: one step changes the outputs by the order of the outputs themselves."""
        return self.ratio == 0

    @property
    def evolving_kernels(self) -> bool:
        """Property 4: one step changes each kernel by the order of the kernel itself."""
        return not any(self.evolution)

    @property
    def well_defined(self) -> bool:
        """Whether the outputs and their change are of one order, from some step on.

        Outputs must change and weights must not diverge: ``−1/2 <= q_sigma + q_tilde <= 0``. If the
        two learning rates differ, q_tilde is the mean of their powers, because output and input
        weights drive one another.
        """
        return -_HALF <= sum(self.evolution) / 2 <= 0

    def __str__(self) -> str:
        rows = [
            ("1 outputs", str(self.logits), _yes(self.finite_logits)),
            ("2 kernels", ", ".join(map(str, self.kernels)), _yes(self.finite_kernels)),
            ("3 kernels / outputs", str(self.ratio), _yes(self.same_order)),
            ("4 change of kernels", ", ".join(map(str, self.evolution)),
             _yes(self.evolving_kernels)),
        ]  # fmt: skip
        return text_table(("at initialization", "power of the width", "holds"), rows, align="<>>")


@dataclass(frozen=True, init=False)
class Scaling:
    """Powers of the width by which initial weights and learning rates are multiplied.

    Parameters
    ----------
    q_sigma : float, int or Fraction
        Power of σ, the standard deviation of the output weights.
    q_tilde : float, int, Fraction or pair of these
        Power of the learning rates of weights of variance 1; a pair if those of the output weights
        and of the input weights differ.
    q_hidden : float, int or Fraction, optional
        Power of the learning rates of weights of variance 1 between hidden layers. Default: that of
        the output weights, with which the tangent kernels of both have one power of the width at
        initialization.
    corrected : bool, default False
        Whether the outputs at initialization are replaced by those of ``q_sigma = −1/2``, as in the
        initialization-corrected mean-field limit (IC-MF).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is no such number.

    See Also
    --------
    bnmc.infinite_width.SCALINGS : "ntk", "mean-field", "default", "sym-default" and "ic-mf".

    Examples
    --------
    >>> from bnmc.infinite_width import SCALINGS, Scaling
    >>> print(SCALINGS["ntk"].properties())
    at initialization    power of the width  holds
    1 outputs                             0    yes
    2 kernels                          0, 0    yes
    3 kernels / outputs                   0    yes
    4 change of kernels          -1/2, -1/2     no
    >>> Scaling(-1, 1).properties().evolving_kernels
    True
    """

    q_sigma: Fraction
    q_tilde: tuple[Fraction, Fraction]
    q_hidden: Fraction
    corrected: bool

    def __init__(
        self, q_sigma: Any, q_tilde: Any, *, q_hidden: Any = None, corrected: bool = False
    ) -> None:
        pair = q_tilde if isinstance(q_tilde, tuple) else (q_tilde, q_tilde)
        if len(pair) != 2:
            raise ArgumentTypeError("q_tilde", q_tilde, "a number, or a pair of numbers")
        q_sigma = _power("q_sigma", q_sigma)
        output, inputs = (_power("q_tilde", rate) for rate in pair)
        hidden = output if q_hidden is None else _power("q_hidden", q_hidden)
        corrected = instance("corrected", corrected, bool, "a bool")
        vars(self).update(
            q_sigma=q_sigma, q_tilde=(output, inputs), q_hidden=hidden, corrected=corrected
        )

    def properties(self) -> Properties:
        """Return the powers of outputs and tangent kernels, and the properties of the limit.

        They are those of networks with one hidden layer, which do not depend on `q_hidden`.
        Outputs are sums of d terms of mean 0, so they grow as ``σ √d``. Tangent kernels are sums of
        d terms of one sign, so they grow as ``η̂ σ² d``. In one step a weight changes by ``η̂ σ``.
        With ``corrected``, outputs are those of ``q_sigma = −1/2``. Each power follows from the
        two powers of the scaling. With one power of both learning rates the conditions are
        ``q_sigma + 1/2 = 0``, ``2 q_sigma + q_tilde + 1 = 0``, ``q_sigma + q_tilde + 1/2 = 0`` and
        ``q_sigma + q_tilde = 0``.

        Returns
        -------
        Properties
        """
        output, inputs = self.q_tilde
        logits = Fraction(0) if self.corrected else self.q_sigma + _HALF
        kernels = (2 * self.q_sigma + output + 1, 2 * self.q_sigma + inputs + 1)
        evolution = (self.q_sigma + inputs, self.q_sigma + output)
        return Properties(logits, kernels, max(kernels) - logits, evolution)

    def factors(self, width: int, reference_width: int) -> tuple[float, float, float]:
        """Return the factors of a network relative to one of the reference width.

        Parameters
        ----------
        width, reference_width : int
            d and d* >= 1; r = d/d*.

        Returns
        -------
        weights : float
            ``r^(q_sigma + 1/2)``: factor of output weights that have variance 1/d.
        output_rate, input_rate : float
            ``r^(q_tilde + 2 q_sigma)`` and ``r^q_tilde``: factors of the learning rates.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If a width is not an integer >= 1.
        """
        ratio = _ratio(width, reference_width)
        output, inputs = self.q_tilde
        powers = self.q_sigma + _HALF, output + 2 * self.q_sigma, inputs
        weights, output_rate, input_rate = (ratio ** float(power) for power in powers)
        return weights, output_rate, input_rate

    def hidden_rate(self, width: int, reference_width: int) -> float:
        """Return the factor of the learning rate of weights between hidden layers.

        Parameters
        ----------
        width, reference_width : int
            d and d* >= 1; r = d/d*.

        Returns
        -------
        float
            ``r^(q_hidden + 2 q_sigma)``: 1/r for "ntk", 1 for "mean-field" and "default", and
            r^(−1/2) for "sym-default" (Golikov, arXiv 2003.05884). The rate r^(−1/2) that a later
            version of the authors' code has for NTK lets the tangent kernel of hidden weights
            diverge as √r.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            If a width is not an integer >= 1.

        Examples
        --------
        >>> from bnmc.infinite_width import SCALINGS
        >>> SCALINGS["ntk"].hidden_rate(512, 128)
        0.25
        """
        return _ratio(width, reference_width) ** float(self.q_hidden + 2 * self.q_sigma)


def _ratio(width: object, reference_width: object) -> float:
    """Return the ratio of two widths, or raise."""
    return integer("width", width, low=1) / integer("reference_width", reference_width, low=1)


def _power(name: str, value: Any) -> Fraction:
    if isinstance(value, Fraction):
        return value
    return Fraction(real(name, value)).limit_denominator(10**6)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


class _Scalings(dict[str, Scaling]):
    """Scalings by name; another name raises the error that suggests the nearest one."""

    def __missing__(self, name: str) -> Scaling:
        return self[choice("scaling", name, self)]


#: The scalings with names. "default" keeps the learning rates of weights of variance 1/d. In the
#: mean-field limit, hidden weights of variance 1 have d² derivatives of size 1/d², and move by the
#: order of 1 at a learning rate of d².
SCALINGS = _Scalings(
    {
        "ntk": Scaling(-_HALF, 0),
        "mean-field": Scaling(-1, 1, q_hidden=2),
        "default": Scaling(-_HALF, (1, 0)),
        "sym-default": Scaling(-_HALF, _HALF),
        "ic-mf": Scaling(-1, 1, q_hidden=2, corrected=True),
    }
)
