"""Numbers at the ends of the ranges that docstrings state, and just beyond them.

Every ``>= 1``, ``> 0``, ``in (0, 1)`` and ``1 … 2⁵³`` of an int or a float is tried: a call with
the first number outside raises an error about the argument, and one with the last number inside
passes the check.  Calls end at the check, before any work.
"""

import importlib
import inspect
import math
import re
import sys
from functools import partial
from unittest import mock

import fuzzing
import numpy as np
import pytest
from refusals import OTHERS
from test_public_api import MODULES, callables_of

import bnmc
from bnmc import Chain
from bnmc._support import arguments
from bnmc.errors import ArgumentError
from bnmc.mean_field.finite_width.gaussian import PathFluctuations

CHAIN = Chain(8, 4)

#: Results with the few numbers that the checks need.
RUN = mock.Mock(dims={}, observables={"orthogonality_gap": None}, moments={})
PATH = mock.Mock(
    layers=(1, 2), least_widths=np.ones(3), nonlinearity=np.zeros(3), widths=None
)  # fmt: skip
for method in ("_checked", "band"):
    setattr(PATH, method, partial(getattr(PathFluctuations, method), PATH))
OWNERS = {
    "MeanField": bnmc.MeanField(CHAIN),
    "PathFluctuations": PATH,
    "Dual": bnmc.infinite_width.dual("tanh"),
    "Scaling": bnmc.infinite_width.SCALINGS["ntk"],
    "SingularValueLaw": mock.Mock(),
    "TVBound": mock.Mock(),
}

#: Arguments beside the one that is tried, where `fuzzing.py` and `refusals.py` have none or others.
GIVEN = {
    "Chain": {"norm": "none"},
    "CorrelationMap.__call__": {"correlation": 0.5},
    "CorrelationMap.trajectory": {"depth": 1, "correlation": 0.5},
    "Dual.__call__": {"p": 1.0, "q": 1.0, "c": 0.5},
    "Estimate.compatible": {"other": 1.0},
    "PathFluctuations.band": {"width": 10},
    "PathFluctuations.covariance": {"layer": 1},
    "gradient_norms": {"run": RUN},
    "law": {"chain": CHAIN},
    "predicted_band": {"fluctuations": PATH, "width": 10},
    "train": {"network": Chain(8, 3), "depth": 1},
    "trajectory": {"runs": RUN, "observable": "orthogonality_gap"},
    "workspace": {"chain": CHAIN},
}  # fmt: skip

#: Functions that Numba compiles, which check nothing, and those that import PyTorch or experiments.
LEFT_OUT = (
    "conditional_layer", "weights_layer", "normals", "measurement", "gain_for_", "maximize_rank_",
    "network_of", "orthogonalize_", "run", "coordinate_check",
)  # fmt: skip

NUMBER = r"[-+]?\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?"
RANGE = rf"(>=|≥|>) ({NUMBER})|in ([\[(])({NUMBER}), ({NUMBER})([\])])|(\d+) … (2⁵³)"


class PassedError(Exception):
    """The argument that is tried has passed its check."""


def ranges_of(function):
    """Yield parameters of a docstring with their ranges, each as two ends of (number, inside)."""
    text = inspect.getdoc(function) or ""
    section = re.search(r"Parameters\n-+\n(.*?)(?=\n\n[A-Z][A-Za-z ]+\n-{3,}|\Z)", text, re.S)
    entries = re.split(r"^(?=[\w*])", section.group(1) if section else "", flags=re.M)
    for entry in entries:
        head = re.match(r"([\w, *]+) : (?:int|float)\b.*\n", entry)
        ranges = re.findall(RANGE, entry[head.end() :]) if head else ()
        names = head.group(1).split(", ") if head else ()
        # A line with several names has one range for all of them, or as many in their order.
        in_order = len(ranges) == len(names) > 1
        for place, name in enumerate(names):
            for parts in ranges[place : place + 1] if in_order else ranges:
                yield name, *ends_of(*parts)


def ends_of(sign, above, opening, low, high, closing, first, last):
    if sign:
        return (number(above), sign != ">"), None
    if opening:
        return (number(low), opening == "["), (number(high), closing == "]")
    return (number(first), True), (2**53 if last else None, True)


def number(text):
    return float(text) if re.search(r"[.e]", text) else int(text)


def inside_and_outside(end, sign, integral):
    """Return the last number in a range, and the first one outside of it."""
    value, belongs = end
    if integral:
        return (value, value + sign) if belongs else (value - sign, value)
    beyond = float(np.nextafter(value, sign * math.inf))
    return (value, beyond) if belongs else (float(np.nextafter(value, -sign * math.inf)), value)


CASES = {}
for module_name in MODULES:
    for called, function in callables_of(importlib.import_module(module_name)):
        if called not in LEFT_OUT:
            cases = [(function, *ends) for ends in ranges_of(function)]
            CASES.update({f"{called}: {case[1]}": case for case in cases})


def valid_arguments(function, name):
    """Return valid arguments of a function, if possible with the name of one."""

    def plain(method):
        return getattr(method, "__func__", method)

    calls = [*OTHERS.values(), *map(fuzzing.valid_call, fuzzing.FUNCTIONS | fuzzing.RUNS)]
    several = [valid for call, valid in calls if plain(call) is plain(function)]
    return max(several, key=lambda valid: name in valid, default={})


@pytest.fixture(scope="module")
def wanted():
    """Return a list of names: calls end, by `PassedError`, at the checks of these arguments."""
    names = []

    def ending(check):
        def checked(name, value, **bounds):
            result = check(name, value, **bounds)
            if name in names:
                raise PassedError
            return result

        return checked

    with pytest.MonkeyPatch.context() as patch:
        for check in (arguments.integer, arguments.real):
            changed = ending(check)
            for name, module in list(sys.modules.items()):
                if name.startswith("bnmc.") and getattr(module, check.__name__, None) is check:
                    patch.setattr(module, check.__name__, changed)
        yield names


@pytest.mark.parametrize("case", CASES)
def test_both_sides_of_each_end(case, wanted):
    function, name, low, high = CASES[case]
    called = case.partition(":")[0]
    given = {**valid_arguments(function, name), **GIVEN.get(called, {})}
    if "self" in inspect.signature(function).parameters:
        owner = called.partition(".")[0]
        kind = getattr(importlib.import_module(function.__module__), owner)
        given["self"] = OWNERS.get(owner) or kind.__new__(kind)
    integral = bool(re.search(rf"\b{name}\b[\w, ]* : int", inspect.getdoc(function)))
    wanted[:] = [name]
    for end, sign in ((low, -1), (high, 1)):
        if end is not None:
            inside, outside = inside_and_outside(end, sign, integral)
            with pytest.raises(PassedError):
                function(**{**given, name: inside})
            with pytest.raises(ArgumentError) as caught:
                function(**{**given, name: outside})
            assert caught.value.argument == name


def test_most_public_functions_state_ranges():
    assert len(CASES) > 100
    assert set(GIVEN) <= {case.partition(":")[0] for case in CASES}
    assert bnmc.simulate in [function for function, *_ in CASES.values()]
