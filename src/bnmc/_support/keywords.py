"""Calls that do not fit a signature: misspelt keywords, those of other libraries, earlier ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from bnmc.errors import ArgumentTypeError

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Our arguments: the values that they take, and keywords of other libraries for them.
_KEYWORDS = {
    "rng": ("a seed or a generator", "seed", "random_state", "key", "generator"),
    "chains": ("the number of networks", "n_chains", "num_chains", "networks"),
    "backend": ('"cpu" or "cuda"', "device"),
    "batch": ("the number of samples", "batch_size", "n_samples"),
    "width": ("the number of neurons per layer", "hidden_size"),
    "depth": ("the number of layers", "n_layers", "num_layers", "layers"),
    "threads": ("the number of threads", "n_jobs", "num_workers"),
    "initial": ("the input, of shape (width, batch)", "x", "X"),
    "dtype": ('"float32" or "float64"', "precision"),
    "progress": ("True or False", "verbose"),
    "norm": ("the name of a norm", "normalization"),
    "activation": ("a name or a function", "nonlinearity", "act"),
}

#: Arguments of a call that an error shows, at most.
_SHOWN = 6

#: Names that 0.3 changed: arguments of functions, attributes of classes, options of commands,
#: and constructors, with the calls that replace them.
RENAMED = {
    "Chain": {
        "bn_linear": 'Chain(width, batch, "linear", norm="batch-uncentred")',
        "bn_mlp": "Chain(width, batch, activation)",
        "vanilla": 'Chain(width, batch, activation, norm="none")',
    },
    "bnmc certify": {"--replicates": "--chains"},
    "bnmc check": {"--size": "--chains"},
    "experiments.run": {
        "networks": "chains", "batch_networks": "batch_chains", "wide_networks": "wide_chains",
        "pairs": "contraction_chains", "replicates": "bound_chains",
        "references": "reference_chains", "vanilla": "vanilla_chains",
    },
    "gradients.Backpropagation": {
        "rate": "backward_rate", "mean_field_rate": "mean_field_backward_rate"
    },
    "infinite_width.Convergence": {"stderr": "distances"},
    "infinite_width.SimulatedKernel": {"networks": "chains"},
    "infinite_width.convergence": {"networks": "chains"},
    "infinite_width.nngp": {"networks": "chains"},
    "infinite_width.ntk": {"networks": "chains"},
    "infinite_width.train_networks": {"networks": "chains"},
    "invariant.CheckReport": {"size": "chains"},
    "invariant.InvariantSample": {"tolerance": "atol"},
    "invariant.check": {"size": "chains", "tolerance": "atol"},
    "invariant.expectation": {"replicates": "chains"},
    "invariant.sample": {"size": "chains", "tolerance": "atol"},
    "mean_field.CorrelationMap.fixed_points": {"tolerance": "atol"},
    "mean_field.CorrelationMap.phase": {"tolerance": "atol"},
    "mean_field.PairTrajectory": {"gradient_factor": "backward_rate"},
    "mean_field.Phase": {"gradient_factor": "backward_rate"},
    "mixing.Contraction": {"exponent_stderr": "exponent"},
    "mixing.LaggedDistance": {"replicates": "chains"},
    "mixing.LaggedDistance.layers_to": {"tolerance": "atol"},
    "mixing.Relaxation": {"deviation_stderr": "deviation"},
    "mixing.Spectrum": {"singular_errors": "singular_values"},
    "mixing.TVBound": {
        "replicates": "chains", "survival": "lagged", "survival_ci": "lagged",
        "survival_band": "lagged",
    },
    "mixing.TVBound.layers_to": {"tolerance": "atol"},
    "mixing.autocorrelation": {"tol": "least_times"},
    "mixing.compare": {"pairs": "chains", "replicates": "chains"},
    "mixing.contraction": {"pairs": "chains"},
    "mixing.tv_bound": {"replicates": "chains"},
    "plot.gradient_norms": {"rate": "backward_rate"},
    "plot.measurement": {"rate": "backward_rate"},
    "torch.Measurement": {"rate": "backward_rate"},
}  # fmt: skip


def renamed(thing: Any) -> dict[str, str]:
    """Return the present names of arguments or attributes of a function or class, by earlier one.

    Examples
    --------
    >>> from bnmc._support.keywords import renamed
    >>> from bnmc.mixing import tv_bound
    >>> renamed(tv_bound)
    {'replicates': 'chains'}
    """
    package = thing.__module__.removeprefix("bnmc.").partition(".")[0]
    place = f"{package}.{thing.__qualname__.removesuffix('.__init__')}"
    return RENAMED.get(place.removeprefix("chain."), {})


class NamesReplacements(type):
    """The type of classes whose error about a former constructor has the present call."""

    def __getattr__(cls, name: str) -> Any:
        text = f"type object {cls.__name__!r} has no attribute {name!r}"
        if name in (names := renamed(cls)):
            text = f"{text}; it is now `{names[name]}`"
        raise AttributeError(text, name=name, obj=cls)


def explains_keywords(function: _Function) -> _Function:
    """Let the error of a call that does not fit the signature say what to write.

    It names the argument that an unknown keyword may mean, or else all arguments.  If an argument
    is missing, or there are too many, it has the call.

    Examples
    --------
    >>> from bnmc._support.keywords import explains_keywords
    >>> @explains_keywords
    ... def draw(*, rng=None):
    ...     return rng
    >>> draw(seed=3)
    Traceback (most recent call last):
        ...
    bnmc.errors.ArgumentTypeError: seed: got 3, allowed: rng, a seed or a generator (draw has no
    argument seed)
    """

    @functools.wraps(function)
    def explained(*arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # pytest shows failures of assertions at the caller's line
        try:
            return function(*arguments, **options)
        except TypeError as error:
            explain(error, function, options)
            raise

    return explained  # type: ignore[return-value]


def explain_calls(*kinds: type) -> None:
    """Let constructor and public methods of classes explain calls that do not fit.

    Those that a class inherits, and those that have a wrapper, stay as they are.
    """
    for kind in kinds:
        for name, member in list(vars(kind).items()):
            function = getattr(member, "__func__", member)  # of a class method or a static one
            public = name in ("__init__", "__call__") or not name.startswith("_")
            if public and inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
                explained = explains_keywords(function)
                setattr(kind, name, explained if function is member else type(member)(explained))


def explain(error: TypeError, function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise an error that says what to write, if `error` is of a call that does not fit.

    Parameters
    ----------
    error : TypeError
        As caught by the caller of `function`.
    function : callable
    options : dict
        The keywords of the call.
    """
    if error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return  # the function began
    require_known(function, options)
    shown = [
        name if part.default is part.empty else f"{name}=…"
        for name, part in _parameters(function).items()
        if part.kind not in (part.VAR_POSITIONAL, part.VAR_KEYWORD)
    ]
    more = ", …" if len(shown) > _SHOWN else ""
    call = f"{_owner(function)}({', '.join(shown[:_SHOWN])}{more})"
    raise TypeError(f"{error}; call {call}") from None


def require_known(function: Callable[..., Any], options: dict[str, Any]) -> None:
    """Raise `ArgumentTypeError` for the first keyword that is no argument of a function."""
    parameters = _parameters(function)
    ours = [
        name
        for name, part in parameters.items()
        if part.kind in (part.POSITIONAL_OR_KEYWORD, part.KEYWORD_ONLY)
    ]
    for name in options:
        if name in parameters:
            continue
        if name in (earlier := renamed(function)):
            new = earlier[name]
            raise ArgumentTypeError(name, options[name], new, f"`{name}` is now `{new}`") from None
        hint = f"{_owner(function)} has no argument {name}"
        for argument, (what, *names) in _KEYWORDS.items():
            if argument in ours and name in names:
                allowed = f"{argument}, {what}"
                raise ArgumentTypeError(name, options[name], allowed, hint) from None
        if any(part.kind is part.VAR_KEYWORD for part in parameters.values()):
            continue
        near = difflib.get_close_matches(name, ours, 1)
        hint += f"; did you mean {near[0]}?" if near else ""
        allowed = ", ".join(near or ours) or "none"
        raise ArgumentTypeError(name, options[name], allowed, hint) from None


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters that a caller writes."""
    parameters = inspect.signature(function).parameters
    return {name: part for name, part in parameters.items() if name not in ("self", "cls")}


def _owner(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__")
