"""Sizes of figures: values that they take, as Python's and as text, and their documentation."""

import math
from typing import Annotated, NamedTuple

import numpy as np
import pytest

import bnmc
from bnmc.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from bnmc.experiments import sizes


class Sizes(NamedTuple):
    """Sizes of nothing.

    gammas: strengths of the weights,
      infinite without skip
    kinds: activation and batch size of each kind
    share: share of random labels
    """

    width: int = 3
    widths: tuple[int, ...] = (4, 8)
    first: sizes.Natural = 0
    rate: float = 0.5
    share: Annotated[float, {"low": 0.0, "high": 1.0}] = 0.0
    gammas: tuple[Annotated[float, {"above": 0.0, "finite": False}], ...] = (1.0,)
    activations: tuple[sizes.Named, ...] = ("relu",)
    classes: tuple[sizes.Natural, sizes.Natural] = (0, 1)
    stages: tuple[tuple[int, ...], ...] = ((8, 8), (16,))
    kinds: tuple[tuple[sizes.Builtin, int], ...] = (("linear", 100),)
    rates: Annotated[tuple[float, ...], {"repeats": True}] = (0.1, 0.1)
    chains: sizes.Several = 2
    batches: sizes.Integers = (3, 4)


MINE = bnmc.Activation(lambda x: x * x, name="square")

#: Texts and their values.
TEXTS = {
    "width=500": 500, "widths=7": (7,), "widths=100,200": (100, 200), "first=0": 0,
    "rate=1e-3": 1e-3,
    "share=1": 1.0, "gammas=inf,0.1": (math.inf, 0.1), "activations=tanh,gelu": ("tanh", "gelu"),
    "classes=3,8": (3, 8), "stages=8:8,16:16": ((8, 8), (16, 16)), "stages=4": ((4,),),
    "kinds=tanh:5,relu:6": (("tanh", 5), ("relu", 6)), "rates=1,1": (1.0, 1.0),
    "batches=3,4,5": (3, 4, 5),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_texts_have_values(text):
    name = text.partition("=")[0]
    assert sizes.parsed(Sizes, [text]) == {name: TEXTS[text]}
    again = f"{name}={sizes.as_text(TEXTS[text])}"
    assert sizes.parsed(Sizes, [again]) == {name: TEXTS[text]}
    assert getattr(sizes.checked(Sizes(), {name: TEXTS[text]}), name) == TEXTS[text]


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("width", ArgumentError, "set: got 'width', allowed: a size and its value"),
        ("with=3", UnknownNameError, "set: got 'with', .*did you mean 'width'"),
        ("width=0", ArgumentError, "width: got 0, allowed: an integer >= 1"),
        ("width=1.5", ArgumentTypeError, "width: got '1.5', allowed: an integer >= 1"),
        ("widths=1,", ArgumentTypeError, "widths: got '', allowed: an integer >= 1"),
        ("networks=5", UnknownNameError, "batches .`networks` is now `chains`.$"),
        ("pairs=5", UnknownNameError, "batches .`pairs` is now `chains`.$"),
        ("widths=5,5", ArgumentError, "widths: got '5,5', allowed: different values"),
        ("chains=1", ArgumentError, "chains: got 1, allowed: an integer >= 2"),
        ("batches=5", ArgumentError, "batches: .* of int, of at least 2 values"),
        ("rate=0", ArgumentError, "rate: got 0.0, allowed: a finite real number > 0"),
        ("share=1.5", ArgumentError, "share: got 1.5, allowed: a finite real number >= 0.0 and"),
        ("gammas=nan", ArgumentError, "gammas: got nan"),
        ("activations=rleu", UnknownNameError, "did you mean 'relu'"),
        ("classes=1", ArgumentError, "classes: .* allowed: a sequence, .int, int."),
        ("classes=1,2,3", ArgumentError, "classes: .* allowed: a sequence, .int, int."),
        ("kinds=tanh", ArgumentError, "kinds: .* allowed: a sequence, .str, int."),
        ("kinds=square:3", UnknownNameError, "kinds: got 'square', allowed: linear, relu"),
    ],
)
def test_other_texts_have_none(text, error, words):
    with pytest.raises(error, match=words):
        sizes.parsed(Sizes, [text])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"width": 3.0}, ArgumentTypeError), ({"width": True}, ArgumentTypeError),
        ({"widths": 3}, ArgumentTypeError), ({"widths": "34"}, ArgumentTypeError),
        ({"widths": ()}, ArgumentError), ({"rate": "0.1"}, ArgumentTypeError),
        ({"activations": "relu"}, ArgumentTypeError), ({"activations": (3,)}, ArgumentTypeError),
        ({"stages": (3, 4)}, ArgumentTypeError), ({"nothing": 3}, UnknownNameError),
    ],
)  # fmt: skip
def test_values_of_another_kind_are_refused(changes, error):
    with pytest.raises(error, match=next(iter(changes))):
        sizes.checked(Sizes(), changes)


def test_a_misspelt_argument_of_all_figures_has_a_suggestion():
    for name, near in (("progres", "progress"), ("thread", "threads"), ("seed", "rng")):
        with pytest.raises(UnknownNameError, match=f"did you mean the argument '{near}'"):
            sizes.checked(Sizes(), {name: 3})
    with pytest.raises(UnknownNameError, match="did you mean 'width'"):
        sizes.checked(Sizes(), {"widht": 3})


def test_values_have_their_canonical_type():
    changed = sizes.checked(
        Sizes(),
        {"widths": np.array([3, 5]), "rate": 1, "activations": [MINE, "relu"], "width": None},
    )
    assert changed == Sizes(widths=(3, 5), rate=1.0, activations=(MINE, "relu"))
    assert [type(value) for value in changed.widths] == [int, int]
    assert type(changed.rate) is float


def test_facts_tell_activations_of_one_name_apart():
    facts = sizes.facts(Sizes(activations=(MINE, "relu")))
    assert facts["activations"] == f"square,relu {MINE.digest}"
    assert (facts["stages"], facts["width"]) == ("8:8,16", "3")


def test_documentation():
    text = sizes.documented(Sizes(), Sizes(width=300))
    assert text.startswith(
        "width : int, default 3\n    Width.  With `full`: 300.\nwidths : tuple of"
    )
    for line in (
        "gammas : tuple of float, default (1.0,)\n    Strengths of the weights, infinite without",
        "activations : tuple of str or Activation, default ('relu',)\n    Activations.\n",
        "stages : tuple of tuples of int, default ((8, 8), (16,))\n",
        "kinds : tuple of (str, int), default (('linear', 100),)\n",
    ):
        assert line in text
