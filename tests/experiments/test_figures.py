"""What all figures share: soundness, approved pictures, sizes, interruption, threads, progress."""

import inspect

import figure_sizes
import numpy as np
import pytest
from experiment_checks import require_sound
from figure_sizes import FIGURES, TIMED, run, run_interrupted
from slow_cases import some

from bnmc import experiments
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.experiments import sizes
from bnmc.experiments.registry import function_of, sizes_of

NAMES = [name for name in experiments.names() if "sizes" in vars(function_of(name))]

#: Curves of the pictures that are no variable of the data, but computed from such.
COMPUTED = {
    "bridging-1b": 4, "bridging-certificate": 1, "orthogonalizes-6": 2, "rank-collapse-3a": 2,
    "rank-collapse-3b": 4, "rank-collapse-9": 9, "rank-collapse-lemma-3": 4,
    "gradients-explosion": 6, "gradients-orthogonal": 2, "limits-ntk-convergence": 1,
    "limits-alignment": 1, "limits-plane": 5, "stability-atlas": 1,
    "wider-than-memory": 1, "outlook-table": 12,
}  # fmt: skip

#: Labels of vertical axes of places, not of numbers.
TURNED = ("quantity", r"bias variance $\sigma_b^2$")

#: Sizes that do not fit together or are out of range; the message is about the first of them.
REFUSED = [
    ("bridging-1b", {"widths": (300, 500)}, "two or more widths >= 400"),
    ("bridging-1b", {"first": 600}, "600, allowed: an integer <= 599"),
    ("orthogonalizes-wasserstein", {"wide": 32}, "32, allowed: a width that is not among"),
    ("rank-collapse-2", {"width": 2}, "2, allowed: an integer >= 3"),
    ("rank-collapse-2", {"width": 15, "activations": ("abs",)}, "15, allowed: an integer >= 16"),
    ("rank-collapse-2", {"width": 15, "weights": ("rademacher",)}, "15, .* integer >= 16 .*equal"),
    ("rank-collapse-3b", {"shown": 5, "width": 4}, "5, allowed: at most the width 4"),
    ("rank-collapse-6", {"every": 4, "depth": 3}, "4, allowed: at most depth, 3"),
    ("rank-collapse-8", {"widths": ((8, 16),)}, "allowed: 3 of them, one for each"),
    ("rank-collapse-8", {"chains": (2,)}, "allowed: 3 of them, one for each"),
    ("rank-collapse-8", {"rtols": (0.1,)}, "allowed: 3 of them, one for each"),
    ("rank-collapse-8", {"depths": (8,)}, "allowed: 3 of them, one for each"),
    ("rank-collapse-centring", {"width": 39}, "39, allowed: an integer >= 40"),
    ("limits-alignment", {"chains": 4, "draws": 3}, "4, allowed: at most the 3 draws"),
    ("limits-alignment", {"steps": (1, 3)}, "allowed: steps, the first of which is 0"),
    ("limits-complexity", {"train": 3}, ""), ("limits-complexity", {"test": 2}, ""),
    ("limits-complexity", {"classes": (1, 1)}, ""), ("limits-complexity", {"classes": (0, 10)}, ""),
    ("limits-complexity", {"classes": (0, 1, 2)}, ""),
    ("limits-complexity", {"classes": (0, "1")}, ""),
    ("limits-constant-kernel", {"tests": 3}, "3, allowed: at least 8, one batch"),
    ("limits-kl", {"widths": (64, 32)}, ""), ("limits-kl", {"chains": 53}, ""),
    ("limits-kl", {"reference_chains": 101}, ""), ("limits-kl", {"steps": (1, 3)}, ""),
    ("limits-kl", {"reference_chains": 4}, ""), ("training-limits", {"chains": 2}, "a number > 2"),
    ("limits-kl", {"steps": (0, 3, 2)}, ""),
    ("conv", {"shape": (2, 4)}, "2, allowed: an integer >= 3"),
    ("wider-than-memory", {"widths": (64, 100)}, "100, allowed: multiples of 64"),
]  # fmt: skip


def test_every_figure_has_small_sizes():
    assert tuple(FIGURES) == experiments.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_sound(name, small):
    """Its curves are its data; the approved description says which ones."""
    picture = require_sound(small(name), name, approved=False if name in TIMED else None)
    rows = list(rows_of(small(name).data))
    curves = [curve for ax in picture.axes for curve in curves_of(ax)]
    assert sum(not any(contains(row, curve) for row in rows) for curve in curves) == (
        COMPUTED.get(name, 0)
    )


def rows_of(data):
    """Yield the numbers of each variable along each of its axes."""
    for variable in data.data_vars.values():
        for axis in range(variable.ndim):
            yield from np.moveaxis(variable.values, axis, -1).reshape(-1, variable.shape[axis])


def curves_of(ax):
    """Yield the numbers of each line of several points: horizontal if those are ticks of places."""
    for line in ax.lines if ax.get_label() != "<colorbar>" else ():
        if len(line.get_xdata()) > 1 and line.get_transform() == ax.transData:
            numbers = line.get_xdata() if ax.get_ylabel() in TURNED else line.get_ydata()
            yield np.asarray(numbers, dtype=float)


def contains(row, curve):
    """Whether some successive numbers of a row are those of a curve."""
    if len(row) < len(curve):
        return False
    parts = np.lib.stride_tricks.sliding_window_view(row, len(curve))
    return np.isclose(parts, curve, rtol=1e-9, atol=0, equal_nan=True).all(axis=1).any()


#: Of the others the approved pictures, tables and findings are those of interrupted runs.
BIT_BY_BIT = ("bridging-1b", "orthogonalizes-7")


@pytest.mark.parametrize("name", some([name for name in NAMES if name not in TIMED], *BIT_BY_BIT))
def test_an_interrupted_figure_has_the_same_bits(name, small, tmp_path):
    interrupted = name in figure_sizes.interrupted()
    again = run(name, threads=2) if interrupted else run_interrupted(name, tmp_path / "parts")
    assert again.data.identical(small(name).data)
    assert (again.table, again.findings) == (small(name).table, small(name).findings)


@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_arguments(name):
    function, (default, full) = function_of(name), sizes_of(name)
    parameters = inspect.signature(function).parameters
    assert list(parameters)[-len(default) :] == list(default._fields)
    assert all(parameters[size].default is None for size in default._fields)
    assert type(full) is type(default)
    text = " ".join(inspect.getdoc(function).split())
    for values in (default, full):
        assert sizes.checked(default, values._asdict()) == values
        texts = [f"{size}={sizes.as_text(value)}" for size, value in values._asdict().items()]
        assert sizes.parsed(type(default), texts) == values._asdict()
        assert all(sizes.literal(value) in text for value in values)
    with pytest.raises(UnknownNameError, match="size: got 'nothing', allowed: "):
        function(nothing=3)
    with pytest.raises(ArgumentTypeError, match=rf"^{default._fields[0]}: got "):
        function(**{default._fields[0]: object()})
    with pytest.raises(ArgumentTypeError, match="full"):
        function(full="yes")
    if "data" not in parameters:
        with pytest.raises(ArgumentError, match="trains no network"):
            function(data="folder")


@pytest.mark.parametrize(("name", "sizes", "words"), REFUSED)
def test_sizes_that_do_not_fit_are_refused(name, sizes, words):
    with pytest.raises(
        (ArgumentError, ArgumentTypeError), match=f"^{next(iter(sizes))}: got .*{words}"
    ):
        function_of(name)(**sizes)
