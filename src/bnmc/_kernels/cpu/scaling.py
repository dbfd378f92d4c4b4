"""New units of the samples of a state; see `scalar.scaling`."""

from __future__ import annotations

from math import ldexp
from typing import NamedTuple

import numpy as np

from bnmc._kernels.compiling import by_type, inlined, kernel
from bnmc._kernels.cpu.numbers import GROUP
from bnmc._kernels.scalar.elementary import larger
from bnmc._kernels.scalar.scaling import shift_of, shift_of_square


class Units(NamedTuple):
    """The units of the state of chains: a column is in units of 2**exponent."""

    exponents: np.ndarray  # int64 (chains, columns), brought up to date
    lift: int  # the exponent by which gain and skip of the specs were divided


@kernel
def rescale(gram, x, a, exponents, lift, width):
    """Add `lift` to the exponents, and give new units to samples whose size is far from 1.

    Parameters
    ----------
    gram : (columns, columns) float64
    x : (columns, >= width), or (0, 0) without a skip connection
    a : (>= columns, >= width), or (0, 0) if activations are no part of the state
    exponents : (columns,) int64
        Column i of x and a is in units of 2**exponents[i].
    lift : int
        The exponent by which the law of the layer was divided.
    width : int
        Rows of the layer.  Rows beyond its last whole group keep their units: an earlier, wider
        layer wrote them, and repeated changes of unit would make them infinite.

    Returns
    -------
    bool
        Whether x is finite.
    """
    skipped = x.shape[0] > 0
    finite = True
    rows = (width + GROUP - 1) // GROUP * GROUP
    for i in range(gram.shape[0]):
        exponents[i] += lift
        shift = shift_of_square(gram[i, i])
        if skipped:
            largest = 0.0
            for value in x[i, :rows]:
                largest = larger(largest, abs(np.float64(value)))
            finite = finite and largest < np.inf
            # Without activations the sample lives on in x alone.
            if gram[i, i] == 0.0:
                shift = shift_of(largest)
        if shift == 0:
            continue
        exponents[i] += shift
        for j in range(gram.shape[0]):
            # The entry (i, i) is multiplied twice.
            gram[i, j] = ldexp(gram[i, j], -shift)
            gram[j, i] = ldexp(gram[j, i], -shift)
        if skipped:
            _scale_row(x[i, :rows], -shift)
        if a.shape[0] > 0:
            _scale_row(a[i, :rows], -shift)
    return finite


@kernel
def _scale_row(values, exponent):
    """Multiply numbers by 2**exponent; the power may exceed the range of their dtype."""
    for at in range(values.size):
        values[at] = ldexp(np.float64(values[at]), exponent)


@kernel
def copy_numbers(values, out):
    """Write numbers to another array of their length."""
    for at in range(values.size):
        out[at] = values[at]


@inlined
def _record_exponents(units, chain, slot, record):
    copy_numbers(units.exponents[chain], record[chain, slot])


@inlined
def _renew_units(units, chain, gram, x, a, width):
    return rescale(gram, x, a, units.exponents[chain], units.lift, width)


@inlined
def _record_nothing(units, chain, slot, record):
    pass


@inlined
def _renew_nothing(units, chain, gram, x, a, width):
    return True


#: Writes the exponents of a chain to a slot of a record, if scales are split off.
record_units = by_type(Units=_record_exponents, NoneType=_record_nothing)
#: Brings the units of a chain up to date, if scales are split off; returns whether x is finite.
renew_units = by_type(Units=_renew_units, NoneType=_renew_nothing)
