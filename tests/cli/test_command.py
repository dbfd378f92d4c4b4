"""The decorator of commands: options, checks before the work, and what happens to a report."""

import inspect
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import typer

import bnmc
from bnmc._support.text import Table
from bnmc.cli import application, command, statuses
from bnmc.errors import Interrupted


@pytest.fixture
def trial(run, monkeypatch):
    """Run a function as the command ``trial``."""

    def trial(function, options=""):
        monkeypatch.setattr(application, "_PANELS", {"": {"trial": "trial", "info": "machine"}})
        module = SimpleNamespace(trial=function)
        monkeypatch.setitem(sys.modules, "bnmc.cli.commands.trial", module)
        return run(f"trial {options}")

    return trial


class Picture:
    """A figure that is its own `figure`, as Matplotlib's are."""

    def __init__(self):
        self.figure = self

    def savefig(self, path):
        Path(path).write_text("picture")


def test_options_come_from_the_parameters(trial):
    @command.command("width", "batch", "gain", batch=3, plot=True)
    def made(
        chain,
        seed,
        size: Annotated[int, typer.Option(help="Its size.")] = 7,
        eval_: str = "no",
        is_big: bool = False,
        skip: float = 0.5,
        *,
        progress: bool,
    ) -> command.Report:
        """Make it.

        Parameters
        ----------
        eval_ : WORD, -e
            What it
            evaluates.
        is_big
            Whether it is big.
        """
        facts = {"chain": repr(chain), "size": size, "skip": skip, "progress": progress}
        facts |= {"eval": eval_, "is_big": is_big}
        return command.Report(facts, [])

    names = [
        *("width", "batch", "gain", "seed", "size", "eval_", "is_big", "skip", "progress"),
        *("plot", "as_json", "force"),
    ]
    assert list(inspect.signature(made).parameters) == names
    status, out, err = trial(made, "--json --seed 4 --width 20 -e x --is-big")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "bnmc": bnmc.__version__, "command": "made", "seed": 4,
        "chain": "Chain(width=20, batch=3, activation='linear')", "size": 7, "skip": 0.5,
        "progress": False, "eval": "x", "is_big": True,
    }  # fmt: skip
    assert json.loads(trial(made, "--json --progress")[1])["progress"] is True
    _, out, _ = trial(made, "--help")
    assert "Make it." in out
    assert "Its size.  [default: 7]" in out
    assert "-e, --eval WORD" in out
    assert "What it evaluates.  [default: no]" in out
    assert "Parameters" not in out
    assert "[default: 0.5]" in out
    assert "[default: 3]" in out


def test_without_a_batch_the_chain_is_a_function_of_it(trial):
    made = command.command("width", "activation")(
        lambda chain: command.Report({"chain": repr(chain(batch=4))}, [])
    )
    _, out, _ = trial(made, "--width 9 --activation tanh --json")
    assert json.loads(out)["chain"] == "Chain(width=9, batch=4, activation='tanh')"


def test_a_seed_is_drawn_unless_a_store_has_a_key(trial):
    @command.command()
    def made(seed, store: Path | None) -> command.Report:
        return command.Report({}, ["text"], repeat={"some_key": 5})

    first, second = (json.loads(trial(made, "--json")[1])["seed"] for _ in range(2))
    assert first != second
    assert trial(made, "--seed 0")[1] == "text\nseed 0; some key 5\n"
    assert trial(made, "--store x")[1] == "text\nsome key 5\n"
    assert trial(made, "--seed -1")[0] == statuses.BAD_INPUT
    key = "key:0123456789abcdef"
    assert trial(made, f"--seed {key}")[1] == f"text\nseed {key}; some key 5\n"
    assert json.loads(trial(made, f"--seed {key} --json")[1])["seed"] == key
    for wrong in ("key:12", "1.5", "x"):
        status, _, err = trial(made, f"--seed {wrong}")
        assert status == statuses.BAD_INPUT
        assert "neither an integer nor the key of a run" in err


def test_files_are_checked_before_the_work(trial):
    made = command.command(plot=True)(lambda: pytest.fail("it has begun"))
    Path("old.png").write_text("precious")
    for path, said in (("old.png", "--force"), ("x.xyz", ".png"), ("missing/x.png", "missing")):
        status, out, err = trial(made, f"--plot {path}")
        assert (status, out) == (statuses.BAD_INPUT, "")
        assert said in err
    assert Path("old.png").read_text() == "precious"


@command.command()
def plain(size: Annotated[int, typer.Option(help="Its size.")] = 7) -> command.Report:
    """Make it."""
    return command.Report({"size": size}, ["text"])


HEAD = {"bnmc": bnmc.__version__, "command": "plain"}


def test_json_is_printed_or_written_beside_the_text(trial):
    for options in ("--json", "--json -", "--json --size 7", "--json=-"):
        status, out, err = trial(plain, options)
        assert (status, json.loads(out), err) == (0, {**HEAD, "size": 7}, "")
    assert trial(plain, "--json a.json") == (0, "text\ndata: a.json\n", "")
    assert json.loads(Path("a.json").read_text()) == {**HEAD, "size": 7}
    for path, said in (("a.json", "--force"), ("a.txt", ".json"), ("missing/a.json", "missing")):
        status, out, err = trial(plain, f"--json {path}")
        assert (status, out) == (statuses.BAD_INPUT, "")
        assert err.startswith("bnmc: error: json")
        assert said in err
    assert trial(plain, "--size 8 --json a.json --force")[0] == 0
    assert json.loads(Path("a.json").read_text()) == {**HEAD, "size": 8}


def test_missing_packages_are_named_before_the_work(trial, monkeypatch):
    needing = command.command(plot=True, needs=lambda values: {"xarray": "xarray"})
    made = needing(lambda: pytest.fail("it has begun"))
    for module in ("xarray", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    status, _, err = trial(made, "--plot x.png")
    assert status == statuses.BAD_INPUT
    assert "bnmc[xarray,plot]" in err


def test_a_file_that_cannot_be_written_ends_nothing_else(trial):
    def fail(path):
        raise OSError(28, "No space left on device", str(path))

    files = {Path("a.npz"): fail, Path("b.npz"): lambda path: path.write_text("b")}
    made = command.command(plot=True)(lambda: command.Report({}, ["text"], Picture, files=files))
    Path("x.png").write_text("old")
    status, out, err = trial(made, "--plot x.png --force")
    assert (status, out) == (statuses.BAD_INPUT, "text\ndata: b.npz\npicture: x.png\n")
    assert err == "bnmc: error: a.npz: No space left on device\n"
    assert (Path("b.npz").read_text(), Path("x.png").read_text()) == ("b", "picture")


def test_a_printed_document_is_all_that_is_printed(trial):
    made = command.command(plot=True)(lambda: command.Report({}, ["text"], Picture))
    status, out, err = trial(made, "--json --plot x.png")
    assert (status, json.loads(out), err) == (0, {**HEAD, "command": "<lambda>"}, "")
    assert Path("x.png").read_text() == "picture"


def test_files_are_written_if_the_output_is_closed(trial, monkeypatch):
    class Closed:
        def __str__(self):
            raise BrokenPipeError

    made = command.command(plot=True)(lambda: command.Report({}, [Closed()], Picture))
    monkeypatch.setattr("bnmc.cli.app.os.dup2", lambda *_: None)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    assert trial(made, "--plot x.png")[0] == statuses.BROKEN_PIPE
    assert Path("x.png").read_text() == "picture"


def test_the_status_is_that_of_the_report(trial):
    made = command.command()(lambda: command.Report({}, [], status=statuses.FAILED))
    assert trial(made)[:2] == (statuses.FAILED, "")


def test_an_interrupted_run_has_its_finished_part():
    def stop(partial):
        raise Interrupted(partial)

    assert command.finished(lambda: stop(3)) == (3, statuses.INTERRUPTED)
    assert command.finished(lambda: 4) == (4, statuses.OK)
    with pytest.raises(Interrupted):
        command.finished(lambda: stop(None))


def test_facts_as_a_table():
    facts = {
        "a_rate": 1 / 3, "count": 1234567, "none": None, "sure": True, "far": float("inf"),
        "list": [0.5, [0.25, 2.0]], "empty": [], "word": "x_y",
    }  # fmt: skip
    assert command.table_of(facts) == Table(
        ["quantity", "value"],
        [
            ["a rate", "0.333333"], ["count", "1234567"], ["none", "none"], ["sure", "yes"],
            ["far", "infinite"], ["list", "0.5, 0.25, 2"], ["empty", "none"], ["word", "x_y"],
        ],
    )  # fmt: skip
