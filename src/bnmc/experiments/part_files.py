"""Results of experiments as bytes and back: an archive of NumPy arrays and one JSON document.

Reading runs no code of the file.  It makes numbers, strings, containers, arrays, chains, and the
results that are listed here, and nothing else.  Functions are never written: an activation is
written by its name and digest, and found again among the named ones and those of the caller.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnmc._support.archives import Damaged, Foreign, TooLarge, archived, arrays_of
from bnmc._support.text import loads
from bnmc.chain.activations import Activation
from bnmc.chain.chain import Chain
from bnmc.chain.convolution import Convolution
from bnmc.chain.norms import NORMS
from bnmc.estimate.estimate import Estimate
from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.autocorrelation_time import Autocorrelation
from bnmc.mixing.comparison import Comparison, ComparisonRow
from bnmc.mixing.contraction_rate import Contraction
from bnmc.mixing.coupling import CrossedStart
from bnmc.mixing.implied_timescales import ChapmanKolmogorov, Spectrum
from bnmc.mixing.meeting_bound import TVBound
from bnmc.mixing.rate import RateEstimate
from bnmc.mixing.relaxation_curve import Relaxation
from bnmc.regularity.ergodic import Averages, Figures
from bnmc.simulation.engine.state import State
from bnmc.simulation.trajectory import Moments, Trajectory

__all__ = ["Damaged", "Foreign", "packed", "unpacked"]

#: The results that a file may contain, by name.
_RESULTS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        AbsorbingEvent, Autocorrelation, Averages, ChapmanKolmogorov, Comparison, ComparisonRow,
        Contraction, CrossedStart, Estimate, Figures, Moments, RateEstimate, Relaxation, Spectrum,
        State, TVBound, Trajectory,
    )
}  # fmt: skip

#: Kinds of dtypes of arrays: bool, integers, floats, complex numbers, text.
_KINDS = "biufcU"

#: The entry of the archive with the document.
_DOCUMENT = "document"


def packed(value: object, identity: Mapping[str, str]) -> bytes:
    """Return a result as bytes.

    Parameters
    ----------
    value : object
        Numbers, strings, None, tuples, lists, dicts, arrays, chains and results of this package.
    identity : mapping of str to str
        Properties that the result depends on; `unpacked` returns them.

    Returns
    -------
    bytes
        An archive in NumPy's format ``npz``.

    Raises
    ------
    Foreign
        If `value` contains another object, or a chain with a function for its weights.
    """
    arrays: dict[str, NDArray[Any]] = {}
    tree = _written(value, arrays)
    document = json.dumps({"identity": dict(identity), "value": tree}).encode()
    arrays[_DOCUMENT] = np.frombuffer(document, np.uint8)
    return archived(arrays)


def unpacked(content: bytes, activations: Iterable[Activation]) -> tuple[Any, dict[str, str]]:
    """Return a result and its identity.

    Parameters
    ----------
    content : bytes
        As `packed` returns it.
    activations : iterable of Activation
        Activations that chains of the result may have, besides the named ones.

    Returns
    -------
    value : object
    identity : dict of str to str

    Raises
    ------
    Damaged
        If the bytes are no such archive, or changed since.
    Foreign
        If it contains anything else than results.
    TooLarge
        If it does not fit in memory.
    """
    try:
        arrays = arrays_of(content)
        document = loads(arrays[_DOCUMENT].tobytes())
        identity, tree = dict(document["identity"]), document["value"]
    except TooLarge:
        raise
    except Exception as error:  # a document that is none raises many errors
        raise Damaged(str(error)) from error
    known = {activation.digest: activation for activation in activations}
    try:
        return _read(tree, arrays, known), identity
    except Foreign:
        raise
    except Exception as error:  # the constructors check their arguments
        raise Foreign(f"{type(error).__name__}: {error}") from error


# --- nodes of the document: [kind, content …]


def _written(value: Any, arrays: dict[str, NDArray[Any]]) -> list[Any]:
    """Return the node of a value; its arrays go to `arrays`."""
    if value is None or isinstance(value, bool | str):
        return ["plain", value]
    if isinstance(value, np.ndarray | np.generic):
        return _written_array(value, arrays)
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return [type(value).__name__, [_written(item, arrays) for item in value]]
    if isinstance(value, Mapping):
        items = [[_written(key, arrays), _written(item, arrays)] for key, item in value.items()]
        return ["dict", items]
    if isinstance(value, Activation):
        return ["activation", value.name, value.digest]
    if isinstance(value, Chain):
        return _written_chain(value, arrays)
    if _RESULTS.get(type(value).__name__) is type(value) and is_dataclass(value):
        content = [[one.name, _written(getattr(value, one.name), arrays)] for one in fields(value)]
        return ["result", type(value).__name__, content]
    raise Foreign(f"{type(value).__name__} is nothing that an experiment keeps")


def _written_array(value: NDArray[Any] | np.generic, arrays: dict[str, NDArray[Any]]) -> list[Any]:
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS:
        raise Foreign(f"an array of dtype {array.dtype} is nothing that an experiment keeps")
    name = f"array_{len(arrays)}"
    arrays[name] = array
    return ["scalar" if isinstance(value, np.generic) else "array", name]


def _written_chain(chain: Chain, arrays: dict[str, NDArray[Any]]) -> list[Any]:
    if not isinstance(chain.weights, str) or chain.norm not in NORMS:
        raise Foreign("a function is nothing that an experiment keeps")
    options = {
        name: getattr(chain, name)
        for name in (
            "width",
            "batch",
            "weights",
            "norm",
            "skip",
            "gain",
            "eps",
            "order",
            "bias_variance",
        )
    }
    if chain.convolution is not None:
        options["convolution"] = {
            "shape": chain.convolution.shape,
            "kernel": chain.convolution.kernel,
        }
    return ["chain", _written(chain.activation, arrays), _written(options, arrays)]


def _read(node: Any, arrays: Mapping[str, NDArray[Any]], known: Mapping[str, Activation]) -> Any:
    """Return the value of a node."""
    kind, *content = node
    if kind == "plain" and (content[0] is None or isinstance(content[0], bool | str)):
        return content[0]
    if kind == "int":
        return int(content[0])
    if kind == "float":
        return float.fromhex(content[0])
    if kind in ("array", "scalar"):
        (name,) = content
        if arrays[name].dtype.kind in _KINDS:
            return arrays[name] if kind == "array" else arrays[name][()]
    if kind in ("tuple", "list"):
        items = [_read(item, arrays, known) for item in content[0]]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return dict([[_read(one, arrays, known) for one in pair] for pair in content[0]])
    if kind == "activation":
        name, digest = content
        return _activation(name, digest, known)
    if kind == "chain":
        activation, options = (_read(one, arrays, known) for one in content)
        if "convolution" in options:
            options["convolution"] = Convolution(**options["convolution"])
        return Chain(options.pop("width"), options.pop("batch"), activation, **options)
    if kind == "result" and content[0] in _RESULTS:
        values = {name: _read(value, arrays, known) for name, value in content[1]}
        return _RESULTS[content[0]](**values)
    raise Foreign(f"{kind!r} is nothing that an experiment keeps")


def _activation(name: str, digest: str, known: Mapping[str, Activation]) -> Activation:
    if digest in known:
        return known[digest]
    named = Activation.named(name)
    if named.digest != digest:
        raise Foreign(f"the activation {name!r} is none of the caller's")
    return named
