"""Optional dependencies, which functions import when they need them."""

from __future__ import annotations

import importlib
from types import ModuleType

from bnmc.errors import MissingExtraError

__all__ = ["import_extra"]


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
    bnmc.errors.MissingExtraError: no_such_module is not installed, the extra 'plot' brings it:
    pip install "bnmc[plot]", or pip install ".[plot]" in a checkout
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(module, extra) from error
