"""Optional dependencies, which functions import when they need them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from bnmc.errors import MissingExtraError


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or raise an error that names its extra.

    Parameters
    ----------
    module : str
        Dotted name of the module.
    extra : str
        The extra of bnmc that installs it.

    Returns
    -------
    module

    Raises
    ------
    MissingExtraError
        If the module is not installed. If an installed module fails to import, its own error is
        raised.

    Examples
    --------
    >>> from bnmc._support.extras import import_extra
    >>> import_extra("no_such_module", "plot")
    Traceback (most recent call last):
        ...
    bnmc.errors.MissingExtraError: no_such_module is not installed; the extra 'plot' installs it:
    pip install "bnmc[plot]", or pip install ".[plot]" in a checkout
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(module, extra) from error


class LazyExtra:
    """An optional dependency that is imported when an attribute is first used.

    Parameters
    ----------
    module : str
        Dotted name of the module.
    extra : str
        The extra of bnmc that installs it.

    Raises
    ------
    MissingExtraError
        At the use of an attribute, as `import_extra`.

    Examples
    --------
    >>> from bnmc._support.extras import LazyExtra
    >>> LazyExtra("math", "plot").sqrt(4.0)
    2.0
    """

    def __init__(self, module: str, extra: str) -> None:
        self._names = module, extra

    def __getattr__(self, name: str) -> Any:
        # Tools such as doctest look for special attributes, and must not import anything.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_extra(*self._names), name)


def require_extras(needed: Mapping[str, str]) -> None:
    """Check before any work that optional dependencies are installed, without importing them.

    Parameters
    ----------
    needed : mapping of str to str
        The extra of bnmc that installs a module, by the name of the module.

    Raises
    ------
    MissingExtraError
        If modules are not installed. One error names all of them, and one command that installs
        all of them.

    Examples
    --------
    >>> from bnmc._support.extras import require_extras
    >>> require_extras({"numpy": "plot", "no_such_module": "plot", "nor_this": "torch"})
    Traceback (most recent call last):
        ...
    bnmc.errors.MissingExtraError: no_such_module, nor_this are not installed; the extras
    'plot,torch' install them: pip install "bnmc[plot,torch]", or pip install ".[plot,torch]" in a
    checkout
    """
    missing = [module for module in needed if not _is_installed(module)]
    if missing:
        extras = dict.fromkeys(needed[module] for module in missing)
        raise MissingExtraError(", ".join(missing), ",".join(extras))


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module.partition(".")[0]) is not None
