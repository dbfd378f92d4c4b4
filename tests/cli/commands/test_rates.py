"""``bnmc rates``: its table, and its status without an estimate."""

import json

import pytest

import bnmc
from bnmc.cli import statuses

CHAIN = ("--width", "40", "--batch", "4")


def test_rates(run, document_of, tmp_path):
    arguments = ("rates", *CHAIN, "--seed", "2")
    table = bnmc.mixing.compare(bnmc.Chain(40, 4, "relu"), rng=2)
    found = document_of(*arguments, "--plot", "rates.png")
    assert found == {"seed": 2, **table.to_dict()}
    assert (tmp_path / "rates.png").exists()
    assert str(table) in run(*arguments)[1]


@pytest.mark.slow
def test_rates_that_nothing_tells_end_with_a_status(run):
    collapsing = "--width", "32", "--batch", "20", "--activation", "linear", "--seed", "0"
    status, out, err = run("rates", *collapsing, "--threads", "1", "--json")
    assert (status, err) == (statuses.NO_ESTIMATE, "")
    assert all("rate" not in row for row in json.loads(out)["rows"][1:])
