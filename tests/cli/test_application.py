"""All commands: their help, and what they refuse."""

import pytest

from bnmc.cli import application

CHAIN = ("--width", "40", "--batch", "4")


@pytest.mark.parametrize("name", [name.replace("_", "-") for name in application.COMMANDS])
def test_help_has_an_example(run, name):
    status, out, err = run(name, "--help")
    assert (status, err) == (0, "")
    assert f"Example: bnmc {name}" in " ".join(out.split())
    assert "--json" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("stability", "--batches", "8;9"), "batches: got '8;9'"),
        (("fixed-point", "--activation", "rulu"), "did you mean 'relu'"),
        (("certify", *CHAIN, "--replicates", "1"), "replicates: got 1"),
        (("certify", *CHAIN, "--norm", "none"), "norm: got 'none'"),
        (("rates", "--batch", "1"), "batch"),
        (("check", "--samples", "x.txt"), "samples (by its suffix): got '.txt'"),
        (("regularity", "--gamma", "nan"), "gamma"),
    ],
)
def test_bad_input(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_no_summary_is_cut(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run("--help")
    assert status == 0
    commands = out.partition("Commands:")[2]
    assert "..." not in commands
    assert "…" not in commands
    assert "  certify        Bound the distance of each layer from the stationary law.\n" in out


@pytest.mark.parametrize("value", ["x", "1.5", ""])
def test_a_value_of_another_type_is_named(run, value):
    status, out, err = run("fixed-point", "--batch", value)
    assert (status, out) == (2, "")
    assert "'--batch'" in err
    assert repr(value) in err
