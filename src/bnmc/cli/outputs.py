"""Files that commands write: checked before the work, and written after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def require_destination(name: str, path: Path, force: bool) -> None:
    """Check before the work that a file can be written after it.

    Parameters
    ----------
    name : {"output", "json", "plot"}
        Name of the option: a run, a JSON document or a picture.
    path : Path
    force : bool
        Whether an existing file may be replaced.

    Raises
    ------
    ArgumentError, MissingExtraError
        If the suffix is not allowed, the folder is not writable, `path` exists and must not be
        replaced, or an extra is missing.
    """
    from bnmc._support.extras import require_extras
    from bnmc._support.files import require_writable
    from bnmc.simulation import export

    if name == "output":
        formats = list(export.OUTPUT_FORMATS)
    elif name == "json":
        formats = [".json"]
    else:
        from bnmc.plot.axes import figure

        pictures = figure()[0].canvas.get_supported_filetypes()
        formats = [f".{suffix}" for suffix in pictures]
    require_writable(name, path, formats)
    if name == "output":
        require_extras(export.extras_of(path))
    export.require_free(name, path, force=force)


def require_packages(
    *, plot: Path | None = None, output: Path | None = None, others: Mapping[str, str] | None = None
) -> None:
    """Check before the work that the packages are installed that a command line needs.

    Parameters
    ----------
    plot, output : Path, optional
        The files that the command will write: a picture and a run.
    others : mapping of str to str, optional
        Further modules, with the extra that installs them.

    Raises
    ------
    MissingExtraError
        If packages are missing. It names all of them, and one command that installs them.
    """
    from bnmc._support.extras import require_extras
    from bnmc.simulation.export import extras_of

    needed = dict(others or {})
    if output is not None:
        needed |= extras_of(output)
    if plot is not None:
        needed["matplotlib"] = "plot"
    require_extras(needed)


def save(figure: Any, path: Path) -> None:
    """Write a Matplotlib figure to a file, which is replaced as a whole or not at all."""
    from bnmc._support.files import replacing

    with replacing(path) as temporary:
        figure.savefig(temporary)


@contextmanager
def kept_for_later(failures: list[Exception]) -> Iterator[None]:
    """Append an error of writing a file to a list, so that the results are printed first."""
    from bnmc.errors import BnmcError

    try:
        yield
    except (OSError, BnmcError) as error:
        failures.append(error)


def raise_first(failures: list[Exception]) -> None:
    """Raise the first error that `kept_for_later` appended, if there is one."""
    if failures:
        raise failures[0]
