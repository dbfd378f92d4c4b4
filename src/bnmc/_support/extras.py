"""Optional dependencies, imported where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from bnmc.errors import MissingExtraError

__all__ = ["import_extra"]


def import_extra(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

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
        If the module is not installed.  An installed module that fails to import for a reason
        of its own raises its own error.

    Examples
    --------
    >>> import_extra("no_such_module", "plot")
    Traceback (most recent call last):
        ...
    bnmc.errors.MissingExtraError: no_such_module is not installed, the extra 'plot' brings it:
    pip install "bnmc[plot]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(module, extra) from error
