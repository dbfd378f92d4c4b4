"""Keywords of other libraries: the error names the argument that is meant."""

import inspect

import pytest

import bnmc
from bnmc.errors import ArgumentTypeError, PrecisionWarning

CHAIN = bnmc.Chain(8, 3)


@pytest.mark.parametrize(
    ("call", "keyword", "ours"),
    [
        (lambda **o: bnmc.simulate(CHAIN, 2, **o), "seed", "rng"),
        (lambda **o: bnmc.simulate(CHAIN, 2, **o), "n_chains", "chains"),
        (lambda **o: bnmc.simulate(CHAIN, 2, **o), "device", "backend"),
        (lambda **o: bnmc.backpropagate(CHAIN, 2, **o), "random_state", "rng"),
        (lambda **o: bnmc.Chain(width=8, **o), "batch_size", "batch"),
        (lambda **o: bnmc.mixing.tv_bound(CHAIN, **o), "n_layers", "depth"),
        (lambda **o: bnmc.invariant.expectation(CHAIN, abs, **o), "seed", "rng"),
        (lambda **o: bnmc.regularity.constant(CHAIN, **o), "seed", "rng"),
    ],
)
def test_the_error_names_the_argument(call, keyword, ours):
    with pytest.raises(ArgumentTypeError, match=f"^{keyword}: got 3, allowed: {ours}, ") as caught:
        call(**{keyword: 3})
    assert caught.value.argument == keyword
    assert str(caught.value).endswith(f" has no argument {keyword})")


def test_other_unknown_keywords_are_errors_of_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        bnmc.simulate(CHAIN, 2, colour=3)


def test_signatures_and_names_stay():
    assert "rng" in inspect.signature(bnmc.simulate).parameters
    assert bnmc.simulate.__name__ == "simulate"
    assert "width" in inspect.signature(bnmc.Chain).parameters


def test_warnings_point_to_the_caller():
    with pytest.warns(PrecisionWarning) as caught:
        bnmc.simulate(
            bnmc.Chain(4, 3, "relu", norm="none"), 40, dtype="float32", initial="collinear", rng=0
        )
    assert caught[0].filename == __file__
