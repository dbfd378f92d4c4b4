"""The figures of the papers and more, each as data, a table, findings and a picture.

`names` lists the experiments, `describe` describes one, and `run` runs it.  They need the extra
``xarray``, and their pictures need the extra ``plot``.  Each experiment is also a function in
`bnmc.experiments.bridging`, `orthogonalizes`, `rank_collapse`, `limits`, `gradients`, `beyond` or
`outlooks`.
Its docstring names the figure, the paper, the expected result, and the errors of the printed
figure.
"""

# This package may import everything except the command line.  Start with `experiment.py`, the
# result, and `kit.py`, of which figures are made.  A figure has a file with its `Sizes`, its
# function, and then, in this order, measurements, findings and picture.  Figures that share a
# measurement share a file, in which each has a section.

from __future__ import annotations

import importlib
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from bnmc._support.arguments import choice
from bnmc._support.extras import require_extras
from bnmc.experiments.registry import FIGURES, function_of

if TYPE_CHECKING:
    from bnmc._support.progress import Progress
    from bnmc.experiments.experiment import Experiment, Table
    from bnmc.experiments.runs import Store

__all__ = ["Experiment", "Table", "describe", "extras_of", "names", "run"]


def names() -> tuple[str, ...]:
    """Return the names of all experiments, paper by paper.

    Examples
    --------
    >>> from bnmc.experiments import names
    >>> names()[0]
    'bridging-1a'
    """
    return tuple(FIGURES)


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
    'the distance from the fixed point falls with slope −1/2 in the width'
    """
    return FIGURES[choice("name", name, FIGURES)][1]


def run(
    name: str,
    *,
    full: bool = False,
    rng: Any = 0,
    progress: bool | Progress = False,
    threads: int | None = None,
    executor: Executor | None = None,
    store: Store = None,
    timeout: float | None = None,
    data: Store = None,
    **sizes: Any,
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
    executor : concurrent.futures.Executor or Dask Client, optional
        Executor that runs the simulations in place of threads.  Results do not depend on it.
    store : path, optional
        Folder for finished parts.  If a run was interrupted, the same call continues it and
        returns the same results.
    timeout : float, optional
        Seconds, > 0, after which no further part begins.
    data : path, optional
        Folder with the training images of an experiment that trains networks: the files of MNIST or
        Fashion-MNIST (IDX format, also .gz) or of CIFAR-10 (binary version).  Default:
        handwritten digits that the package includes.
    **sizes
        Sizes that differ from the default, or from those of the paper with `full`: widths, numbers
        of networks, activations and so on.  The docstring of the experiment's function lists them,
        as does ``bnmc figure NAME --help``.

    Returns
    -------
    Experiment

    Raises
    ------
    UnknownNameError
        If `name` is none of `names`, or the experiment has no size of some name.
    ArgumentError, ArgumentTypeError
        If another argument is invalid, or `data` is given to an experiment without training.
    StoreMismatchError, StoreError
        If the store holds another experiment, or cannot be read or written.
    MissingExtraError
        If xarray is not installed, or PyTorch for an experiment that trains networks.
    PartialEstimateError
        If `timeout` ends before the last part begins.  With `store`, the same call continues.

    Examples
    --------
    >>> from bnmc import experiments
    >>> found = experiments.run("bridging-1b", chains=32)  # doctest: +SKIP
    >>> found.data["distance"].dims  # doctest: +SKIP
    ('width',)
    """
    function = function_of(name)
    require_extras(extras_of(name))
    return function(
        full=full, rng=rng, progress=progress, threads=threads, executor=executor, store=store,
        timeout=timeout, data=data, **sizes,
    )  # fmt: skip


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
    return dict(vars(function_of(name))["extras"])


def __getattr__(name: str) -> Any:
    if name not in ("Experiment", "Table"):
        raise AttributeError(f"module 'bnmc.experiments' has no attribute {name!r}")
    return getattr(importlib.import_module("bnmc.experiments.experiment"), name)
