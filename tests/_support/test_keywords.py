"""Keywords of other libraries and versions: the error names the argument that is meant."""

import inspect
import re
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from test_public_api import MODULES, callables_of

import bnmc
from bnmc._support.keywords import RENAMED, explains_keywords
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


#: Options of commands, and sizes of figures, have tests of their own.
OF_CODE = {
    place: names for place, names in RENAMED.items()
    if not place.startswith("bnmc ") and place not in ("Chain", "experiments.run")
}  # fmt: skip


@pytest.mark.parametrize("place", OF_CODE)
def test_renamed_arguments_and_attributes(place):
    thing = attrgetter(place)(bnmc)
    for old, new in OF_CODE[place].items():
        if isinstance(thing, type):
            names = {*dir(thing), *thing.__dataclass_fields__}
            result = object.__new__(thing)  # without its fields
            message = f"'{thing.__name__}' object has no attribute '{old}'; it is now '{new}'"
            with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
                getattr(result, old)
        else:
            names = inspect.signature(thing).parameters
            with pytest.raises(ArgumentTypeError, match=f"^{old}: got 3") as caught:
                thing(**{old: 3})
            assert str(caught.value).endswith(f" {new} (`{old}` is now `{new}`)")
        assert new in names
        assert old not in names


@pytest.mark.parametrize(
    ("code", "member"),
    [("OK", "Status.OK"), ("GAUSSIAN", "WeightCode.GAUSSIAN"), ("ROWS", "Stream.ROWS")],
)
def test_codes_of_kernels_are_members(code, member):
    message = f"module 'bnmc.kernels' has no attribute '{code}'; it is now '{member}'"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(bnmc.kernels, code)
    assert attrgetter(member)(bnmc.kernels).name == code
    with pytest.raises(AttributeError, match="^module 'bnmc.kernels' has no attribute 'other'$"):
        bnmc.kernels.other  # noqa: B018


@pytest.mark.parametrize("old", RENAMED["Chain"])
def test_former_constructors_of_chains_name_the_call(old):
    call = RENAMED["Chain"][old]
    message = f"type object 'Chain' has no attribute '{old}'; it is now `{call}`"
    with pytest.raises(AttributeError, match=f"^{re.escape(message)}$"):
        getattr(bnmc.Chain, old)
    arguments = {"Chain": bnmc.Chain, "width": 8, "batch": 3, "activation": "relu"}
    assert isinstance(eval(call, arguments), bnmc.Chain)
    with pytest.raises(AttributeError, match="^type object 'Chain' has no attribute 'other'$"):
        bnmc.Chain.other  # noqa: B018


def test_the_changelog_has_the_table_of_renamed_names():
    text = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    section = text.split("### Before you upgrade\n")[1].split("\n### ")[0]
    rows = re.findall(r"^\| `(.+)` \| `(.+)` \| `(.+)` \|$", section, re.MULTILINE)
    assert rows == [(place, *names) for place in RENAMED for names in RENAMED[place].items()]


#: Things that are no chains, and the size of a matrix.
OTHER_SIZES = {
    "bnmc.torch.measure": {"networks"}, "bnmc.torch.coordinate_check": {"networks"},
    "bnmc.implicit.HaarMatrix": {"size"}, "bnmc.random_matrix.ProductLaw": {"size"},
}  # fmt: skip


def test_sizes_and_accuracies_have_one_name_each():
    former = {"networks", "replicates", "pairs", "size", "tol", "tolerance"}
    names = {
        f"{module}.{name}": former & set(inspect.signature(function).parameters)
        for module in MODULES if module != "bnmc.errors"
        for name, function in callables_of(__import__(module, fromlist=["_"]))
    }  # fmt: skip
    assert {name: taken for name, taken in names.items() if taken} == OTHER_SIZES


#: Kernels, whose calls Numba checks, figures, which have sizes, and modules of PyTorch.
OTHERS = ("bnmc.kernels", "bnmc.experiments", "bnmc.torch.Implicit")


@pytest.mark.parametrize("module", MODULES)
def test_unknown_keywords_of_all_public_functions_are_explained(module):
    for name, function in callables_of(__import__(module, fromlist=["_"])):
        other = inspect.isclass(function) and issubclass(function, (tuple, BaseException))
        if other or f"{module}.{name}".startswith(OTHERS):
            continue
        kinds = {part.kind for part in inspect.signature(function).parameters.values()}
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            with pytest.raises(ArgumentTypeError, match="^flavour: got 3, allowed: .* no argument"):
                function(flavour=3)


def test_near_names_are_suggested():
    message = (
        "chians: got 3, allowed: chains (simulate has no argument chians; did you mean chains?)"
    )
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(message)}$") as caught:
        bnmc.simulate(CHAIN, 2, chians=3)
    assert caught.value.__suppress_context__
    assert len(caught.traceback) <= 4
    with pytest.raises(ArgumentTypeError, match="^dpth: got 3, allowed: depth"):
        bnmc.infinite_width.ntk(CHAIN, np.eye(3), dpth=3)


def test_a_call_with_a_wrong_number_of_arguments_is_shown():
    with pytest.raises(
        TypeError, match=r"given; call simulate\(chain, depth=…, chains=…, .*, …\)$"
    ):
        bnmc.simulate(CHAIN, 2, 3)
    with pytest.raises(
        TypeError, match=r"'batch'; call Chain\(width, batch, activation=…, .*, …\)$"
    ):
        bnmc.Chain(8)


def test_errors_of_the_function_itself_stay():
    @explains_keywords
    def draw(rng=None):
        return rng()

    with pytest.raises(TypeError, match="^'int' object is not callable$"):
        draw(rng=3)


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
