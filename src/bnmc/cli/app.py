"""The function `main`, which runs a command line and returns its exit status.

Typer and the commands are imported when a command line runs, so that `import bnmc.cli` is cheap.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from bnmc.cli.statuses import BAD_INPUT, BROKEN_PIPE, INTERRUPTED, NO_ESTIMATE, OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments after the name of the program. Default: ``sys.argv[1:]``.

    Returns
    -------
    int
        ====== ====================================================================
        status meaning
        ====== ====================================================================
        0      success
        1      broken pipe: the output was closed
        2      bad input, with one line on standard error
        3      no estimate: the chain does not mix, or there is too little data
        4      a claim that ``bnmc check`` tested fails
        130    interrupted by Ctrl-C
        ====== ====================================================================

    Examples
    --------
    >>> from bnmc.cli.app import main
    >>> main(["--version"])
    bnmc ...
    0
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # a stream of another kind, put in its place
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        # Python flushes standard output when it exits; the null device takes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        message = _explanation(error)
        if message is None:
            raise
        print(f"bnmc: error: {' '.join(message.split())}", file=sys.stderr)
        from bnmc.errors import PartialEstimateError

        return NO_ESTIMATE if isinstance(error, PartialEstimateError) else BAD_INPUT


def _run(arguments: Sequence[str] | None) -> int:
    try:
        import typer
    except ModuleNotFoundError as error:
        from bnmc.errors import MissingExtraError

        raise MissingExtraError("typer", "cli") from error
    from bnmc.cli.application import application

    command = typer.main.get_command(application())
    try:
        status = command.main(arguments, prog_name="bnmc", standalone_mode=False)
        sys.stdout.flush()
    except typer.Abort:  # some versions of Typer turn Ctrl-C into this
        return _interrupted()
    return _interrupted() if status == INTERRUPTED else int(status or OK)


def _interrupted() -> int:
    print("bnmc: interrupted", file=sys.stderr)
    return INTERRUPTED


def _explanation(error: Exception) -> str | None:
    """Return the message of an error of the user, or None for a defect of the library."""
    from bnmc._support.keywords import RENAMED
    from bnmc.errors import BnmcError, StoreMismatchError

    if isinstance(error, StoreMismatchError) and error.stored.startswith("key:"):
        return f"{error}: pass --seed {error.stored}, or another --store"
    if isinstance(error, BnmcError):
        return str(error)
    if hasattr(error, "format_message"):  # an error of Typer
        text = str(error.format_message())
        # Pydantic, with which Typer reads values, describes the error without the value.
        path = getattr(getattr(error, "ctx", None), "command_path", "")
        of_command = RENAMED.get(path, {})
        if (old := getattr(error, "option_name", "")) in of_command:
            return f"No such option: {old} (`{old}` is now `{of_command[old]}`)"
        if text.startswith("Missing"):
            return f"{text} See {path} --help for examples."
        if "unexpected extra argument" in text:
            return f"{text}: several values of an option are one list, separated by commas"
        of_value = getattr(error.__cause__, "errors", None)
        return f"{text} (got {of_value()[0]['input']!r})" if callable(of_value) else text
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return reason if error.filename is None else f"{error.filename}: {reason}"
    if isinstance(error, MemoryError):
        return f"out of memory: {error}"
    return None
