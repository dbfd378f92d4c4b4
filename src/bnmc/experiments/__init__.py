"""The figures of the papers and more, each as data, a table, findings and a picture.

`names` lists the experiments, `describe` describes one, and `run` runs it.  They need the extra
``xarray``, and their pictures need the extra ``plot``.  Each experiment is also a function in
`bnmc.experiments.bridging`, `orthogonalizes`, `rank_collapse`, `limits`, `gradients` or `beyond`.
Its docstring names the figure, the paper, the expected result, and the errors of the printed
figure.
"""

# This package may import everything except the command line.  Start with `experiment.py`, the
# result, and `parts.py`, one call.  Each figure has a file with `Sizes`, `DEFAULT` and `FULL`; the
# public function; `experiment`, which runs it with given sizes; and then, in this order, its
# simulation, data, table, findings and picture.

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from bnmc._support.arguments import choice
from bnmc._support.extras import require_extras
from bnmc.errors import ArgumentError

if TYPE_CHECKING:
    from bnmc._support.progress import Progress
    from bnmc.experiments.experiment import Experiment, Table
    from bnmc.experiments.parts import Store

__all__ = ["Experiment", "Table", "describe", "extras_of", "names", "run"]


class _Entry(NamedTuple):
    """Module within this package, name of the function, and description."""

    module: str
    function: str
    description: str


#: The experiments by name, paper by paper.
REGISTRY = {
    "bridging-1a": _Entry(
        "bridging", "fig_1a", "error of the mean field over depth, with and without batch norm"
    ),
    "bridging-1b": _Entry("bridging", "fig_1b", "distance from the fixed point against width"),
    "bridging-2": _Entry(
        "bridging", "fig_2", "spectra for six activations, beside the Marchenko-Pastur law"
    ),
    "bridging-poster": _Entry(
        "bridging", "poster", "distance from the fixed point over depth, width and batch"
    ),
    "bridging-two-inputs": _Entry(
        "bridging", "two_inputs", "two inputs through one network, certified without the theory"
    ),
    "bridging-conditioning": _Entry(
        "bridging", "conditioning", "condition of the Gram matrix on its n - 1 bulk eigenvalues"
    ),
    "bridging-certificate": _Entry(
        "bridging", "certificate", "certified mixing of each activation, which the paper assumes"
    ),
    "orthogonalizes-1": _Entry(
        "orthogonalizes", "fig_1", "cosine of two samples over depth, with and without batch norm"
    ),
    "orthogonalizes-2a": _Entry(
        "orthogonalizes", "fig_2a", "orthogonality gap over depth, from nearly equal samples"
    ),
    "orthogonalizes-2b": _Entry(
        "orthogonalizes", "fig_2b", "orthogonality gap against width, slope -1/2"
    ),
    "orthogonalizes-3": _Entry(
        "orthogonalizes", "fig_3", "loss and orthogonality gap in training, for several depths"
    ),
    "orthogonalizes-4": _Entry(
        "orthogonalizes", "fig_4", "training from orthogonal representations, and with batch norm"
    ),
    "orthogonalizes-6": _Entry(
        "orthogonalizes",
        "fig_6",
        "distance of the Gram matrix from its mean, for other activations",
    ),
    "orthogonalizes-7": _Entry(
        "orthogonalizes", "fig_7", "training convolutions from orthogonal representations"
    ),
    "orthogonalizes-wasserstein": _Entry(
        "orthogonalizes", "wasserstein", "distance of hidden layers from a Gaussian law, and bound"
    ),
    "rank-collapse-1": _Entry(
        "rank_collapse", "fig_1", "rank and accuracy of trained networks against depth"
    ),
    "rank-collapse-2": _Entry(
        "rank_collapse", "fig_2", "rank over depth, with and without batch norm"
    ),
    "rank-collapse-3a": _Entry("rank_collapse", "fig_3a", "rank against width, for each gamma"),
    "rank-collapse-3b": _Entry(
        "rank_collapse", "fig_3b", "eigenvalues of M over depth, from nearly equal samples"
    ),
    "rank-collapse-4": _Entry(
        "rank_collapse", "fig_4", "training after pre-training for the rank, and with batch norm"
    ),
    "rank-collapse-5": _Entry(
        "rank_collapse", "fig_5", "training with batch norm that positive weights have broken"
    ),
    "rank-collapse-6": _Entry(
        "rank_collapse", "fig_6", "rank in training, from several initial ranks"
    ),
    "rank-collapse-8": _Entry("rank_collapse", "fig_8", "regularity constant against width"),
    "rank-collapse-9": _Entry("rank_collapse", "fig_9", "mean square of M against width"),
    "rank-collapse-10": _Entry(
        "rank_collapse",
        "fig_10",
        "directions of gradients in training, with and without norm",
    ),
    "rank-collapse-lemma-3": _Entry(
        "rank_collapse", "lemma_3", "collapse without batch norm, with and without residual branch"
    ),
    "rank-collapse-centring": _Entry(
        "rank_collapse", "centring", "rank with batch norm that centres and that does not"
    ),
    "gradients-explosion": _Entry(
        "gradients", "explosion", "gradient norms over depth, for 13 activations"
    ),
    "gradients-orthogonal": _Entry(
        "gradients", "orthogonal", "gradient norms over depth, Gaussian and orthogonal weights"
    ),
    "gradients-directions": _Entry(
        "gradients", "directions", "cosines between gradients of samples over depth"
    ),
    "limits-ntk-convergence": _Entry(
        "limits", "ntk_convergence", "tangent kernels against width, slope -1/2"
    ),
    "limits-alignment": _Entry(
        "limits", "alignment", "true and random labels: alignment, spectrum, convergence"
    ),
    "limits-complexity": _Entry(
        "limits", "complexity", "bound of Arora et al. and test error, labels randomized"
    ),
    "limits-plane": _Entry(
        "limits", "plane", "limits of infinite width: regions, properties, named scalings"
    ),
    "limits-kl": _Entry(
        "limits", "kl", "logits of five limits beside those of width 128, in training"
    ),
    "limits-exponents": _Entry(
        "limits", "exponents", "powers of the width in training, measured and theory"
    ),
    "stability-atlas": _Entry(
        "beyond", "stability_atlas", "for which batch sizes the fixed point is stable"
    ),
    "rates": _Entry(
        "beyond", "rates", "rate of mixing against batch and width, by every estimator"
    ),
    "scale": _Entry("beyond", "scale", "widths up to a million, and batches up to 512"),
    "edge-of-chaos": _Entry(
        "beyond", "edge_of_chaos_diagram", "phases of networks without norm, with measured points"
    ),
    "gap": _Entry(
        "beyond", "gap", "mean square distance from the fixed point, measured over predicted"
    ),
    "norms": _Entry("beyond", "norms", "rank, correlation and gradients over depth, for each norm"),
    "isometry": _Entry(
        "beyond", "isometry", "isometry gap over depth, norm before and after the activation"
    ),
    "conv": _Entry(
        "beyond", "conv", "rank of convolutional networks over depth, with and without batch norm"
    ),
}


def names() -> tuple[str, ...]:
    """Return the names of all experiments, paper by paper.

    Examples
    --------
    >>> from bnmc.experiments import names
    >>> names()[0]
    'bridging-1a'
    """
    return tuple(REGISTRY)


def describe(name: str) -> str:
    """Describe an experiment in one line.

    Parameters
    ----------
    name : str
        One of `names`.

    Raises
    ------
    UnknownNameError
        If `name` is none of these.

    Examples
    --------
    >>> from bnmc.experiments import describe
    >>> describe("bridging-1b")
    'distance from the fixed point against width'
    """
    return _entry(name).description


def run(
    name: str,
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    store: Store = None,
    data: Store = None,
) -> Experiment:
    """Run an experiment.

    Parameters
    ----------
    name : str
        One of `names`.
    full : bool, default False
        Whether to use the sizes of the paper.  The default sizes take seconds.
    rng : optional, default 0
        Seed or generator: anything `numpy.random.default_rng` takes (SPEC 7).
    progress : bool or callable, default False
        True shows a bar on standard error (extra ``cli``).  A function is called with (done,
        total).
    threads : int, optional
        Number of threads, >= 1.  Default: all processors.  Results do not depend on it.
    store : path, optional
        Folder for finished parts.  If a run was interrupted, the same call continues it and
        returns the same results.
    data : path, optional
        Folder with the training images of an experiment that trains networks: the files of MNIST or
        Fashion-MNIST (IDX format, also .gz) or of CIFAR-10 (binary version).  Default:
        handwritten digits that the package includes.

    Returns
    -------
    Experiment

    Raises
    ------
    UnknownNameError
        If `name` is none of `names`.
    ArgumentError, ArgumentTypeError
        If another argument is invalid, or `data` is given to an experiment without training.
    StoreMismatchError, StoreError
        If the store holds another experiment, or cannot be read or written.
    MissingExtraError
        If xarray is not installed, or PyTorch for an experiment that trains networks.

    Examples
    --------
    >>> from bnmc import experiments
    >>> found = experiments.run("bridging-1b")  # doctest: +SKIP
    >>> found.data["distance"].dims  # doctest: +SKIP
    ('width',)
    """
    function = _function(name)
    require_extras(extras_of(name))
    further: dict[str, Any] = {}
    if data is not None:
        if "data" not in inspect.signature(function).parameters:
            raise ArgumentError("data", str(data), f"None: {name!r} trains no network")
        further["data"] = data
    return function(full=full, rng=rng, progress=progress, threads=threads, store=store, **further)


def extras_of(name: str) -> dict[str, str]:
    """Return the optional packages that an experiment needs, with the extra of each.

    Parameters
    ----------
    name : str
        One of `names`.

    Returns
    -------
    dict of str to str

    Raises
    ------
    UnknownNameError
        If `name` is none of `names`.

    Examples
    --------
    >>> from bnmc.experiments import extras_of
    >>> extras_of("limits-kl"), extras_of("rank-collapse-1")
    ({'xarray': 'xarray'}, {'xarray': 'xarray', 'torch': 'torch'})
    """
    has_data = "data" in inspect.signature(_function(name)).parameters
    # The figures of `limits` that train networks do so in NumPy.
    in_torch = has_data and _entry(name).module != "limits"
    return {"xarray": "xarray"} | ({"torch": "torch"} if in_torch else {})


def _function(name: str) -> Callable[..., Experiment]:
    entry = _entry(name)
    module = importlib.import_module(f"bnmc.experiments.{entry.module}")
    function: Callable[..., Experiment] = getattr(module, entry.function)
    return function


def _entry(name: str) -> _Entry:
    return REGISTRY[choice("name", name, REGISTRY)]


def __getattr__(name: str) -> Any:
    if name not in ("Experiment", "Table"):
        raise AttributeError(f"module 'bnmc.experiments' has no attribute {name!r}")
    return getattr(importlib.import_module("bnmc.experiments.experiment"), name)
