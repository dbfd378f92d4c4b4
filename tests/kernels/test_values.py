"""Arguments of kernels: errors of statuses, and bad arguments."""

import numpy as np
import pytest

import bnmc
from bnmc import kernels
from bnmc.errors import (
    ArgumentError,
    ArgumentTypeError,
    NonFiniteError,
    UnknownNameError,
)

CHAIN = bnmc.Chain(70, 5, "relu")


def test_other_statuses_have_errors_too():
    work = kernels.workspace(CHAIN)
    kernels.raise_status(kernels.OK, work, layer=1)
    with pytest.raises(NonFiniteError):
        kernels.raise_status(kernels.NOT_FINITE, work, layer=1)
    for status in (kernels.UNRESOLVED, kernels.BAD_ARGUMENT, kernels.SMALL_WORKSPACE, 99):
        with pytest.raises(ArgumentError, match="status"):
            kernels.raise_status(status, work, layer=1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: kernels.activation("rellu"), UnknownNameError),
        (lambda: kernels.activation(np.log), ArgumentError),
        (lambda: kernels.activation(3), ArgumentTypeError),
        (lambda: kernels.law("relu"), ArgumentTypeError),
        (lambda: kernels.law(CHAIN, 0), ArgumentError),
        (lambda: kernels.workspace(CHAIN, "float16"), UnknownNameError),
        (lambda: kernels.workspace(CHAIN, "numbers"), ArgumentTypeError),
        (lambda: kernels.workspace(CHAIN, threads=0), ArgumentError),
        (lambda: kernels.activations(None), ArgumentTypeError),
        (lambda: kernels.weight_law(bnmc.Chain(4, 2, weights=np.random.rand)), ArgumentError),
    ],
)
def test_bad_arguments_of_python(call, error):
    with pytest.raises(error):
        call()
