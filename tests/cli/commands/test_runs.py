"""``bnmc simulate`` and ``backprop``: what they print and write, and Ctrl-C."""

import io
import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import bnmc
from bnmc._support import progress
from bnmc.cli import statuses
from bnmc.cli.commands import runs
from bnmc.errors import ArgumentError
from bnmc.experiments.training.images import digits
from bnmc.gradients import parts

RUN = "simulate --width 50 --depth 6 --chains 8"
SEEDED = f"{RUN} --seed 0"
SMALL = f"{SEEDED} --batch 4"
X = np.random.default_rng(1).standard_normal((50, 4))


def test_the_table_is_plain_and_aligned(printed):
    out = printed(SMALL)
    assert not set(out) & set("\x1b│┃━─╭")
    lines = out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    head = next(line for line in lines if line.startswith("layer"))
    rows = [line for line in lines if re.match(r" +\d+  ", line)]
    assert [int(row.split()[0]) for row in rows] == [0, 1, 2, 5, 6]
    for name in ("‖G − G*‖", "orthogonality gap", "smallest eigenvalue", "largest eigenvalue"):
        start = head.index(name)
        assert all(row[start - 1] == " " and row[start] != " " for row in rows)


def test_the_last_line_repeats_the_run(printed):
    first = printed(f"{RUN} --batch 4")
    seed = re.search(r"^seed (\d+); (key:\w+); sampler conditional", first, re.MULTILINE)
    again = printed(f"{SMALL} --seed {seed[1]} --threads 1")
    assert again.splitlines()[:10] == first.splitlines()[:10]
    assert f"seed {seed[1]}; {seed[2]};" in again
    of_key = printed(f"{SMALL} --seed {seed[2]}")
    assert of_key.splitlines()[:10] == first.splitlines()[:10]
    assert f"seed {seed[2]}; {seed[2]};" in of_key
    assert f"seed {seed[1]};" not in printed(f"{RUN} --batch 4")


def test_the_document(document_of):
    document = document_of(f"{SMALL} --every 2 --dtype float32")
    settings, of_input = document["settings"], document["input"]
    assert (document["seed"], settings["width"], settings["activation"]) == (0, 50, "relu")
    assert (of_input["features"], of_input["samples"], of_input["first_layer"]) == (64, 4, True)
    assert (document["dtype"], document["sampler"]) == ("float32", "conditional")
    assert document["star"]["b"] == pytest.approx(0.5)
    assert [row["layer"] for row in document["rows"]] == [0, 2, 4, 6]
    assert document["seconds"] > 0
    assert document["compile_seconds"] >= 0


def test_the_document_has_what_the_library_computes(document_of):
    document = document_of(SMALL)
    chain = bnmc.Chain(50, 4, "relu")
    star = bnmc.MeanField(chain).fixed_point().gram
    expected = bnmc.simulate(
        chain, 6, chains=8, initial=bnmc.FirstLayer(digits(4)), rng=0,
        observables=[bnmc.Distance(star), "eigenvalues", "orthogonality_gap"],
    )  # fmt: skip
    assert document["key"] == str(expected.key)
    spectrum = expected.eigenvalues[:, -1]
    for name, values in {
        "distance": expected.distance[:, -1],
        "orthogonality_gap": expected.orthogonality_gap[:, -1],
        "smallest_eigenvalue": spectrum[:, 0],
        "largest_eigenvalue": spectrum[:, 3],
    }.items():
        stderr = values.std(ddof=1) / np.sqrt(8)
        estimate = {"mean": values.mean(), "stderr": stderr}
        assert document["rows"][-1][name] == pytest.approx(estimate)


def test_a_single_network_has_no_standard_error(printed, document_of):
    line = f"{SMALL} --chains 1"
    assert document_of(line)["rows"][0]["distance"]["stderr"] is None
    out = printed(line)
    assert ": 1 network, " in out
    assert "±" not in out
    assert "nan" not in out


def test_a_scale_that_is_lost_is_said(printed):
    """Of vanilla relu networks it halves in each layer: 2^-1022 is the least normal number."""
    line = "simulate --norm none --width 200 --batch 2 --chains 4 --seed 0 --depth"
    (layer,) = re.findall(r"from layer (\d+) on, the Gram matrix is too", printed(f"{line} 2500"))
    assert 900 < int(layer) < 1200
    assert "too small" not in printed(f"{line} 500")


def test_a_store_of_another_seed_names_its_key(printed, refusal):
    key = re.search(r"key:\w+", printed(f"{SMALL} --store z.zarr"))[0]
    err = refusal(f"{SMALL} --seed 1 --store z.zarr")
    assert re.search(rf"a run with key:\w+, got 'z.zarr', which has {key}: pass --seed {key}", err)


@pytest.mark.parametrize("output", ["z.zarr", "./z.zarr", "a/../z.zarr"])
def test_the_output_may_not_be_the_store(refusal, output):
    Path("a").mkdir()
    err = refusal(f"{SMALL} --store z.zarr --output {output} --force")
    assert "output: got" in err
    assert "a path other than that of the store" in err


@pytest.mark.parametrize("path", ["a" * 250 + ".npz", "/proc/run.npz"])
def test_a_place_that_cannot_be_written_to_is_refused_before_the_run(refusal, path):
    err = refusal(f"{SMALL} --output {path}")
    assert f"output: got '{path[:20]}" in err
    assert "that you may write to (" in err


def test_vanilla_linear_networks_keep_the_input(document_of):
    orthogonal = np.linalg.qr(np.random.default_rng(0).standard_normal((50, 3)))[0] * 50**0.5
    np.save("x.npy", orthogonal)
    document = document_of(f"{SEEDED} -i x.npy --norm none --activation linear")
    assert document["star"]["kind"] == "input"
    assert document["input"]["first_layer"] is False
    assert document["rows"][0]["distance"]["mean"] < 1e-13
    assert document["rows"][-1]["distance"]["mean"] > 0.1


@pytest.mark.parametrize(
    "options",
    ["--norm none", "--skip 1", "--eps 1e-5", "--norm none --activation linear --gain 2"],
)
def test_there_is_no_distance_from_an_unknown_fixed_point(printed, document_of, options):
    out = printed(f"{SMALL} {options}")
    assert "G*: unknown (" in out
    assert "layer  orthogonality gap  smallest eigenvalue" in out
    assert document_of(f"{SMALL} {options}")["rows"][0]["distance"] is None


@pytest.mark.parametrize(("activation", "is_unstable"), [("silu", True), ("relu", False)])
def test_an_unstable_fixed_point_is_named(printed, document_of, activation, is_unstable):
    line = f"{SMALL} --batch 32 --activation {activation} --depth 1 --chains 2"
    assert ("it is unstable, so networks may not converge to it" in printed(line)) == is_unstable
    assert document_of(line)["star"]["stable"] is not is_unstable


def test_width_many_features_are_layer_0(document_of):
    np.savetxt("x.csv", X, delimiter=",", fmt="%.17g")
    np.savez("x.npz", noise=np.zeros(3), x=X.T)
    first = document_of(f"{SMALL} -i x.csv")
    assert first["rows"] == document_of(f"{SMALL} -i x.npz --array x --samples-first")["rows"]
    assert first["input"]["first_layer"] is False
    assert first["rows"][0]["distance"]["stderr"] == pytest.approx(0, abs=1e-15)
    wrapped = document_of(f"{SMALL} -i x.csv --first-layer")
    assert wrapped["rows"][0]["distance"]["stderr"] > 0


def test_widths_are_those_of_the_layers(document_of, printed, refusal, tmp_path):
    options = "--chains 2 --batch 4 --seed 0 --norm layer --gain 1.2"
    document = document_of(f"simulate --width 64,20,9 {options}")
    network = bnmc.Network.of(width=[64, 20, 9], batch=4, activation="relu", norm="layer", gain=1.2)
    run = bnmc.simulate(network, initial=digits(4), chains=2, rng=0)
    gap = bnmc.gram.orthogonality_gap(run.gram).mean(axis=0)
    assert [row["orthogonality_gap"]["mean"] for row in document["rows"]] == pytest.approx(gap)
    assert document["settings"]["width"] == [64, 20, 9]
    assert document["input"]["first_layer"] is False
    assert "G*: none, because layers differ" in printed(
        f"simulate --width 64,20,9 {options} --plot {tmp_path / 'plot.png'}"
    )
    assert "depth" in refusal(f"simulate --width 64,20 --depth 3 {options}")
    assert "width" in refusal(f"simulate --width 64,a {options}")


def test_features_that_are_not_the_width_are_pointed_out(run):
    np.save("x.npy", np.random.default_rng(0).standard_normal((12, 4)))
    line = "simulate --depth 1 --chains 2 --input x.npy --width"
    status, out, err = run(f"{line} 8")
    assert status == 0
    assert "4 samples × 12 features (through a random first layer)" in out
    assert "12 features and the width is 8" in err
    assert "--width 12" in err
    assert "12 samples × 4 features" in run(f"{line} 4 --samples-first")[1]
    for quiet in ("12", "8 --first-layer"):
        assert run(f"{line} {quiet}")[2] == ""
    np.save("x.npy", np.load("x.npy").T)
    assert "12 samples × 4 features" in run(f"{line} 4 --features-first")[1]


def test_a_file_that_looks_transposed_needs_an_option(refusal):
    """More samples than features are usual for other programs, and hours of work here."""
    np.save("x.npy", np.zeros((4, 12)))
    line = "simulate --width 4 --input x.npy"
    for further in ("", "--batch 3"):
        err = refusal(f"{line} {further}")
        assert "input: got '4 rows and 12 columns'" in err
        assert "--samples-first" in err
        assert "--features-first" in err
    assert "one of" in refusal(f"{line} --samples-first --features-first")


class Terminal(io.StringIO):
    """Lines that somebody types, or what a terminal shows."""

    def isatty(self):
        return True


def test_a_terminal_is_asked_what_the_rows_are(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(3).standard_normal((4, 12))
    np.save("x.npy", rows)
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)

    def read(typed):
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        return runs._read_batch(Path("x.npy"), None, False, False, None)[0]

    np.testing.assert_array_equal(read("samples\n"), rows.T)
    np.testing.assert_array_equal(read("what\n\nF\n"), rows)
    question = "x.npy has 4 rows and 12 columns. Are its rows samples (s) or features (f)? "
    assert shown.getvalue() == 4 * question
    with pytest.raises(ArgumentError, match="--samples-first"):
        read("")


def test_batch_takes_the_first_samples(document_of):
    np.save("four.npy", X)
    np.save("three.npy", X[:, :3])
    some, whole = (
        document_of(f"{SEEDED} -i four.npy --batch 3"),
        document_of(f"{SEEDED} -i three.npy"),
    )
    assert some["rows"] == whole["rows"]


def test_the_output_holds_all_layers(printed):
    out = printed(f"{SMALL} -o run.npz --depth 30")
    with np.load("run.npz") as stored:
        assert stored["gram"].shape == (8, 31, 4, 4)
        distance = bnmc.gram.distance(stored["gram"], stored["star"])
        np.testing.assert_allclose(stored["distance"], distance)
        attributes = json.loads(str(stored["attributes"]))
    assert (attributes["seed"], attributes["input"]) == (0, "handwritten digits")
    assert f"seed 0; {attributes['key']}" in out
    printed(f"{RUN} --batch 4 --seed {attributes['key']} -o again.npz")
    with np.load("again.npz") as stored:
        assert json.loads(str(stored["attributes"]))["seed"] == attributes["key"]


@pytest.mark.parametrize(
    ("suffix", "options"),
    [("nc", {"engine": "h5netcdf"}), ("zarr", {"engine": "zarr", "consolidated": False})],
)
def test_other_formats_of_the_output(printed, suffix, options):
    printed(f"{SMALL} -o run.{suffix}")
    with xr.open_dataset(f"run.{suffix}", **options) as stored:
        assert stored.gram.dims == ("chain", "layer", "sample_i", "sample_j")
        assert stored.attrs["seed"] == 0


def test_large_ensembles_are_reduced(document_of, monkeypatch):
    values = document_of(SMALL)
    monkeypatch.setattr(runs, "_MOST_BYTES", 1000)
    document = document_of(f"{SMALL} -o run.npz --plot run.png")
    assert "means and variances" in document["notes"][0]
    for first, second in zip(document["rows"], values["rows"], strict=True):
        assert first["distance"] == pytest.approx(second["distance"], rel=1e-9)
    with np.load("run.npz") as stored:
        assert stored["gram_mean"].shape == (7, 4, 4)


def test_the_output_is_not_replaced_unless_forced(printed, refusal):
    Path("run.npz").write_text("precious")
    assert "--force" in refusal(f"{SMALL} -o run.npz")
    assert Path("run.npz").read_text() == "precious"
    printed(f"{SMALL} -o run.npz --force")
    assert np.load("run.npz")["layer"].shape == (7,)


@pytest.mark.parametrize(("suffix", "magic"), [
    ("jpg", b"\xff\xd8\xff"),
    *(pytest.param(*case, marks=pytest.mark.slow)
      for case in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml"))),
])  # fmt: skip
def test_plot(printed, refusal, suffix, magic):
    printed(f"{SMALL} --plot run.{suffix}")
    assert Path(f"run.{suffix}").read_bytes().startswith(magic)
    refusal(f"{SMALL} --plot run.{suffix}")


@pytest.mark.parametrize("options", ["--gain 1e308", "--gain 1e-300 --norm rms", "--gain 1e200"])
def test_gains_whose_squares_leave_the_range_of_float64(printed, options):
    assert "G*" in printed(f"{SMALL} {options}")


def test_a_gain_beyond_float64(refusal):
    assert "gain: got inf, allowed: a finite real" in refusal(f"{SMALL} --gain 1{400 * '0'}")


def test_a_number_of_threads_beyond_float64(refusal):
    assert "threads: got 1000" in refusal(f"{SMALL} --threads 1{400 * '0'}")


def test_samples_without_variance_and_too_few(refusal):
    row = X.copy()
    row[7] = 2.0
    for x, words in (
        (row, "row 7"),
        (np.ones((20, 4)), "zero variance"),
        (np.ones((50, 3)), "batch: got 4"),
    ):
        np.save("x.npy", x)
        assert words in refusal(f"{SMALL} -i x.npy")


def test_an_error_of_ours_keeps_its_traceback(run, monkeypatch):
    monkeypatch.setattr(runs, "_read_batch", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run("simulate")


BACKPROP = "backprop --width 40 --batch 4 --depth 8 --chains 6"
GRADIENTS = f"{BACKPROP} --seed 3"


def test_a_readout_has_ten_classes_unless_another_number_is_given(document_of):
    table = document_of(f"{GRADIENTS} --loss squared")["rows"]
    assert table == document_of(f"{GRADIENTS} --loss squared --classes 10")["rows"]


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
    out, err = interrupted(f"{GRADIENTS} --json")
    assert "interrupted" in err
    assert 1 <= json.loads(out)["chains"] <= 6


def test_a_store_continues_an_interrupted_command(
    interrupted, run, printed, document_of, refusal, tmp_path
):
    expected = document_of(GRADIENTS)
    _, err = interrupted(f"{GRADIENTS} --store parts")
    assert "bnmc: finished parts are in parts; the same command resumes\n" in err
    finished = len(list((tmp_path / "parts").glob("part-*.npz")))
    assert finished >= 3
    status, out, err = run(f"{GRADIENTS} --store parts --json")
    assert (status, json.loads(out)) == (0, expected)
    percent = 100 * finished // 6
    then = "continuing" if finished < 6 else "nothing to compute"
    assert err == f"bnmc: backpropagate: {percent} % found in the store, {then}\n"
    # Without a seed, the random numbers are those of the store.
    document = document_of(f"{BACKPROP} --store parts --no-progress")
    assert (document["seed"], document["rows"]) == (None, expected["rows"])
    last = printed(f"{BACKPROP} --store parts --no-progress").splitlines()[-1]
    assert last == f"{expected['key']} of the store"
    assert "dtype = float32" in refusal(f"{GRADIENTS} --store parts --dtype float32")
