"""``bnmc figure``: the experiments of `bnmc.experiments`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from bnmc.cli import options
from bnmc.cli.outputs import require_destination, require_packages, save
from bnmc.cli.report import print_json, print_table, progress_report

if TYPE_CHECKING:
    from bnmc.experiments import Experiment

__all__ = ["FigureCommand", "figure"]

#: The value of ``--json`` that stands for standard output.
STANDARD_OUTPUT = "-"


class FigureCommand(TyperCommand):
    """A command whose option ``--json`` takes a file or no value; without a file it prints.

    Its help lists the sizes of the figure that is named beside ``--help``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace ``--json`` by ``--json -`` if the next argument is not a file.

        The next argument may be missing, an option, or the name of an experiment.
        """
        import bnmc.experiments as experiments

        ctx.meta["figures"] = [one for one in args if one in experiments.names()]
        for index in reversed([k for k, one in enumerate(args) if one == "--json"]):
            following = args[index + 1] if index + 1 < len(args) else ""
            is_option = following.startswith("-") and following != STANDARD_OUTPUT
            if not following or is_option or following in experiments.names():
                args.insert(index + 1, STANDARD_OUTPUT)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, and the sizes of the figures among the arguments."""
        super().format_help(ctx, formatter)
        for name in ctx.meta.get("figures", ()):
            with formatter.section(f"Sizes of {name}, for --set"):
                formatter.write_dl(_sizes(name))


def _names(incomplete: str) -> list[tuple[str, str]]:
    """Return names and descriptions of the experiments whose names begin with a text."""
    import bnmc.experiments as experiments

    return [
        (name, experiments.describe(name))
        for name in experiments.names()
        if name.startswith(incomplete)
    ]


def _sizes(name: str) -> list[tuple[str, str]]:
    """Return the sizes of a figure with their default values, and what they are."""
    from bnmc.experiments import sizes
    from bnmc.experiments.registry import sizes_of

    default, full = sizes_of(name)
    rows = []
    for size, meaning in sizes.meanings(type(default)).items():
        value, in_full = (sizes.as_text(getattr(one, size)) for one in (default, full))
        beside = f" With --full: {in_full}." if in_full != value else ""
        rows.append((f"{size}={value}", f"{meaning[0].upper()}{meaning[1:]}.{beside}"))
    return rows


def figure(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the figure, as bnmc figure --list prints it.",
            autocompletion=_names,
        ),
    ] = None,
    show_names: Annotated[
        bool, typer.Option("--list", help="Print the names of the figures, with descriptions.")
    ] = False,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Use the sizes of the paper (minutes to days) instead of small ones (seconds).",
        ),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SIZE=VALUE",
            help="Size that differs, for example width=500 or activations=relu,tanh. May be "
            "repeated. bnmc figure NAME --help lists the sizes of a figure.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    threads: options.Threads = None,
    plot: options.Plot = None,
    as_json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="[FILE]",
            help="File (.json) for data, table and findings; without FILE, they are printed "
            "instead of the table.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for finished parts. After an interruption, the same command resumes.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder with training images of MNIST, Fashion-MNIST (IDX) or CIFAR-10 (binary "
            "version), for figures that train networks. Default: digits that bnmc includes.",
        ),
    ] = None,
    force: options.Force = False,
    progress: options.ProgressFlag = None,
) -> None:
    """Compute a figure of the papers, or one beyond them.

    The command prints a table and the findings. --plot draws the picture.

    Example: bnmc figure bridging-1a --plot error.png

    Example: bnmc figure --list

    Example: bnmc figure gap --set widths=100,1000 --set activations=relu,tanh

    Example: bnmc figure bridging-2 --full --seed 1 --json spectra.json

    Example: bnmc figure rates --full --store rates.parts --progress

    Example: bnmc figure rank-collapse-1 --data fashion --full --store parts
    """
    import bnmc.experiments as experiments
    from bnmc._support.arguments import integer
    from bnmc.errors import ArgumentError
    from bnmc.experiments.registry import sizes_of
    from bnmc.experiments.sizes import parsed

    if show_names:
        if name is not None:
            raise ArgumentError("name", name, "nothing, with --list")
        if as_json is None:
            _print_names()
        else:
            print_json(dict(_names("")))
        return
    if name is None:
        raise ArgumentError("name", None, "an experiment", "bnmc figure --list prints their names")
    experiments.describe(name)
    sizes = parsed(type(sizes_of(name)[0]), changes) if changes else {}
    seed = integer("seed", seed, low=0)
    file = None if as_json in (None, STANDARD_OUTPUT) else Path(str(as_json))
    require_packages(plot=plot, others=experiments.extras_of(name))
    for option, path in (("json", file), ("plot", plot)):
        if path is not None:
            require_destination(option, path, force)
    report = progress_report(progress, "%")
    begun = time.perf_counter()
    try:
        found = experiments.run(
            name, full=full, rng=seed, threads=threads, progress=report, store=store, data=data,
            **sizes,
        )  # fmt: skip
    except KeyboardInterrupt:
        if store is not None:
            print(f"bnmc: finished parts are in {store}; the same command resumes", file=sys.stderr)
        raise
    seconds = round(time.perf_counter() - begun, 3)
    document = {**found.to_dict(), "seed": seed, "seconds": seconds}
    prints_json = as_json == STANDARD_OUTPUT
    _show(found, document, prints_json)
    # Files come last: if the disk is full, the results have been printed.
    _write(found, document, file, plot, tells=not prints_json)


def _show(found: Experiment, document: dict[str, Any], prints_json: bool) -> None:
    """Print an experiment as a table or as a JSON document."""
    if prints_json:
        print_json(document)
        return
    if sys.stdout.isatty():
        print(f"{found.title}\n")
        print_table(list(found.table.columns), found.table.cells())
        print("\n".join(["", *found.findings]))
    else:
        print(found)
    print(f"\nseed {document['seed']}, {document['seconds']:.1f} s", flush=True)


def _write(
    found: Experiment, document: dict[str, Any], file: Path | None, plot: Path | None, tells: bool
) -> None:
    """Write the files of an experiment; with `tells`, print the path of the picture."""
    from bnmc._support.files import replacing
    from bnmc._support.text import dumps

    if file is not None:
        with replacing(file) as temporary:
            temporary.write_text(dumps(document) + "\n", encoding="utf-8")
        print(f"data: {file}")
    if plot is not None:
        save(found.plot(), plot)
        if tells:
            print(f"picture: {plot}")


def _print_names() -> None:
    known = _names("")
    if sys.stdout.isatty():
        print_table(["name", "description"], [list(one) for one in known])
        return
    width = max(len(name) for name, _ in known)
    for name, description in known:
        print(f"{name:<{width}}  {description}")
