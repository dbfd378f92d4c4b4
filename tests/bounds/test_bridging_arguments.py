"""Arguments of the statements of the bridging paper: ranges, broadcasting, and G*."""

import itertools

import numpy as np
import pytest
from bridging_checks import fixed_point

from bnmc.bounds import bridging
from bnmc.errors import ArgumentError, ArgumentTypeError, SingularGramError

EXTREMES = {
    "depth": (0, 1e30),
    "width": (1, 1e30),
    "batch": (1, 1e30),
    "alpha": (1e-30, 1),
    "t": (0, 1e-300, 1e30),
    "inverse_norm": (1e-30, 1e30),
    "distortion": (1e-30, 1e30),
    "constant": (1e-30, 1e30),
    "rows": (1, 1e30),
    "condition": (1, 1e30),
    "total_variation": (0, 1),
}


STATEMENTS = {
    "equation_6": "depth width batch",
    "theorem_1": "depth width batch alpha t inverse_norm constant",
    "corollary_2": "depth width batch alpha t inverse_norm constant",
    "theorem_3": "depth width batch alpha t inverse_norm distortion constant",
    "corollary_4": "width batch t inverse_norm distortion constant",
    "corollary_6": "depth width batch alpha t constant",
    "corollary_7": "depth width batch alpha t constant",
    "poster_theorem": "depth width batch alpha condition constant",
    "lemma_5": "width batch inverse_norm distortion constant",
    "lemma_9": "width batch t inverse_norm distortion",
    "gram_concentration": "width batch t inverse_norm distortion",
    "lemma_10": "t total_variation",
    "lemma_11": "width batch inverse_norm distortion",
    "equation_47": "width batch inverse_norm distortion",
    "one_step_total_variation": "width batch rows inverse_norm distortion",
    "lemma_12": "depth width batch alpha inverse_norm distortion constant",
}


def numbers_of(result):
    return (
        [result.radius, result.probability]
        if isinstance(result, bridging.Concentration)
        else [result]
    )


@pytest.mark.parametrize("name", STATEMENTS)
def test_arguments_broadcast_and_extremes_stay_numbers(name):
    """All corners of the ranges in one call: no NaN, no warning, and the values of single calls."""
    arguments = STATEMENTS[name].split()
    grids = np.meshgrid(*(EXTREMES[a] for a in arguments), indexing="ij", sparse=True)
    statement = getattr(bridging, name)
    values = numbers_of(statement(**dict(zip(arguments, grids, strict=True))))
    for value in values:
        assert value.shape == tuple(len(EXTREMES[a]) for a in arguments)
        assert not np.isnan(value).any()
        assert (value >= 0).all()
    for index in itertools.islice(np.ndindex(values[0].shape), 0, None, 7):
        one = {a: EXTREMES[a][i] for a, i in zip(arguments, index, strict=True)}
        for value, alone in zip(values, numbers_of(statement(**one)), strict=True):
            assert isinstance(alone, np.float64)
            np.testing.assert_allclose(alone, value[index], rtol=1e-13)


def valid(name):
    """Arguments of a statement. All are 1, except the width and t."""
    return {a: {"width": 1000, "t": 2}.get(a, 1) for a in STATEMENTS[name].split()}


@pytest.mark.parametrize("name", STATEMENTS)
def test_bad_arguments(name):
    statement = getattr(bridging, name)
    statement(**valid(name))
    for argument in STATEMENTS[name].split():
        low, *_, high = EXTREMES[argument]
        for wrong, error in [
            (np.nan, ArgumentError),
            (-1, ArgumentError),
            (low - 1e-12 * max(low, 1), ArgumentError),
            (high * 1.001, ArgumentError),
            ("many", ArgumentTypeError),
        ]:
            with pytest.raises(error) as caught:
                statement(**{**valid(name), argument: wrong})
            assert caught.value.argument == argument
    first, second = STATEMENTS[name].split()[:2]
    with pytest.raises(ArgumentError, match="broadcast"):
        statement(**{**valid(name), first: [1, 1], second: [1, 1, 1]})


@pytest.mark.parametrize("activation", ["relu", "tanh", "sigmoid"])
def test_star_stands_for_its_numbers(activation):
    star = fixed_point(activation, 6)
    spectrum = np.linalg.eigvalsh(star.gram)
    gamma = bridging.distortion(activation, 6)
    where = {"width": 5000, "batch": 6}
    expected = bridging.lemma_11(**where, inverse_norm=1 / spectrum[0], distortion=gamma.upper)
    condition = spectrum[-1] / spectrum[0]
    deep = {"depth": 9, "alpha": 0.3, **where}
    poster = bridging.poster_theorem(**deep, condition=condition)
    for G in (star, star.gram, star.gram.tolist()):
        assert bridging.lemma_11(**where, star=G, distortion=gamma) == pytest.approx(expected)
        assert bridging.poster_theorem(**deep, star=G) == pytest.approx(poster)


def test_bad_stars():
    where = {"width": 5000, "distortion": 1}
    for degenerate in (fixed_point("tanh", 2), fixed_point("linear", 5), np.ones((3, 3))):
        n = 3 if isinstance(degenerate, np.ndarray) else degenerate.batch
        with pytest.raises(SingularGramError, match="star"):
            bridging.lemma_5(**where, batch=n, star=degenerate)
    star = fixed_point("relu", 4)
    with pytest.raises(ArgumentError, match="batch: got 5"):
        bridging.lemma_5(**where, batch=5, star=star)
    with pytest.raises(ArgumentTypeError, match="inverse_norm"):
        bridging.lemma_5(**where, batch=4, star=star, inverse_norm=1)
    with pytest.raises(ArgumentTypeError, match="condition"):
        bridging.poster_theorem(depth=1, width=9, batch=4, alpha=1)
    with pytest.raises(ArgumentError, match="star"):
        bridging.corollary_8(width=9, alpha=1, star=[[1.0]])
    with pytest.raises(SingularGramError, match="star"):
        bridging.corollary_8(width=9, alpha=1, star=np.zeros((2, 2)))
