"""``bnmc figure``: the experiments of `bnmc.experiments` as a command."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from bnmc.cli import options
from bnmc.cli.report import print_json, print_table, progress_report, require_destination, save

__all__ = ["FigureCommand", "figure"]

#: What stands for standard output in place of a file.
STANDARD_OUTPUT = "-"


class FigureCommand(TyperCommand):
    """A command whose ``--json`` takes a file, or nothing: then it prints."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Write ``--json -`` where no file follows ``--json``: an option, or what to show."""
        from bnmc import experiments

        for index in reversed([k for k, one in enumerate(args) if one == "--json"]):
            following = args[index + 1] if index + 1 < len(args) else ""
            is_option = following.startswith("-") and following != STANDARD_OUTPUT
            if not following or is_option or following in experiments.names():
                args.insert(index + 1, STANDARD_OUTPUT)
        return super().parse_args(ctx, args)


def _known(incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of an experiment in a shell."""
    from bnmc import experiments

    return [
        (name, experiments.describe(name))
        for name in experiments.names()
        if name.startswith(incomplete)
    ]


def figure(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What to show.", autocompletion=_known)
    ] = None,
    show_names: Annotated[
        bool, typer.Option("--list", help="Print what there is, and what it shows.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Take the sizes of the paper, not those of seconds.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Repeats a run.")] = 0,
    threads: options.Threads = None,
    plot: options.Plot = None,
    as_json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="[FILE]",
            help="Write data, table and findings to a .json file, or print them instead of the "
            "table.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep finished parts in a folder, and go on from there if the same command was "
            "interrupted.",
        ),
    ] = None,
    force: options.Force = False,
    progress: options.ProgressFlag = None,
) -> None:
    """A figure of the papers, or one beyond them.

    What it shows is a table, data and a picture.

    Example: bnmc figure bridging-1a --plot error.png

    Example: bnmc figure --list

    Example: bnmc figure bridging-2 --full --seed 1 --json spectra.json

    Example: bnmc figure rates --full --store rates.parts --progress
    """
    from bnmc import experiments
    from bnmc._support.arguments import integer
    from bnmc.errors import ArgumentError

    if show_names:
        if name is not None:
            raise ArgumentError("name", name, "nothing, with --list")
        if as_json is None:
            _print_names()
        else:
            print_json(dict(_known("")))
        return
    if name is None:
        raise ArgumentError("name", None, "an experiment", "bnmc figure --list names them")
    experiments.describe(name)
    seed = integer("seed", seed, low=0)
    file = None if as_json in (None, STANDARD_OUTPUT) else Path(str(as_json))
    if file is not None:
        from bnmc._support.files import require_free, require_writable

        require_writable("json", file, (".json",))
        require_free("json", file, force=force)
    if plot is not None:
        require_destination("plot", plot, force)
    begun = time.perf_counter()
    report = progress_report(progress, "%")
    try:
        found = experiments.run(
            name, full=full, rng=seed, threads=threads, progress=report, store=store
        )
    except KeyboardInterrupt:
        if store is not None:
            print(f"bnmc: finished parts are in {store}; the same command goes on", file=sys.stderr)
        raise
    seconds = round(time.perf_counter() - begun, 3)
    document = {**found.to_dict(), "seed": seed, "seconds": seconds}
    if as_json is not None and file is None:
        print_json(document)
    else:
        _print_found(found)
        print(f"\nseed {seed}, {seconds:.1f} s", flush=True)
    # Last, since it may fail: the disk may be full by now.
    if file is not None:
        from bnmc._support.files import replacing
        from bnmc._support.json import dumps

        with replacing(file) as temporary:
            temporary.write_text(dumps(document) + "\n", encoding="utf-8")
        print(f"data: {file}")
    if plot is not None:
        save(found.plot(), plot)
        if as_json is None or file is not None:
            print(f"picture: {plot}")


def _print_names() -> None:
    from bnmc import experiments

    known = _known("")
    if sys.stdout.isatty():
        print_table(["name", "what it shows"], [list(one) for one in known])
        return
    width = max(map(len, experiments.names()))
    for name, description in known:
        print(f"{name:<{width}}  {description}")


def _print_found(found: Any) -> None:
    if not sys.stdout.isatty():
        print(found)
        return
    print(f"{found.title}\n")
    print_table(list(found.table.columns), found.table.cells())
    print("\n".join(["", *found.findings]))
