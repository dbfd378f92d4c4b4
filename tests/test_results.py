"""All results of the public table: short texts, a dict for JSON, and HTML.

The docstring of each class has an example, which makes a result of the class.
"""

import contextlib
import doctest
import inspect
import io
import json
import sys
from dataclasses import fields, is_dataclass

import numpy as np
import pytest
import xarray
from test_public_api import PUBLIC, RETURNED, value_of

import bnmc
from bnmc import Chain, MeanField
from bnmc._support.text import Result
from bnmc.bounds import bridging
from bnmc.mean_field.finite_width.results import Prediction

#: Classes that users make: specifications, laws and functions.
SPECIFICATIONS = {
    "Activation", "Chain", "Network", "Residual", "Convolution", "GroupNorm", "Dual", "Scaling",
    "MarchenkoPastur", "SingularValueLaw", "ProductLaw", "Factor", "bnmc.kernels.c.Table",
}  # fmt: skip

CLASSES = {
    f"{module}.{name}": kind
    for table in (PUBLIC, RETURNED)
    for module, names in table.items()
    if module not in ("bnmc.pytest_plugin", "bnmc.cli")
    for name in names.split()
    if inspect.isclass(kind := value_of(__import__(module, fromlist=["_"]), name))
    and (is_dataclass(kind) or issubclass(kind, Result))
    and not {name, f"{module}.{name}"} & SPECIFICATIONS
}


#: Results that no example has.
RESULTS = {
    "Experiment": lambda: bnmc.experiments.Experiment(
        "gap", "Gap", xarray.Dataset({"gap": ("width", np.zeros(99))}),
        bnmc.experiments.Table(("width",), ((100,),) * 40), ("It is 0.",) * 30, print,
    ),
    "Stability": lambda: bnmc.mean_field.stability("relu", range(3, 33)),
    "Bulk": lambda: bridging.Bulk(np.zeros((30, 4)), np.ones((30, 4)), np.ones(30)),
    "Concentration": lambda: bridging.Concentration(np.zeros((30, 4)), np.ones((30, 4))),
    "Distortion": lambda: bridging.distortion("relu", 4),
    "Table": lambda: bnmc.experiments.Table(("width", "error"), ((100, 0.25),) * 90),
    "PathFluctuations": lambda: MeanField(Chain(30, 3)).trajectory(
        np.diag([1.0, 2.0, 3.0]), 40, rng=0, fluctuations=True, fluctuation_rtol=0.5
    ).fluctuations,
    "Sector": lambda: MeanField(Chain(30, 5)).fluctuations().sectors[0],
    "Autocorrelation": lambda: bnmc.mixing.autocorrelation(
        bnmc.simulate(Chain(30, 3, "tanh"), 220, chains=50, burn_in=20, rng=0)
    ),
    "LaggedDistance": lambda: bnmc.mixing.tv_bound(
        Chain(30, 3), depth=80, chains=20, rng=0
    ).lagged,
    "Figures": lambda: bnmc.regularity.figures([4, 8], rng=0),
}  # fmt: skip


def result_of(kind):
    """Return the last result of a class in the example of its docstring, or that of `RESULTS`."""
    if kind.__name__ in RESULTS:
        return RESULTS[kind.__name__]()
    space, shown = {}, []
    hook, sys.displayhook = sys.displayhook, shown.append
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for example in doctest.DocTestParser().get_examples(inspect.cleandoc(kind.__doc__)):
                exec(compile(example.source, "<example>", "single"), space)
    finally:
        sys.displayhook = hook
    values = [*space.values(), *shown]
    values += [part for value in values if isinstance(value, tuple) for part in value]
    return next((value for value in reversed(values) if type(value) is kind), None)


#: Results without `plot`.
WITHOUT_PICTURE = {
    "a number, or some, with their errors": "Estimate Estimates RateEstimate Prediction "
        "PathPrediction PairFluctuations EntryCovariance Claim Averages ExtremeSingularValues "
        "AbsorbingEvent Properties Distortion",
    "a point, a matrix or a rate": "FixedPoint BlockFixedPoint CorrelationPoint VariancePoint "
        "Crossing FourierMode Sector Step Phase Limit IsometryRate GrowthLaw ResidualGrowth",
    "a part of a result that draws itself": "ChapmanKolmogorov ComparisonRow CrossedStart Facts "
        "Outlook bnmc.torch.Prediction ModelChain ModelNetwork",
    "bnmc.plot.predicted_band draws it": "Fluctuations PathFluctuations",
    "a table": "CheckReport Table Roofline",
    "arrays over chains, as a run has them": "InvariantSample Bulk Concentration",
}  # fmt: skip


def test_results_draw_themselves_where_there_is_something_to_see():
    words = " ".join(WITHOUT_PICTURE.values()).split()
    names = {name for name, kind in CLASSES.items() if not hasattr(kind, "plot")}
    assert {name.rpartition(".")[2] for name in names} == {w.rpartition(".")[2] for w in words}


@pytest.mark.parametrize("name", CLASSES)
def test_results_are_short_texts_and_documents(name):
    kind = CLASSES[name]
    assert issubclass(kind, Result), "a result inherits from bnmc._support.text.Result"
    beside = [field.name for field in fields(kind) if field.name.endswith(("_stderr", "_errors"))]
    assert not beside, "a value with a standard error is an Estimate"
    result = result_of(kind)
    assert result is not None, "the example of its docstring makes no result of the class"
    for text in (str(result), repr(result)):
        assert 0 < len(text.splitlines()) <= 25
        assert len(text) < 5000
    json.dumps(result.to_dict(), allow_nan=False)
    html = result._repr_html_()
    assert html.startswith("<pre>")


def test_a_prediction_is_an_estimate():
    prediction = Prediction.of(0.5, 0.01)
    assert isinstance(prediction, bnmc.Estimate)
    assert prediction.ci == (0.48, 0.52)
    assert prediction.compatible(0.53)
    assert (str(prediction), float(prediction)) == ("0.5", 0.5)
