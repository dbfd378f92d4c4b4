"""The public names: all of them exist, are listed and documented, and no others are."""

import ast
import dataclasses
import importlib
import inspect
import math
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bnmc
from bnmc._support.text import Result

ROOT = Path(bnmc.__file__).parent

#: Public modules: those of `bnmc.__all__`, and what these name themselves.
MODULES = sorted(
    {"bnmc", "bnmc.kernels.c", "bnmc.kernels.cuda"}
    | {f"bnmc.{name}" for name in bnmc.__all__ if inspect.ismodule(getattr(bnmc, name))}
)


#: Every public name, by the module to import it from.  A new public name needs an entry here, and
#: only a major version removes an entry (CONTRIBUTING.md).  Some names are in no `__all__`: the
#: fixtures and hooks of the plugin, and `bridging.ACTIVATIONS`, which is in the table of notation.
PUBLIC = {
    "bnmc": "Activation Chain Convolution Distance Estimate FirstLayer MeanField "
        "Network Observable Residual SoftRank __version__ backpropagate bounds drawn_biases "
        "drawn_weights errors experiments gradients gram implicit infinite_width invariant "
        "kernels mean_field mixing open plot random_matrix regularity simulate testing torch "
        "train training warmup",
    "bnmc.bounds": "bridging gaussian limits orthogonalizes rank_collapse",
    "bnmc.bounds.bridging": "corollary_2 corollary_4 corollary_6 corollary_7 corollary_8 "
        "distortion gram_concentration lemma_10 lemma_11 lemma_12 lemma_5 lemma_9 "
        "one_step_total_variation poster_theorem theorem_1 theorem_3",
    "bnmc.bounds.gaussian": "spectral_deviation total_variation",
    "bnmc.bounds.limits": "arora_error du_residual du_width song_yang_width",
    "bnmc.bounds.orthogonalizes": "corollary_3 expected_shares expected_squared_gap lemma_6 "
        "lemma_8 one_step_variance shortfall stationary_squared_distance stationary_squared_gap "
        "theorem_1 theorem_5 wasserstein_squared",
    "bnmc.bounds.rank_collapse": "corollary_15 lemma_1 lemma_13 lemma_5_gamma lemma_7 "
        "proposition_8 theorem_14",
    "bnmc.errors": "ArgumentError ArgumentTypeError BackendError BnmcError Interrupted "
        "NonFiniteError NotMixing PartialEstimateError SingularGramError "
        "StoreError WorkersLostError ZeroVarianceError",
    "bnmc.experiments": "Experiment Table describe extras_of names run",
    "bnmc.experiments.beyond": "conv depth_over_width digits edge_of_chaos_diagram gap gpt_sizes "
        "isometry norms rates scale stability_atlas wider_than_memory",
    "bnmc.experiments.bridging": "ACTIVATIONS certificate conditioning fig_1a fig_1b fig_2 poster "
        "stationary_linear two_inputs",
    "bnmc.experiments.limits": "alignment complexity constant_kernel exponents kl ntk_convergence "
        "plane",
    "bnmc.experiments.orthogonalizes": "fig_1 fig_2a fig_2b fig_3 fig_4 fig_6 fig_7 wasserstein",
    "bnmc.experiments.outlooks": "outlook_table",
    "bnmc.experiments.rank_collapse": "centring fig_1 fig_10 fig_2 fig_3a fig_3b fig_4 fig_5 "
        "fig_6 fig_8 fig_9 lemma_3",
    "bnmc.experiments.training_law": "coordinate_check kernel_change logit_divergences "
        "mean_field_depth one_step orthogonal_start",
    "bnmc.gram": "centre condition correlation cross_gram distance eigenvalues gram "
        "orthogonality_gap rank_bound relative_deviation soft_rank validate_gram",
    "bnmc.implicit": "GaussianMatrix HaarMatrix load",
    "bnmc.infinite_width": "Scaling alignment complexity convergence descent dual "
        "logit_divergence nngp ntk posterior train_networks",
    "bnmc.invariant": "check expectation sample",
    "bnmc.kernels": "Status Stream WeightCode activate activation activations conditional_layer "
        "digest failed_row gram law normalise_activate normalise_activate_row normals philox "
        "raise_status representation uniforms weight_law weights_layer workspace",
    "bnmc.kernels.c": "ABI_VERSION declarations function header table write_header",
    "bnmc.kernels.cuda": "activation normalise_activate_row normals philox uniforms",
    "bnmc.mean_field": "CorrelationMap atlas block_symmetric edge_of_chaos "
        "isometry_rate limit partial_collapse residual_growth stability",
    "bnmc.mixing": "autocorrelation compare contraction relaxation spectral tv_bound two_inputs",
    "bnmc.gradients": "extreme_singular_values jacobian jacobian_law probing_variance "
        "tangent_kernel",
    "bnmc.plot": "gradient_norms measurement overview spectrum trajectory",
    "bnmc.pytest_plugin": "bnmc_rng bnmc_roofline bnmc_warm pytest_addoption pytest_configure "
        "pytest_configure_node pytest_terminal_summary",
    "bnmc.random_matrix": "MarchenkoPastur four_point_vertex kl linear_covariance log_norm "
        "lyapunov_ginibre lyapunov_residual lyapunov_residual_estimate shaped_relu "
        "tangent_kernel_dispersion total_variation vanilla_deviation wasserstein",
    "bnmc.regularity": "averages constant figures one_step_second_moment",
    "bnmc.testing": "activations assert_same_law batches chains from_features_last "
        "from_images from_linear_first generators gram_matrices roofline",
    "bnmc.torch": "ImplicitLinear ImplicitSGD break_ chain_of coordinate_check gain_for_ haar_ "
        "implicit_ implicit_layers maximize_rank_ measure network_of orthogonalize_",
    "bnmc.training": "largest_rate train",
    "bnmc.cli": "main",
}  # fmt: skip


#: Names in no `__all__`: what functions return or raise, parts of pictures, and examples.  The
#: reference documents them beside these functions, and they can be imported from the same module.
RETURNED = {
    "bnmc": "Estimates GroupNorm Trajectory",
    "bnmc.bounds.bridging": "Bulk Concentration Distortion equation_19 equation_47 equation_6",
    "bnmc.gradients": "Backpropagation ExtremeSingularValues Jacobian TangentKernel backpropagate",
    "bnmc.infinite_width": "Alignment Convergence Descent Dual NetworkTraining Posterior "
        "Properties SCALINGS SimulatedKernel",
    "bnmc.invariant": "CheckReport Claim InvariantSample",
    "bnmc.kernels": "Law Sigma",
    "bnmc.kernels.c": "Table",
    "bnmc.mean_field": "BlockFixedPoint CorrelationPoint Crossing EdgeOfChaos EntryCovariance "
        "FixedPoint Fluctuations FourierMode GrowthLaw IsometryRate Limit MeanField "
        "MeanFieldTrajectory "
        "PairFluctuations PairTrajectory PathFluctuations PathPrediction Phase Prediction "
        "ResidualGrowth Sector Stability StationaryBulk Step VariancePoint plot_stability",
    "bnmc.mixing": "AbsorbingEvent Autocorrelation ChapmanKolmogorov Comparison ComparisonRow "
        "Contraction CrossedStart LaggedDistance RateEstimate Relaxation Spectrum TVBound "
        "TwoInputs",
    "bnmc.plot": "COLOURS LABELS band estimates figure plain_ticks predicted_band style",
    "bnmc.random_matrix": "Factor LogNorm ProductLaw SingularValueLaw WishartMoments",
    "bnmc.regularity": "Averages Figures",
    "bnmc.testing": "LawMismatch Roofline examples",
    "bnmc.torch": "CoordinateCheck Facts Measurement ModelChain ModelNetwork Outlook Prediction",
    "bnmc.training": "Training",
    "bnmc.errors": "KernelCacheWarning LayoutWarning LinearTheoryWarning MissingExtraError "
        "PlainNumbaWarning PrecisionWarning ResultTooLargeError StoreInUseError StoreLockError "
        "StoreMismatchError StoreReplacedError UnknownNameError",
    "bnmc.testing.examples": "jax_step torch_conv_step torch_step",
}  # fmt: skip

#: The largest number of public names outside of `experiments`.
MOST = 200


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name):
    module = importlib.import_module(name)
    for member in PUBLIC[name].split():
        exec(f"from {name} import {member}", {})
    unknown = set(getattr(module, "__all__", ())) - set(PUBLIC[name].split())
    assert not unknown, f"{name} lists {unknown}, which the table of this test lacks"


@pytest.mark.parametrize("name", RETURNED)
def test_returned_names_are_in_no_list_and_can_be_imported(name):
    module = importlib.import_module(name)
    for member in RETURNED[name].split():
        exec(f"from {name} import {member}", {})
    if name in PUBLIC:
        assert not set(getattr(module, "__all__", ())) & set(RETURNED[name].split())


def test_there_are_few_public_names():
    """An interface that a reader can survey: what is only returned is in no `__all__`."""
    values = [
        value
        for module in set(PUBLIC) - {"bnmc.pytest_plugin", "bnmc.cli"}
        if not module.startswith("bnmc.experiments")
        for name in PUBLIC[module].split()
        if not inspect.ismodule(value := value_of(importlib.import_module(module), name))
    ]
    functions = {id(value) for value in values if callable(value)}  # some have two places
    assert len(functions) + sum(not callable(value) for value in values) <= MOST


FRESH = """
import importlib, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for one in module.__all__:
        getattr(module, one)
"""


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        (bnmc.Network, "batch blocks chain chains depth first is_repeated last of stages until "
         "widths"),
        (bnmc.Chain, "activation as_json batch bias_variance bn_residual conv convolution "
         "covariance covariance_of_states eps fan_in gain idealized is_gaussian is_orthogonal "
         "is_row_by_row is_vanilla_linear layers norm normalization order repeat resnet "
         "shows_bias skip weights width"),
        (bnmc.Residual, "activation branch depth last projection skip source sum"),
    ],
)  # fmt: skip
def test_values_publish_no_internals(kind, members):
    """What only the package needs is a function of the module that needs it."""
    fields = [field.name for field in dataclasses.fields(kind)]
    assert {name for name in [*vars(kind), *fields] if name[0] != "_"} == set(members.split())


def test_listed_names_are_attributes_from_the_start():
    """Also of modules in `__all__`, which some other import may have put there in this process."""
    nested = ["bnmc.bounds", "bnmc.testing", "bnmc"]
    command = [sys.executable, "-c", FRESH, *nested]
    source = {"PYTHONPATH": os.pathsep.join(map(str, [ROOT.parent, *sys.path]))}
    done = subprocess.run(command, env={**os.environ, **source}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_all_public_modules_are_in_the_table():
    assert set(MODULES) <= set(PUBLIC)
    inside = {
        f"{name}.{member}"
        for name in MODULES
        for member in importlib.import_module(name).__all__
        if inspect.ismodule(value_of(importlib.import_module(name), member))
    }
    assert inside <= set(PUBLIC)


def value_of(module, name):
    """Return what ``from module import name`` gives, which imports a module that is not yet."""
    if not hasattr(module, name):
        importlib.import_module(f"{module.__name__}.{name}")
    return getattr(module, name)


def names_of(module):
    return [name for name in module.__all__ if not name.startswith("__")]


MEMBERS = {
    f"{name}.{member}": value_of(importlib.import_module(name), member)
    for name in MODULES
    for member in names_of(importlib.import_module(name))
}

BESIDE = {
    f"{name}.{member}": value_of(importlib.import_module(name), member)
    for name, members in RETURNED.items()
    for member in members.split()
    if name in MODULES
}


@pytest.mark.parametrize("name", MODULES)
def test_names_are_there_once_and_in_order(name):
    module = importlib.import_module(name)
    listed = module.__all__
    assert len(set(listed)) == len(listed)
    assert listed == sorted(listed, key=lambda entry: (order_of(entry), entry))
    assert module.__doc__


@pytest.mark.parametrize("module", MODULES)
def test_names_are_documented_with_examples(module):
    """Functions have numpydoc's sections; examples of classes begin with what they import.

    An example of a class shows a reader the attributes of a result.  `tests/conftest.py` runs
    examples with nothing imported.
    """
    for name, value in (MEMBERS | BESIDE).items():
        if name.rpartition(".")[0] == module:
            require_examples(name, value)


def require_examples(name, value):
    is_class, function = inspect.isclass(value), inspect.unwrap(value)
    # A class inherits the docstring of its base, which does not count.
    text = (value.__doc__ if is_class else inspect.getdoc(value)) or ""
    shown = re.findall(r"^\s*>>> (.*)", text, re.MULTILINE)
    if is_class:
        assert shown, name
        assert shown[0].startswith(("import ", "from ")), name
    elif inspect.isfunction(function):
        assert shown, name
        assert "Parameters\n" in text or not inspect.signature(function).parameters, name
    elif callable(value) or inspect.ismodule(value):
        assert text, name


def test_the_pages_of_results_have_all_their_public_names():
    """The template of classes adds what a result inherits; here, each name has words somewhere."""
    for name, kind in (MEMBERS | BESIDE).items():
        if inspect.isclass(kind) and issubclass(kind, Result):
            texts = " ".join(base.__doc__ or "" for base in kind.__mro__)
            missing = {
                member
                for member in dir(kind)
                if member[0] != "_" and not re.search(rf"\b{member}\b", texts)
                and not getattr(inspect.getattr_static(kind, member), "__doc__", None)
            }  # fmt: skip
            assert not missing, name


def order_of(name):
    """Ruff's order: constants, classes, all others."""
    if name.isupper() and len(name) > 1:
        return 0
    return 1 if name[:1].isupper() else 2


def documented_defaults(text):
    """Yield each parameter of a docstring with its default: after the type, or first in braces.

    A line may have several names, and as many defaults, joined by "and".
    """
    section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n?[A-Z][A-Za-z ]+\n-{3,}|\Z)", text, re.S)
    for line in section.group(1).splitlines() if section else ():
        entry = re.match(r"([\w, *]+) : (?:\{([^,}]+))?.*?(?:, default (.+))?$", line)
        if entry is not None:
            names = [name.strip(" *") for name in entry.group(1).split(",")]
            first, told = entry.group(2), entry.group(3)
            values = told.split(" and ") if told and len(names) > 1 else [told or first]
            yield from zip(names, values * (len(names) // len(values)), strict=True)


def callables_of(module):
    """Yield the functions and classes that a module exports, and the methods of the classes.

    Those that its functions return count.
    """
    for member in [*names_of(module), *RETURNED.get(module.__name__, "").split()]:
        value = value_of(module, member)
        if inspect.isclass(value):
            names = [name for name in vars(value) if name[0] != "_" or name == "__call__"]
            methods = {name: getattr(value, name) for name in names}
            methods = {name: f for name, f in methods.items() if callable(f)}
            yield from ((f"{member}.{name}", f) for name, f in methods.items())
        if callable(value):
            yield member, value


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_tell_the_defaults(name):
    """All but None, which stands for what the text says, and a long tuple of `testing.batches`."""
    for member, function in callables_of(importlib.import_module(name)):
        try:
            parameters = inspect.signature(function).parameters
        except ValueError:  # functions compiled for C
            continue
        for parameter, told in documented_defaults(inspect.getdoc(function) or ""):
            default = getattr(parameters.get(parameter), "default", None)
            if default not in (None, inspect.Parameter.empty) and parameter != "kinds":
                assert told is not None, f"{name}.{member}: {parameter} without its default"
                value = math.inf if told == "inf" else ast.literal_eval(told)
                # A single name or type may stand for a tuple of one.
                assert value in (default, *np.atleast_1d(default)), f"{name}.{member}: {parameter}"


#: Packages and modules at the top that `bnmc.__all__` does not list: the modules of names that it
#: lists, and two that are entry points, of the command line and of pytest.
BEHIND = {"chain", "estimate", "simulation"}
ENTRY_POINTS = {"cli", "pytest_plugin"}


def test_every_package_is_public_or_stands_behind_public_names():
    names = {
        member.name
        for member in pkgutil.iter_modules([str(ROOT)])
        if not member.name.startswith("_")
    }
    listed = {name for name in bnmc.__all__ if inspect.ismodule(getattr(bnmc, name))}
    assert names == listed | BEHIND | ENTRY_POINTS
    assert set(dir(bnmc)) >= set(bnmc.__all__)


def test_the_module_of_a_public_name_has_it():
    homes = set()
    for name in bnmc.__all__:
        value = getattr(bnmc, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert getattr(importlib.import_module(value.__module__), name) is value, name
            homes.add(value.__module__.split(".")[1])
    assert homes >= BEHIND


def test_what_type_checkers_see_is_the_same():
    """The names under TYPE_CHECKING are those of the lists."""
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    blocks = [
        node for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]  # fmt: skip
    names = {
        alias.asname or alias.name
        for node in blocks
        for member in ast.walk(node)
        if isinstance(member, ast.ImportFrom)
        for alias in member.names
    }
    assert names == {*bnmc.__all__, *RETURNED["bnmc"].split()} - {"__version__"}
    assert (ROOT / "py.typed").is_file()


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        bnmc.simulat  # noqa: B018
    for name, where in {"measure": "torch", "tv_bound": "mixing", "check": "invariant"}.items():
        with pytest.raises(AttributeError, match=f"; did you mean bnmc.{where}.{name}\\?$"):
            getattr(bnmc, name)
