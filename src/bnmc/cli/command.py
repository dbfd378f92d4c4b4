"""A command: a function that returns a `Report`, with options that Typer reads.

The decorator `command` does what all commands share: it adds options, checks files before the work,
makes the chain, chooses the seed, and prints and writes the report.
"""

from __future__ import annotations

import inspect
import itertools
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from typer.core import TyperCommand

from bnmc._support.text import Table, dumps, entry
from bnmc.cli.options import OPTIONS, require_one_list, seed_of
from bnmc.cli.statuses import INTERRUPTED, OK

_Value = TypeVar("_Value")

# The value of ``--json`` without a file.
_STANDARD_OUTPUT = "-"


class Report(NamedTuple):
    """The result of a command.

    Attributes
    ----------
    document : dict, or callable that returns one
        For ``--json``.
    text : iterable of object
        Printed one below the other, each as soon as it is there; a `Table` has lines and colours
        on a terminal.
    draw : callable, optional
        Returns the Matplotlib figure or axes for ``--plot``.
    status : int
        Exit status.
    files : mapping of Path to callable
        Further files, and the functions that write them.
    repeat : mapping of str to object, optional
        Facts that repeat the run, beside the seed; the last line shows them. None if there was no
        run.
    """

    document: Mapping[str, Any] | Callable[[], Mapping[str, Any]]
    text: Iterable[object]
    draw: Callable[[], Any] | None = None
    status: int = OK
    files: Mapping[Path, Callable[[Path], None]] = {}
    repeat: Mapping[str, Any] | None = {}


class Command(TyperCommand):
    """A command whose option ``--json`` takes a file or no value; without a file it prints."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace ``--json`` by ``--json -`` if the next argument is not the name of a file."""
        for index in reversed([k for k, argument in enumerate(args) if argument == "--json"]):
            following = args[index + 1] if index + 1 < len(args) else ""
            is_file = following == _STANDARD_OUTPUT or Path(following).suffix[1:].isalnum()
            if following.startswith("--") or not is_file:
                args.insert(index + 1, _STANDARD_OUTPUT)
        require_one_list(self.params, args)
        return super().parse_args(ctx, args)


def command(
    *chain: str,
    plot: bool = False,
    needs: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda values: {},
    **defaults: Any,
) -> Callable[[Callable[..., Report]], Callable[..., None]]:
    """Make a command of a function that returns a report.

    Parameters
    ----------
    *chain : str
        Options of the chain, which the function gets as its parameter `chain`; without "batch", a
        function of the batch that returns the chain.
    plot : bool, default False
        Whether the report has a picture: the option ``--plot``.
    needs : callable, optional
        Returns the optional packages that the function needs, with their extras, from the values of
        the options.
    **defaults : object
        Defaults of options of the chain that differ from those of `OPTIONS`.

    Returns
    -------
    callable
        Decorator of a function. A parameter that its docstring describes, or with a type of Typer,
        is an option of this command. Any other one is the shared option of its name; a default
        replaces that of `OPTIONS`. In the docstring, the word for the value and a short name may
        follow the name of the parameter, as in ``output : FILE, -o``; ``eval_`` is ``--eval``.
    """
    further = ("plot", "as_json", "force") if plot else ("as_json", "force")

    def decorate(function: Callable[..., Report]) -> Callable[..., None]:
        taken = inspect.signature(function, eval_str=True).parameters
        text, described = _described(function.__doc__ or "")
        options: dict[str, inspect.Parameter] = {}
        for name, parameter in taken.items():
            if name == "chain":
                options |= {part: _shared(part, defaults.get(part)) for part in chain}
            elif hasattr(parameter.annotation, "__metadata__"):
                options[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            elif name in described or not _is_shared(parameter):
                kind, option = inspect.Parameter.KEYWORD_ONLY, described.get(name) or _option(name)
                annotation: Any = Annotated[parameter.annotation, option]
                options[name] = parameter.replace(kind=kind, annotation=annotation)
            else:
                default = parameter.default
                options[name] = _shared(name, None if default is parameter.empty else default)
        options |= {name: _shared(name) for name in further if name not in options}

        def run(**values: Any) -> None:
            _require_files(values, needs(values))
            arguments = {name: value for name, value in values.items() if name in taken}
            store = values.get("store")
            if "chain" in taken:
                from bnmc.chain.chain import Chain

                make = partial(Chain, **{name: values[name] for name in chain})
                arguments["chain"] = make() if "batch" in chain else make
            if "seed" in taken:
                arguments["seed"] = _seed(values["seed"], store)
            if "progress" in taken and values["progress"] is None:
                is_long = store is not None or values.get("full", False)
                arguments["progress"] = is_long or sys.stderr.isatty()
            facts = {"seed": arguments["seed"]} if "seed" in taken else {}
            facts = {"command": function.__name__.replace("_", "-"), **facts}
            try:
                report = function(**arguments)
            except Exception as error:
                if values["as_json"] is not None:
                    _publish_error(error, facts, arguments.get("chain"), values["as_json"])
                raise
            except KeyboardInterrupt:
                _say_resumable(store)
                raise
            if report.status == INTERRUPTED:
                _say_resumable(store)
            _publish(report, facts, values["as_json"], values.get("plot"))
            raise typer.Exit(report.status)

        run.__doc__ = text
        run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: option.annotation for name, option in options.items()}
        return run

    return decorate


def finished(run: Callable[[], _Value]) -> tuple[_Value, int]:
    """Return the result of a run, or its finished part if Ctrl-C ends it, and the exit status."""
    from bnmc.errors import Interrupted

    try:
        return run(), OK
    except Interrupted as stop:
        if stop.partial is None:
            raise
        return stop.partial, INTERRUPTED


def table_of(
    facts: Mapping[str, Any], head: str = "quantity", names: Mapping[str, str] | None = None
) -> Table:
    """Return a table of names and values: these in words, or with six digits.

    Parameters
    ----------
    facts : mapping of str to object
        Numbers, strings, bools, None or lists of them, by name.
    head : str, default "quantity"
        Head of the column of names.
    names : mapping of str to str, optional
        Texts for names. Default: the name, with spaces for underscores.
    """
    texts = {name: name.replace("_", " ") for name in facts} | dict(names or {})
    return Table([head, "value"], [[texts[name], _text(value)] for name, value in facts.items()])


def _described(docstring: str) -> tuple[str, dict[str, Any]]:
    """Return the help of a command, and the options in the section "Parameters" of its docstring.

    The options are those of Typer, by the name of the parameter.
    """
    text, _, section = inspect.cleandoc(docstring).partition("\n\nParameters\n----------\n")
    options = {}
    for paragraph in re.findall(r"^\S.*(?:\n .*)*", section, re.MULTILINE):
        head, *lines = paragraph.splitlines()
        name, _, words = head.partition(" : ")
        options[name] = _option(name, words, " ".join(line.strip() for line in lines))
    return text, options


def _option(name: str, words: str = "", text: str | None = None) -> Any:
    """Return the option of a parameter, from the words after its name and its description."""
    names = ["--" + name.rstrip("_").replace("_", "-"), *re.findall(r"-\w", words)]
    parser = seed_of if name == "seed" else None
    return typer.Option(*names, help=text, metavar=words.partition(", ")[0] or None, parser=parser)


def _is_shared(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is a shared option, also without docstrings, as of ``python -OO``."""
    if parameter.name not in OPTIONS:
        return False
    same = OPTIONS[parameter.name][0].__origin__ == parameter.annotation
    return same or parameter.default is parameter.empty


def _shared(name: str, default: Any = None) -> inspect.Parameter:
    """Return the shared option of a name as a parameter, with another default if there is one."""
    annotation, usual = OPTIONS[name]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation,
        default=usual if default is None else default,
    )  # fmt: skip


def _require_files(values: Mapping[str, Any], needs: Mapping[str, str]) -> None:
    """Check before the work that the files can be written, and that all packages are installed."""
    plot, output, document = (values.get(name) for name in ("plot", "output", "as_json"))
    packages = dict(needs)
    if "output" in values:
        from bnmc.simulation.export import extras_of

        for path in filter(None, (output, values["store"])):
            packages |= extras_of(path)
    if plot is not None:
        packages["matplotlib"] = "plot"
    if packages:
        from bnmc._support.extras import require_extras

        require_extras(packages)
    if output is not None:
        from bnmc.simulation.export import OUTPUT_FORMATS

        _require_destination("output", output, OUTPUT_FORMATS, values["force"])
    if document not in (None, _STANDARD_OUTPUT):
        _require_destination("json", Path(document), (".json",), values["force"])
    if plot is not None:
        from bnmc.plot.axes import figure

        suffixes = figure()[0].canvas.get_supported_filetypes()
        _require_destination("plot", plot, [f".{name}" for name in suffixes], values["force"])


def _require_destination(name: str, path: Path, formats: Sequence[str], force: bool) -> None:
    """Raise if an option names a file that cannot be written, or must not be replaced."""
    from bnmc._support.files import as_path, require_writable
    from bnmc.simulation.export import require_free

    require_writable(name, as_path(name, path), formats)
    require_free(name, path, force=force)


def _say_resumable(store: Path | None) -> None:
    """Say after Ctrl-C that a run can go on, if it has a store."""
    if store is not None:
        print(f"bnmc: finished parts are in {store}; the same command resumes", file=sys.stderr)


def _seed(seed: int | None, store: Path | None) -> int | None:
    """Return the seed of a run: a random one if there is none, and no store with its own key."""
    import secrets

    from bnmc._support.arguments import Key, integer

    if seed is not None:
        return seed if isinstance(seed, Key) else integer("seed", seed, low=0)
    return secrets.randbits(32) if store is None else None


def _publish_error(error: Exception, facts: Mapping[str, Any], chain: Any, as_json: str) -> None:
    """Publish the document of an estimator without enough data; the message comes afterwards."""
    from bnmc.errors import PartialEstimateError

    if isinstance(error, PartialEstimateError):
        of_chain = {} if chain is None or callable(chain) else {"chain": chain}
        about = {"error": type(error).__name__, "message": str(error)}
        document = {**of_chain, **about, "partial": entry(error.partial)}
        _publish(Report(document, []), facts, as_json, None)


def _publish(
    report: Report, facts: Mapping[str, Any], as_json: str | None, plot: Path | None
) -> None:
    """Print the report and write its files; raise the first error after all of them."""
    from bnmc._support.version import __version__
    from bnmc.errors import BnmcError

    head = {"bnmc": __version__, "command": facts["command"]}
    facts = {name: value for name, value in facts.items() if name != "command"}
    facts = {} if report.repeat is None else {**facts, **report.repeat}
    prints_json = as_json == _STANDARD_OUTPUT

    def document() -> str:
        content = report.document() if callable(report.document) else report.document
        return dumps({**head, **facts, **content})

    draw = report.draw
    files = dict(report.files)
    if as_json is not None and not prints_json:
        files[Path(as_json)] = _replacing(
            lambda path: path.write_text(f"{document()}\n", encoding="utf-8")
        )
    if plot is not None and draw is not None:
        files[plot] = _replacing(lambda path: draw().figure.savefig(path))

    def write(path: Path, writer: Callable[[Path], None]) -> None:
        writer(path)
        if not prints_json:
            _show([f"{'picture' if path == plot else 'data'}: {path}"])

    shown = [document()] if prints_json else itertools.chain(report.text, _repetition(facts))
    failures: list[Exception] = []
    for step in (partial(_show, shown), *(partial(write, *item) for item in files.items())):
        try:
            step()
        except (OSError, BnmcError) as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _repetition(facts: Mapping[str, Any]) -> list[str]:
    """Return the line that says how to repeat a run, if there are facts."""
    named = {name.replace("_", " "): value for name, value in facts.items() if value is not None}
    texts = {name: str(value) for name, value in named.items()}
    line = "; ".join(  # the text of a key begins with its name
        text if text.startswith(f"{name}:") else f"{name} {text}" for name, text in texts.items()
    )
    return [line] if line else []


def _replacing(write: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that writes a file as a whole or not at all."""
    from bnmc._support.files import replacing

    def replace(path: Path) -> None:
        with replacing(path) as temporary:
            write(temporary)

    return replace


def _show(parts: Iterable[object]) -> None:
    """Print texts and tables, one below the other."""
    for part in parts:
        if isinstance(part, Table) and sys.stdout.isatty():
            from bnmc._support.extras import import_extra

            import_extra("rich.console", "cli").Console().print(part)
        else:
            print(part)
        sys.stdout.flush()


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, float):
        return "infinite" if value == math.inf else f"{value:.6g}"
    return str(value)
