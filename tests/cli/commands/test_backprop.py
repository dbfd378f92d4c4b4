"""``bnmc backprop``: its document, and Ctrl-C."""

import json
from contextlib import nullcontext

import pytest

from bnmc._support import progress
from bnmc.cli import statuses
from bnmc.gradients import parts

RUN = "backprop --width 40 --batch 4 --depth 8 --chains 6"
SMALL = f"{RUN} --seed 3"


def test_a_readout_has_ten_classes_unless_another_number_is_given(document_of):
    table = document_of(f"{SMALL} --loss squared")["table"]
    assert table == document_of(f"{SMALL} --loss squared --classes 10")["table"]


@pytest.fixture
def interrupted(run, monkeypatch):
    """Run a command line that is interrupted after three parts; return its output and error."""

    def interrupted(line):
        def stop_after_three(done, total):
            if done >= 3:
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(progress, "_lines", lambda label, unit: nullcontext(stop_after_three))
            status, out, err = run(f"{line} --threads 1 --progress")
        assert status == statuses.INTERRUPTED
        return out, err

    monkeypatch.setattr(parts, "PART_SECONDS", 1e-9)
    return interrupted


def test_ctrl_c_shows_the_finished_networks(interrupted):
    out, err = interrupted(f"{SMALL} --json")
    assert "interrupted" in err
    assert 1 <= json.loads(out)["chains"] <= 6


def test_a_store_continues_an_interrupted_command(
    interrupted, printed, document_of, refusal, tmp_path
):
    expected = document_of(SMALL)
    interrupted(f"{SMALL} --store parts")
    assert len(list((tmp_path / "parts").glob("part-*.npz"))) >= 3
    assert document_of(f"{SMALL} --store parts") == expected
    # Without a seed, the random numbers are those of the store.
    document = document_of(f"{RUN} --store parts")
    assert (document["seed"], document["table"]) == (None, expected["table"])
    last = printed(f"{RUN} --store parts").splitlines()[-1]
    assert last == f"key {expected['key']} of the store"
    assert "dtype = float32" in refusal(f"{SMALL} --store parts --dtype float32")
