"""Commands about one chain: what they print, draw and refuse, and the status they end with."""

import json
import math

import numpy as np
import pytest

import bnmc
from bnmc import cli
from bnmc.cli import commands as cli_commands
from bnmc.cli import report
from bnmc.cli.inputs import read_states

CHAIN = ("--width", "40", "--batch", "4")


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Run a command line in an empty folder and return its status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main(arguments)
        return status, *capsys.readouterr()

    return run


def document_of(run, *arguments):
    status, out, err = run(*arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out, parse_constant=lambda name: pytest.fail(name))


def test_fixed_point(run):
    star = bnmc.MeanField(bnmc.Chain(64_000, 64, "tanh")).fixed_point()
    found = document_of(run, "fixed-point", "--activation", "tanh", "--batch", "64")
    assert found["rate"] == star.rate
    assert found["timescale"] == pytest.approx(-1.0 / math.log(star.rate))
    assert found["eigenvalues"] == list(star.eigenvalues)
    status, out, _ = run("fixed-point", "--activation", "tanh", "--batch", "64")
    assert status == 0
    assert f"{star.rate:.6g}" in out
    assert "stable  yes" in out
    # Nothing is remembered, and a rate without a logarithm is null in JSON.
    assert document_of(run, "fixed-point", "--batch", "2")["backward_rate"] == "Infinity"
    assert "eigenvalues  none" in run("fixed-point", "--batch", "2")[1]


def test_stability(run, tmp_path):
    arguments = ("stability", "--activation", "silu", "--batches", "8,32")
    found = document_of(run, *arguments)
    (silu,) = found["activations"]
    assert (silu["batches"], silu["stable"]) == ([8, 32], [True, False])
    assert silu["crossings"] == [[26, False]]
    status, out, _ = run(*arguments, "--plot", "atlas.png")
    assert status == 0
    assert "unstable from batch 26 on" in out
    assert (tmp_path / "atlas.png").stat().st_size > 1000


def test_certify(run, tmp_path):
    arguments = ("certify", *CHAIN, "--depth", "8", "--replicates", "50", "--seed", "3")
    cert = bnmc.mixing.tv_bound(bnmc.Chain(40, 4, "relu"), 8, replicates=50, rng=3)
    found = document_of(run, *arguments)
    assert found["bound"] == cert.bound.tolist()
    assert (found["seed"], found["lag"]) == (3, cert.lag)
    status, out, _ = run(*arguments, "--plot", "cert.svg")
    assert status == 0
    assert str(cert) in out
    assert out.endswith("seed 3\n")
    assert (tmp_path / "cert.svg").exists()
    # What is there is not replaced unless asked, and that is known before any work.
    assert run(*arguments, "--plot", "cert.svg")[0] == 2
    assert run(*arguments, "--plot", "cert.svg", "--force")[0] == 0


def test_a_chain_that_does_not_mix_has_a_status_of_its_own(run):
    status, out, err = run(
        "certify", "--width", "25", "--batch", "10", "--activation", "linear", "--seed", "1"
    )
    assert (status, out) == (3, "")
    assert "lost rank" in err
    assert err.count("\n") == 1


def test_rates(run, tmp_path):
    arguments = ("rates", *CHAIN, "--seed", "2")
    table = bnmc.mixing.compare(bnmc.Chain(40, 4, "relu"), rng=2)
    found = document_of(run, *arguments, "--plot", "rates.png")
    assert found == {"seed": 2, **table.to_dict()}
    assert (tmp_path / "rates.png").exists()
    assert str(table) in run(*arguments)[1]


def test_check(run, tmp_path):
    arguments = ("check", "--width", "30", "--batch", "3", "--seed", "0")
    rng = np.random.default_rng(0)
    chain = bnmc.Chain(30, 3, "relu")
    good = bnmc.invariant.sample(chain, 300, tolerance=0.05, rng=0).preactivations()
    np.save("good.npy", good)
    found = document_of(run, *arguments, "--samples", "good.npy")
    assert found["ok"] is True
    np.save("bad.npy", rng.standard_normal((300, 30, 3)))
    status, out, err = run(*arguments, "--samples", "bad.npy")
    assert (status, err) == (report.FAILED, "")
    assert "fails" in out
    (tmp_path / "torn.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:300])
    status, _, err = run(*arguments, "--samples", "torn.npy")
    assert status == 2
    assert "samples: got 'torn.npy', allowed: a sound .npy file" in err
    assert run(*arguments, "--samples", "missing.npy")[0] == 2
    np.testing.assert_array_equal(read_states("good.npy"), good)


def test_regularity(run):
    found = document_of(run, "regularity", "--width", "8", "--rtol", "0.02", "--seed", "0")
    # The stationary value of square linear networks of width 8: .9119.
    assert found["value"] == pytest.approx(0.9119, abs=6.0 * found["stderr"])
    assert found["stderr"] < 0.02
    status, out, _ = run("regularity", "--width", "8", "--rtol", "0.02", "--seed", "0")
    assert status == 0
    assert "regularity constant 0.9" in out


def test_info(run):
    found = document_of(run, "info")
    assert found["bnmc"] == bnmc.__version__
    assert found["processors"] >= 1
    assert "numba " in run("info")[1]


@pytest.mark.parametrize("name", cli_commands.COMMANDS)
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
        (("certify", *CHAIN, "--plot", "x.xyz"), "plot"),
        (("rates", "--batch", "1"), "batch"),
        (("check", "--samples", "x.txt"), "samples (by its suffix): got '.txt'"),
        (("regularity", "--gamma", "nan"), "gamma"),
    ],
)
def test_bad_input(run, arguments, said):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err


def test_rates_that_nothing_tells_end_with_a_status(run):
    collapsing = "--width", "32", "--batch", "20", "--activation", "linear", "--seed", "0"
    status, out, err = run("rates", *collapsing, "--threads", "1", "--json")
    assert (status, err) == (report.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])


def test_threads_change_no_result(run):
    small = "--width", "60", "--batch", "4", "--depth", "12", "--replicates", "40", "--seed", "1"
    alone = document_of(run, "certify", *small, "--threads", "1")
    assert document_of(run, "certify", *small) == alone
    status, _, err = run("certify", *small, "--threads", "0")
    assert status == 2
    assert "threads: got 0" in err


def test_no_summary_is_cut(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run("--help")
    assert status == 0
    commands = out.partition("Commands:")[2]
    assert "..." not in commands
    assert "…" not in commands
    assert "  certify      Bound how far each layer is from the invariant law.\n" in out


@pytest.mark.parametrize("value", ["x", "1.5", ""])
def test_a_value_of_another_type_is_named(run, value):
    status, out, err = run("fixed-point", "--batch", value)
    assert (status, out) == (2, "")
    assert "'--batch'" in err
    assert repr(value) in err
