"""The page "Which estimator when" has the matrix that trial calls give: what takes which chain.

Functions declare what they need of a chain (`bnmc.chain.needs`), and raise before any work.  After
a change, ``BNMC_APPROVE=1 pytest tests/test_estimators.py`` writes the new matrix into the page.
"""

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import bnmc
from bnmc import Chain, Convolution, MeanField, errors, infinite_width, invariant, mixing
from bnmc.mean_field import CorrelationMap
from bnmc.testing import assert_same_law

PAGE = Path(__file__).parents[1] / "docs" / "estimators.rst"
X = np.random.default_rng(0).standard_normal((12, 4))
G = X.T @ X / 12


def own(generator, shape):
    return generator.standard_normal(shape)


def called(h):
    """Stand for a step: the chain has passed all checks."""
    raise AssertionError


#: One chain of each kind, of width 12 and batch 4.
CHAINS = {
    'norm "batch"': {},
    'norm "batch-uncentred"': {"norm": "batch-uncentred"},
    'norm "layer", "rms" or "group(g)"': {"norm": "layer"},
    "no norm": {"norm": "none"},
    'norm "batch" after the activation': {"order": "activation-norm"},
    'norm "layer" after the activation': {"norm": "layer", "order": "activation-norm"},
    'norm "batch", with a skip connection': {"skip": 0.5},
    'norm "layer", with a skip connection': {"norm": "layer", "skip": 0.5},
    'norm "batch" in a residual block': {"skip": 1.0, "order": "pre-activation"},
    'norm "layer" in a residual block': {"norm": "layer", "skip": 1.0, "order": "pre-activation"},
    "convolution": {"convolution": Convolution((1, 2), (1, 2))},
    "orthogonal weights": {"weights": "haar"},
    "other laws of weights": {"weights": own},
    'biases, norm "batch"': {"bias_variance": 0.1},
    'biases, norm "layer"': {"norm": "layer", "bias_variance": 0.1},
    'eps > 0, norm "batch"': {"eps": 0.1},
}  # fmt: skip

#: Columns of the matrix; each function is called with a chain.
FUNCTIONS = {
    "`bnmc.simulate`": lambda chain: bnmc.simulate(chain, 1, rng=0),
    "`bnmc.backpropagate`": lambda chain: bnmc.backpropagate(chain, 1, rng=0),
    "`bnmc.gradients.tangent_kernel`": lambda chain: bnmc.gradients.tangent_kernel(chain, 1, rng=0),
    "`bnmc.gradients.jacobian`": lambda chain: bnmc.gradients.jacobian(
        chain, 1, chains=1, rng=0
    ),
    "`bnmc.train`": lambda chain: bnmc.train(
        chain, X, [0, 1, 0, 1], depth=1, steps=1, learning_rate=0.1, rng=0
    ),
    "`bnmc.training.largest_rate`": lambda chain: bnmc.training.largest_rate(
        chain, X, depth=1, chains=2, rng=0
    ),
    "`bnmc.infinite_width.nngp`, ``ntk``": lambda chain: [
        kernel(chain, X, 1, rtol=0.5, rng=0)
        for kernel in (infinite_width.nngp, infinite_width.ntk)
    ],
    "`bnmc.MeanField.trajectory`": lambda chain: MeanField(chain).trajectory(
        None, 1, covariance=G, rtol=0.1, rng=0
    ),
    "`bnmc.MeanField.fixed_point`": lambda chain: MeanField(chain).fixed_point(),
    "`bnmc.MeanField.fluctuations`": lambda chain: MeanField(chain).fluctuations(),
    "`bnmc.mean_field.CorrelationMap`": lambda chain: CorrelationMap.of(chain),
    "`bnmc.mixing.tv_bound`, ``contraction``": lambda chain: [
        mixing.contraction(chain, chains=2, rng=0, max_layers=3),
        mixing.tv_bound(chain, 1, chains=2, rng=0, max_layers=3),
    ],
    "`bnmc.invariant.expectation`, ``sample``": lambda chain: [
        invariant.expectation(chain, "trace", chains=2, rng=0, max_layers=3),
        invariant.sample(chain, 1, rng=0, max_layers=3),
    ],
    "`bnmc.mixing.compare`": lambda chain: mixing.compare(
        chain, chains=5, max_layers=3, rng=0
    ),
    "`bnmc.invariant.check`": lambda chain: invariant.check(
        chain, samples=np.random.default_rng(0).standard_normal((200, 12, 4)), rng=0
    ),
    "`bnmc.regularity.constant`": lambda chain: bnmc.regularity.constant(
        chain, depth=2, burn_in=2, rng=0
    ),
    "`bnmc.testing.assert_same_law`": lambda chain: assert_same_law(
        called, chain, rng=0, rows=2
    ),
    "`bnmc.kernels.law`": bnmc.kernels.law,
}  # fmt: skip


def takes(function, chain):
    """Tell whether a function takes a chain: it fails about no option of the chain."""
    options = {*Chain.__dataclass_fields__, "observable"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(chain)
    except errors.ArgumentError as error:
        return error.argument not in options
    except (errors.BnmcError, AssertionError):
        return True
    return True


#: The tables of the page: their titles, and their first columns.
TABLES = {"Finite width": 0, "Infinite width": 6, "Mixing, and tests": 11}
ENDS = [*list(TABLES.values())[1:], len(FUNCTIONS)]


def row_of(name):
    """Return the row of a chain: a line of the tables of the page."""
    chain = Chain(12, 4, "tanh", **CHAINS[name])
    cells = ["yes" if takes(function, chain) else "–" for function in FUNCTIONS.values()]
    return [name, *cells]


def lines_of(name, cells):
    return [
        f"   {'*' if index == 0 else ' '} - {cell}" for index, cell in enumerate([name, *cells])
    ]


def tables(rows):
    """Return the list-tables of reStructuredText."""
    made = []
    for (title, first), end in zip(TABLES.items(), ENDS, strict=True):
        lines = [f".. list-table:: {title}", "   :header-rows: 1", "   :stub-columns: 1", ""]
        for name, *cells in [["chain", *FUNCTIONS], *rows]:
            lines += lines_of(name, cells[first:end])
        made.append("\n".join(lines))
    return "\n\n".join(made)


PATTERN = re.compile(r"(?<=\.\. which takes which\n\n)\.\. list-table::.*?(?=\n\n[^.\s])", re.S)


def test_the_page_has_the_matrix():
    page = PAGE.read_text(encoding="utf-8")
    if os.environ.get("BNMC_APPROVE"):
        made = tables(map(row_of, CHAINS))
        PAGE.write_text(PATTERN.sub(lambda _: made, page), encoding="utf-8")
        return
    text = PATTERN.search(page).group()
    for (title, first), end in zip(TABLES.items(), ENDS, strict=True):
        heads = lines_of("chain", list(FUNCTIONS)[first:end])
        assert "\n".join([f".. list-table:: {title}", "", *heads]) in re.sub("   :.*\n", "", text)
    assert re.findall(r"^   \* - (.*)", text, re.M) == len(TABLES) * ["chain", *CHAINS]


@pytest.mark.untraced
@pytest.mark.parametrize("name", CHAINS)
def test_a_row_of_the_matrix_is_what_the_functions_take(name):
    page, (_, *cells) = PAGE.read_text(encoding="utf-8"), row_of(name)
    for (title, first), end in zip(TABLES.items(), ENDS, strict=True):
        table = page.partition(f".. list-table:: {title}\n")[2].partition(".. list-table")[0]
        assert "\n".join(lines_of(name, cells[first:end])) + "\n" in table
